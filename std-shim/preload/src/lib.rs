//! `liblarder.so`: the process heap as the malloc of a program that was built without it.
//!
//! `LD_PRELOAD=liblarder.so program`, or linked in front of the C library, as `liblarder.so` or
//! `liblarder.a`. docs/guide/src/malloc.md says how it is tuned and what it does not do.
//!
//! * `c` the functions of C and POSIX · `glibc` those that glibc adds, and its other names of the first
//! * `cpp` the operators of C++
//! * `api` what Larder adds, which `larder.h` declares
//!
//! No block has a header: its class is found by its address. Nothing here takes a lock or keeps state, but
//! the hook of a program in C; the heap does both.

#![no_std]

mod api;
mod c;
mod cpp;
mod glibc;

use core::panic::PanicInfo;

use heap::Larder;

/// The heap of the process. No thread of its own unless the environment asks for one: programs in C may
/// rely on being single-threaded.
static HEAP: Larder = Larder::new()
    .with_background_purge(false)
    .with_environment();

/// The heap as C++'s `new` and `delete` ask for it.
static HEAP_OF_NEW: Larder = HEAP.by_new();

/// Nothing here or in the heap panics. Should something all the same, the process ends.
#[panic_handler]
fn panicked(_: &PanicInfo<'_>) -> ! {
    // SAFETY: the call has no conditions.
    unsafe { libc::abort() }
}

// In a build for debugging functions of core name what unwinds by this symbol. It is never called, as nothing here
// unwinds; a program with the standard library has its own.
#[cfg(debug_assertions)]
core::arch::global_asm!(
    ".weak rust_eh_personality",
    "rust_eh_personality:",
    ".4byte 0",
);
