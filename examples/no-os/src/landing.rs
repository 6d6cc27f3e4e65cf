//! Two names that the linker requires and nothing calls.
//!
//! The `alloc` crate of a hosted target is compiled for programs whose panics unwind. This program's panics abort, so
//! that code is never reached, but its names must resolve. Targets without an operating system have an `alloc` that
//! aborts, and need none of this.

use crate::console::abort;

// SAFETY: the standard library, which defines this name, too, is not part of the program.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> ! {
    abort()
}

// SAFETY: nothing that would unwind is linked in.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    abort()
}
