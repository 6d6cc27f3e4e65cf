//! What the heap needs of an operating system: address space, and memory behind it.
//!
//! A trait, so that tests run the whole heap over a system that refuses at any call they like. A
//! new system is a new file here.

#[cfg(unix)]
mod unix;
#[cfg(unix)]
pub(crate) use unix::{Unix as Native, yield_thread};

use std::ptr::NonNull;

/// Address space and memory. Calls are rare and thread-safe; none allocates.
///
/// # Safety
/// An implementation promises:
/// 1. ranges from `reserve` are nobody else's until they are released;
/// 2. a committed range is valid for reads and writes, and reads as zero where nothing was written
///    since it was reserved, decommitted or discarded.
pub(crate) unsafe trait Os: Sync + 'static {
    /// Bytes of a page; everything below is a multiple of it.
    fn page_bytes(&self) -> usize;

    /// Reserves addresses without memory, at a multiple of `align`.
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>>;

    /// Gives a reserved range back for good.
    ///
    /// # Safety
    /// The whole range of one `reserve`, not used any more.
    unsafe fn release(&self, start: *mut u8, bytes: usize);

    /// Makes a reserved range usable; whether that went well.
    ///
    /// # Safety
    /// The range lies in a reserved one.
    unsafe fn commit(&self, start: *mut u8, bytes: usize) -> bool;

    /// Takes memory and usability away; the addresses stay reserved. Whether that went well; if
    /// not, nothing has changed.
    ///
    /// # Safety
    /// The range lies in a reserved one, and nothing in it is used.
    unsafe fn decommit(&self, start: *mut u8, bytes: usize) -> bool;

    /// Takes the memory away; the range stays usable and reads as zero. Whether that went well.
    ///
    /// # Safety
    /// The range is committed, and nothing in it is used.
    unsafe fn discard(&self, start: *mut u8, bytes: usize) -> bool;
}
