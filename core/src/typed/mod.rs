//! Typed allocation: slices of values in memory of an allocator, dropped and freed like a `Box`.
//!
//! Modelled on TensorFlow's `Allocator::Allocate<T>`, with additions: the size is checked, every alignment of `T` is
//! supported, the length is kept with the values, and values created before a panic are dropped.
//!
//! For the core, an address is only a number. The unsafe trait [`HostMemory`] marks allocators whose blocks are memory
//! of the host. [`HostBuffer`] is such an allocator, over a buffer of the caller.
//!
//! Invariants:
//! * TYPED1 a [`TypedBox`] is the only user of its block: the block came from `alloc`, no other code has ever seen it,
//!   and it is freed once, when the box is dropped.
//! * TYPED2 the block has room for the values at the alignment of their type (TYPED4).
//! * TYPED3 all values of a box are initialised; a box of `MaybeUninit` promises nothing about them.
//!
//! Promises of an implementation of [`HostMemory`]:
//! * TYPED4 a block is memory of its granted length at an address that is a multiple of the request's alignment, and
//!   [`pointer`](HostMemory::pointer) may read and write all of it.
//! * TYPED5 nothing else uses the memory of a block until the block is freed. This is promised if the request allowed
//!   no wait and no memory freed after event 0, that is, no memory that queued work may use. Safe code cannot free a
//!   block without the block itself: it cannot free by address, and it cannot make a block from numbers. No other
//!   allocator, now or later, has a block that this one would accept as its own.
//! * TYPED6 a block stays valid memory as long as the allocator is borrowed.

mod boxed;
mod buffer;

use core::alloc::Layout;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use crate::block::{Block, BlockAllocator, Request};
use crate::error::AllocError;
use crate::stream::EventNumber;
use crate::units::Align;

pub use boxed::TypedBox;
use boxed::{OwnedBlock, Values};
pub use buffer::HostBuffer;

/// An allocator whose blocks are memory that this program may read and write.
///
/// # Safety
/// The implementation keeps TYPED4, TYPED5 and TYPED6 of the [module](self).
pub unsafe trait HostMemory: BlockAllocator {
    /// Returns a pointer to the start of a block's memory, valid for all of it. For a block of another allocator, the
    /// pointer may have any value.
    fn pointer(&self, block: &Block) -> NonNull<u8>;
}

// SAFETY: a reference allocates blocks from the allocator to which it refers, and this allocator keeps the promises.
unsafe impl<A: HostMemory + ?Sized> HostMemory for &A {
    fn pointer(&self, block: &Block) -> NonNull<u8> {
        (**self).pointer(block)
    }
}

/// Types with a value of all zero bytes.
///
/// # Safety
/// A value whose bytes are all 0 is a value of the type.
pub unsafe trait Zeroable {}

/// The types that are [`Zeroable`].
mod zeroable {
    use super::Zeroable;

    // SAFETY: 0 is a value, and its byte is 0.
    unsafe impl Zeroable for u8 {}
    // SAFETY: 0 is a value, and its bytes are 0.
    unsafe impl Zeroable for u16 {}
    // SAFETY: 0 is a value, and its bytes are 0.
    unsafe impl Zeroable for u32 {}
    // SAFETY: 0 is a value, and its bytes are 0.
    unsafe impl Zeroable for u64 {}
    // SAFETY: 0 is a value, and its bytes are 0.
    unsafe impl Zeroable for u128 {}
    // SAFETY: 0 is a value, and its bytes are 0.
    unsafe impl Zeroable for usize {}
    // SAFETY: 0 is a value, and its byte is 0.
    unsafe impl Zeroable for i8 {}
    // SAFETY: 0 is a value, and its bytes are 0.
    unsafe impl Zeroable for i16 {}
    // SAFETY: 0 is a value, and its bytes are 0.
    unsafe impl Zeroable for i32 {}
    // SAFETY: 0 is a value, and its bytes are 0.
    unsafe impl Zeroable for i64 {}
    // SAFETY: 0 is a value, and its bytes are 0.
    unsafe impl Zeroable for i128 {}
    // SAFETY: 0 is a value, and its bytes are 0.
    unsafe impl Zeroable for isize {}
    // SAFETY: 0.0 is a value, and its bytes are 0.
    unsafe impl Zeroable for f32 {}
    // SAFETY: 0.0 is a value, and its bytes are 0.
    unsafe impl Zeroable for f64 {}
    // SAFETY: `false` is a value, and its byte is 0.
    unsafe impl Zeroable for bool {}
    // SAFETY: each element is `Zeroable`, and an array has no other bytes.
    unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {}
}

/// Allocates `len` values, each created by `make` from its index. Values without bytes need no memory, but are created
/// and dropped nevertheless. O(len), plus one allocation.
///
/// If `make` panics, the values created so far are dropped and the memory is freed.
///
/// ```
/// use core::mem::MaybeUninit;
/// use larder_core::typed::{HostBuffer, alloc_slice_with};
/// use larder_core::{RegionConfig, Chunk};
///
/// let mut buffer = [MaybeUninit::uninit(); 4096];
/// let mut table = [Chunk::VACANT; 8];
/// let memory: HostBuffer = HostBuffer::new(&mut buffer, RegionConfig::fixed(), &mut table)?;
/// let squares = alloc_slice_with(&memory, 10, |index| index * index)?;
/// assert_eq!(squares[3], 9);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// # Errors
/// [`AllocError`]; in that case no value has been created.
pub fn alloc_slice_with<T, A: HostMemory + ?Sized>(
    allocator: &A,
    len: usize,
    mut make: impl FnMut(usize) -> T,
) -> Result<TypedBox<'_, [T], A>, AllocError> {
    let mut room = alloc_slice_uninit(allocator, len)?;
    let mut made = Made {
        room: &mut room,
        count: 0,
    };
    while made.count < len {
        let value = make(made.count);
        if let Some(place) = made.room.get_mut(made.count) {
            place.write(value);
        }
        made.count += 1;
    }
    core::mem::forget(made);
    // SAFETY: all `len` values were written (TYPED3).
    Ok(unsafe { room.assume_init() })
}

/// Values created so far, dropped if the next one panics.
struct Made<'r, T> {
    room: &'r mut [MaybeUninit<T>],
    count: usize,
}

impl<T> Drop for Made<'_, T> {
    fn drop(&mut self) {
        if let Some(made) = self.room.get_mut(..self.count) {
            let made = core::ptr::from_mut(made) as *mut [T];
            // SAFETY: the first `count` values were written, and the room is dropped without its values.
            unsafe { made.drop_in_place() };
        }
    }
}

/// Allocates room for `len` values that are still to be written; see [`TypedBox::assume_init`].
///
/// # Errors
/// [`AllocError`].
pub fn alloc_slice_uninit<T, A: HostMemory + ?Sized>(
    allocator: &A,
    len: usize,
) -> Result<TypedBox<'_, [MaybeUninit<T>], A>, AllocError> {
    let too_large = AllocError::TooMany {
        len,
        each_bytes: size_of::<T>(),
    };
    let layout = Layout::array::<T>(len).map_err(|_| too_large)?;
    let (start, block) = if layout.size() == 0 {
        (NonNull::dangling(), None)
    } else {
        let align = Align::new(layout.align() as u64).ok_or(too_large)?;
        let request = Request::new(layout.size() as u64).aligned(align);
        // The host runs concurrently with all streams, the main one included (TYPED5).
        let request = request.without_wait().freed_by(EventNumber::new(0));
        let block = allocator.alloc(&request)?.block;
        (allocator.pointer(&block).cast(), Some(block))
    };
    let values = NonNull::slice_from_raw_parts(start, len);
    let memory = OwnedBlock::new(allocator, block);
    // SAFETY: the block was allocated above for this box (TYPED1), with room and alignment (TYPED2 by TYPED4; a
    // dangling pointer is aligned); `MaybeUninit` values need no initialisation (TYPED3).
    Ok(unsafe { TypedBox::of(Values::new(values), memory) })
}

/// Allocates `len` zeros.
///
/// # Errors
/// [`AllocError`].
pub fn alloc_slice_zeroed<T: Zeroable, A: HostMemory + ?Sized>(
    allocator: &A,
    len: usize,
) -> Result<TypedBox<'_, [T], A>, AllocError> {
    let mut room = alloc_slice_uninit(allocator, len)?;
    for place in room.iter_mut() {
        *place = MaybeUninit::zeroed();
    }
    // SAFETY: all values were written, as zeros, which are values of `T` (TYPED3).
    Ok(unsafe { room.assume_init() })
}
