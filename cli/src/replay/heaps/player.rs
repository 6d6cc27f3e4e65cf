//! A heap with the live blocks of a trace.

use std::alloc::{GlobalAlloc, Layout};
use std::io;
use std::ptr;

/// Distance of the bytes that are written in a new block: the smallest page.
const PAGE_BYTES: usize = 4096;
/// Alignment of blocks, as of most types.
const ALIGN: usize = 8;

/// A heap, and the live block of each place.
///
/// Invariant: each entry of `blocks` is empty, or a live block of `heap` with its layout.
pub(super) struct Player<'h, H> {
    heap: &'h H,
    blocks: Vec<(*mut u8, usize)>,
}

impl<'h, H: GlobalAlloc> Player<'h, H> {
    pub(super) fn new(heap: &'h H, places: usize) -> Self {
        let mut blocks = Vec::new();
        // Written to, so that the table is resident.
        blocks.resize_with(places, || (ptr::null_mut(), 1));
        Self { heap, blocks }
    }

    /// Allocates a block, and writes to each of its pages.
    pub(super) fn alloc(&mut self, place: usize, bytes: u64) -> io::Result<()> {
        let none = || io::Error::other(format!("the heap has no block of {bytes} bytes"));
        let size = usize::try_from(bytes).map_err(|_| none())?;
        let layout = Layout::from_size_align(size, ALIGN).map_err(|_| none())?;
        if size == 0 || place >= self.blocks.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.free(place);
        // SAFETY: the size is not 0.
        let block = unsafe { self.heap.alloc(layout) };
        if block.is_null() {
            return Err(none());
        }
        self.blocks[place] = (block, size);
        for offset in (0..size).step_by(PAGE_BYTES) {
            // SAFETY: a byte of the new block, which nothing else uses.
            unsafe { block.add(offset).write_volatile(1) };
        }
        Ok(())
    }

    /// Frees the block of a place, if there is one.
    pub(super) fn free(&mut self, place: usize) {
        let Some(entry) = self.blocks.get_mut(place) else {
            return;
        };
        let (block, size) = std::mem::replace(entry, (ptr::null_mut(), 1));
        if let (false, Ok(layout)) = (block.is_null(), Layout::from_size_align(size, ALIGN)) {
            // SAFETY: by the invariant the block is live and has this layout.
            unsafe { self.heap.dealloc(block, layout) };
        }
    }
}
