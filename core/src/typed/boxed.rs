//! [`TypedBox`]: owns values in memory of an allocator, drops them and frees the memory.

use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::HostMemory;
use crate::block::Block;

/// Values that are dropped in place.
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
        // SAFETY: the values belong to this box alone (TYPED1), are initialised (TYPED3), and are dropped once.
        unsafe { self.start.drop_in_place() };
    }
}

/// A block that is freed on drop.
pub(super) struct OwnedBlock<'a, A: HostMemory + ?Sized> {
    allocator: &'a A,
    /// The block, or `None` if the values have no bytes.
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

/// Owned values in memory of an allocator. Dropping the box drops the values and frees the memory, even if dropping a
/// value panics.
pub struct TypedBox<'a, T: ?Sized, A: HostMemory + ?Sized> {
    /// Declared before the memory, so that the values are dropped first.
    values: Values<T>,
    memory: OwnedBlock<'a, A>,
}

// SAFETY: the values are owned (TYPED1), and the allocator is only shared.
unsafe impl<T: ?Sized + Send, A: HostMemory + ?Sized + Sync> Send for TypedBox<'_, T, A> {}
// SAFETY: a shared box gives only shared access to the values.
unsafe impl<T: ?Sized + Sync, A: HostMemory + ?Sized + Sync> Sync for TypedBox<'_, T, A> {}

impl<'a, T: ?Sized, A: HostMemory + ?Sized> TypedBox<'a, T, A> {
    /// # Safety
    /// TYPED1, TYPED2 and TYPED3 hold for the values and the memory.
    pub(super) const unsafe fn of(values: Values<T>, memory: OwnedBlock<'a, A>) -> Self {
        Self { values, memory }
    }

    /// Returns the allocator of the box's memory.
    pub const fn allocator(this: &Self) -> &'a A {
        this.memory.allocator
    }

    /// Returns the bytes granted for the values; 0 if the values have no bytes.
    pub fn granted_bytes(this: &Self) -> u64 {
        this.memory.block.as_ref().map_or(0, Block::bytes)
    }
}

impl<'a, T, A: HostMemory + ?Sized> TypedBox<'a, [MaybeUninit<T>], A> {
    /// Converts the box to a box of initialised values.
    ///
    /// # Safety
    /// All values are initialised.
    pub unsafe fn assume_init(self) -> TypedBox<'a, [T], A> {
        // The values are dropped as part of the result.
        let values = ManuallyDrop::new(self.values);
        let len = values.start.len();
        let start = values.start.cast::<T>();
        let values = Values::new(NonNull::slice_from_raw_parts(start, len));
        // SAFETY: TYPED1 and TYPED2 hold for the same memory, and TYPED3 since the caller promises that all values
        // are initialised.
        unsafe { TypedBox::of(values, self.memory) }
    }
}

impl<T: ?Sized, A: HostMemory + ?Sized> Deref for TypedBox<'_, T, A> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the block belongs to this box, is large enough, and its values are initialised (TYPED1 to TYPED3). It
        // stays valid memory while the allocator is borrowed (TYPED6).
        unsafe { self.values.start.as_ref() }
    }
}

impl<T: ?Sized, A: HostMemory + ?Sized> DerefMut for TypedBox<'_, T, A> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`. The box is borrowed exclusively, so no other reference to the values exists.
        unsafe { self.values.start.as_mut() }
    }
}

impl<T: ?Sized + fmt::Debug, A: HostMemory + ?Sized> fmt::Debug for TypedBox<'_, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
