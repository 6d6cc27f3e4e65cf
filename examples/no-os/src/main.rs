//! A program without `std`: the collections of `alloc` on a static region.
//!
//! The heap is one line, the `static` below. The C library only starts the program and prints, as a kernel's
//! boot code and serial port would; it provides no memory.
//!
//! A wrong result causes a panic, which prints its location and ends the program with a non-zero exit code.

#![no_std]
#![no_main]

extern crate alloc;

mod collections;
mod console;
mod exhaustion;
mod landing;

use larder_core::{HeapStats, StaticHeap};

/// The memory of the program, in place of memory from an operating system.
const REGION_BYTES: usize = 256 << 10;

#[global_allocator]
static HEAP: StaticHeap<REGION_BYTES> = StaticHeap::new();

/// The entry point, called by the C library's start-up code. Returns the exit code.
// SAFETY: no other function of the program is named `main`.
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    assert_eq!(
        HEAP.stats(),
        HeapStats::default(),
        "nothing is claimed before it is needed"
    );
    collections::run(|| show("with a program's data"));
    show("all of it dropped");
    exhaustion::run();
    show("after exhaustion");
    assert_eq!(HEAP.stats().refused_frees, 0);
    console::line(format_args!("all checks passed"));
    0
}

/// Prints the heap's statistics.
fn show(moment: &str) {
    let stats = HEAP.stats();
    assert_eq!(stats.region_bytes, REGION_BYTES as u64);
    console::line(format_args!(
        "{moment:>22}: {:6} live, {:6} free, {:6} largest free, of {} bytes",
        stats.live_bytes, stats.free_bytes, stats.largest_free_bytes, stats.region_bytes
    ));
}
