//! `liblarder.so`: the process heap as the malloc of a program that was built without Larder.
//!
//! It is loaded with `LD_PRELOAD=liblarder.so program`, or linked in front of the C library, as
//! `liblarder.so` or `liblarder.a`. docs/guide/src/malloc.md has its tuning and its limits.
//!
//! * `c` the functions of C and POSIX · `glibc` the functions that glibc adds, and its aliases of
//!   the former
//! * `cpp` the operators of C++
//! * `api` Larder's additions, declared in `larder.h`
//!
//! No block has a header: its class is found by its address. Nothing here takes a lock or keeps
//! state, except the hook of a C program; the heap does both.

#![no_std]

mod api;
mod c;
mod cpp;
mod glibc;

use core::panic::PanicInfo;

use heap::Larder;

/// The heap of the process. It has no purge thread unless the environment requests one: programs in
/// C may rely on being single-threaded.
static HEAP: Larder = Larder::new()
    .with_background_purge(false)
    .with_environment();

/// The heap for C++'s `new` and `delete`.
static HEAP_OF_NEW: Larder = HEAP.by_new();

/// Ends the process. Nothing here or in the heap should panic.
#[panic_handler]
fn panicked(_: &PanicInfo<'_>) -> ! {
    // SAFETY: the call has no conditions.
    unsafe { libc::abort() }
}

// In debug builds functions of core refer to this symbol for unwinding. It is never called, because
// nothing here unwinds; a program with the standard library has its own.
#[cfg(debug_assertions)]
core::arch::global_asm!(
    ".weak rust_eh_personality",
    "rust_eh_personality:",
    ".4byte 0",
);
