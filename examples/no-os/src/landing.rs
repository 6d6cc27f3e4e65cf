//! Two names the linker asks for and nobody calls.
//!
//! The `alloc` crate of a hosted target comes compiled for programs whose panics unwind. This one's
//! abort, so that code is never reached, but its names must lead somewhere. Targets without an
//! operating system come with an `alloc` that aborts, and need none of this.

use crate::console::abort;

// SAFETY: the standard library, which also has this name, is no part of the program.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> ! {
    abort()
}

// SAFETY: nothing that would unwind is linked.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    abort()
}
