//! [`TypedBox`]: values in memory of an allocator, and their end.

use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::HostMemory;
use crate::block::Block;

/// Values that drop in place.
pub(super) struct Values<T: ?Sized> {
    start: NonNull<T>,
    owned: PhantomData<T>,
}

impl<T: ?Sized> Values<T> {
    pub(super) const fn new(start: NonNull<T>) -> Self {
        Self {
            start,
            owned: PhantomData,
        }
    }
}

impl<T: ?Sized> Drop for Values<T> {
    fn drop(&mut self) {
        // SAFETY: TYPED1 and TYPED3: they are ours, initialised, and dropped once.
        unsafe { self.start.drop_in_place() };
    }
}

/// A block that goes back.
pub(super) struct OwnedBlock<'a, A: HostMemory + ?Sized> {
    allocator: &'a A,
    /// None for no bytes.
    block: Option<Block>,
}

impl<'a, A: HostMemory + ?Sized> OwnedBlock<'a, A> {
    pub(super) const fn new(allocator: &'a A, block: Option<Block>) -> Self {
        Self { allocator, block }
    }
}

impl<A: HostMemory + ?Sized> Drop for OwnedBlock<'_, A> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let freed = self.allocator.free(block);
            debug_assert!(freed.is_ok(), "TYPED1: a block of this allocator");
        }
    }
}

/// Values in memory of an allocator. Dropping it drops them and frees the memory, also where one of
/// them panics.
pub struct TypedBox<'a, T: ?Sized, A: HostMemory + ?Sized> {
    /// Before the memory, which is freed behind them.
    values: Values<T>,
    memory: OwnedBlock<'a, A>,
}

// SAFETY: the values are owned (TYPED1), and the allocator is only shared.
unsafe impl<T: ?Sized + Send, A: HostMemory + ?Sized + Sync> Send for TypedBox<'_, T, A> {}
// SAFETY: a shared box gives shared values only.
unsafe impl<T: ?Sized + Sync, A: HostMemory + ?Sized + Sync> Sync for TypedBox<'_, T, A> {}

impl<'a, T: ?Sized, A: HostMemory + ?Sized> TypedBox<'a, T, A> {
    /// # Safety
    /// TYPED1, TYPED2 and TYPED3 hold for them.
    pub(super) const unsafe fn of(values: Values<T>, memory: OwnedBlock<'a, A>) -> Self {
        Self { values, memory }
    }

    /// Where its memory is from.
    pub const fn allocator(this: &Self) -> &'a A {
        this.memory.allocator
    }

    /// Bytes granted for the values; 0 if they have none.
    pub fn granted_bytes(this: &Self) -> u64 {
        this.memory.block.as_ref().map_or(0, Block::bytes)
    }
}

impl<'a, T, A: HostMemory + ?Sized> TypedBox<'a, [MaybeUninit<T>], A> {
    /// Says that the values are initialised.
    ///
    /// # Safety
    /// All of them are initialised.
    pub unsafe fn assume_init(self) -> TypedBox<'a, [T], A> {
        // These are dropped as part of the answer.
        let values = ManuallyDrop::new(self.values);
        let len = values.start.len();
        let start = values.start.cast::<T>();
        let values = Values::new(NonNull::slice_from_raw_parts(start, len));
        // SAFETY: TYPED1 and TYPED2 hold for the same memory, TYPED3 since all values are initialized, as `assume_init` asks.
        unsafe { TypedBox::of(values, self.memory) }
    }
}

impl<T: ?Sized, A: HostMemory + ?Sized> Deref for TypedBox<'_, T, A> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: TYPED1 to TYPED3, and TYPED6: the allocator is borrowed.
        unsafe { self.values.start.as_ref() }
    }
}

impl<T: ?Sized, A: HostMemory + ?Sized> DerefMut for TypedBox<'_, T, A> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: TYPED1 to TYPED3, and TYPED6: the box is borrowed alone, and with it the allocator.
        unsafe { self.values.start.as_mut() }
    }
}

impl<T: ?Sized + fmt::Debug, A: HostMemory + ?Sized> fmt::Debug for TypedBox<'_, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
