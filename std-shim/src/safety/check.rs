//! Checks of every heap: a broken contract ends the process with a message. Nothing here allocates.

use core::alloc::Layout;

use larder_core::small::{SizeClass, Span};

use crate::os::{Os, abort, say};
use crate::process::Process;

/// Ends the process because a free cannot be right.
#[cold]
pub(crate) fn fail(message: &[u8]) -> ! {
    say(message);
    abort()
}

/// Ends the process if a block that is being freed was `freed` before.
pub(crate) fn check_not_free(freed: bool) {
    if freed {
        fail(b"larder: freed a block twice\n");
    }
}

/// Ends the process if a block that is being freed was not allocated with this layout. O(1), a few
/// accesses.
pub(crate) fn check_block<O: Os>(process: &'static Process<O>, block: *mut u8, layout: Layout) {
    let Some(arena) = process.arena_of(block) else {
        let fits = |bytes: usize| layout.size().next_multiple_of(process.os.page_bytes()) == bytes;
        if process.mappings.bytes_at(block).is_some_and(fits) {
            return;
        }
        fail(b"larder: freed an address that is not from this heap\n");
    };
    let class = SizeClass::of(layout.size(), layout.align());
    let Some(span) = arena.span_of(block) else {
        // Small blocks are allocated one by one if no span could be allocated.
        let size = class.map_or(layout.size(), SizeClass::block_bytes);
        // C resizes a block by its length, which may be more than was requested.
        let lengths = [arena.requested_at(block), arena.bytes_at(block)];
        match lengths[0] {
            None => fail(b"larder: freed an address where no block starts\n"),
            Some(_) if !lengths.contains(&Some(arena.granted_bytes(size))) => {
                fail(b"larder: freed a block with another layout than it was allocated with\n")
            }
            Some(_) => return,
        }
    };
    // SAFETY: the program holds a block of the span, or breaks the contract checked here.
    let shape = unsafe { Span::shape(span.as_ptr()) };
    if class != Some(shape.class()) {
        fail(b"larder: freed a block with another layout than it was allocated with\n");
    }
    if !shape.is_block(block) {
        fail(b"larder: freed an address inside a block\n");
    }
}
