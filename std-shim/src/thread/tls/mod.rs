//! The storage of a thread's [`Local`](crate::thread::local::Local), and the shortest way to it.
//!
//! `thread_local!` is optimal if the compiler sees the access and the program together, that is
//! with fat LTO; otherwise each access is a call. On Linux the variable is therefore defined in
//! assembly, in the storage that every thread has from its start (the initial-exec model). It is
//! read with two instructions, which the linker turns into a move and a load in a program. It takes
//! 64 bytes, so that there is room for it even in a library loaded at run time.
//!
//! Either way it is a constant at first and has no destructor: it can be used at any moment of a
//! thread's life, even before `main` and inside destructors of other thread-local values.
//!
//! `cache` and `cache_of_frees` return the first two fields; `local` and `steps` return addresses,
//! valid for the calling thread while it runs.

// A shared C library must provide such storage to libraries that are loaded later. glibc does; musl
// does not.
#[cfg_attr(
    all(
        not(miri),
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64"),
        target_pointer_width = "64",
        any(target_env = "gnu", target_feature = "crt-static"),
    ),
    path = "assembly.rs"
)]
#[cfg_attr(
    not(all(
        not(miri),
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64"),
        target_pointer_width = "64",
        any(target_env = "gnu", target_feature = "crt-static"),
    )),
    path = "standard.rs"
)]
mod way;

use crate::step::ThreadSteps;
use crate::thread::local::Local;

pub(crate) use way::{cache, cache_of_frees};

/// The heap state of a thread. The fast paths read two fields of the first field and nothing else.
#[repr(C)]
struct ThreadPart {
    local: Local,
    steps: ThreadSteps,
}

impl ThreadPart {
    #[allow(dead_code, reason = "the assembly has it as numbers")]
    const fn new() -> Self {
        Self {
            local: Local::new(),
            steps: ThreadSteps::new(),
        }
    }
}

/// Returns the address of the calling thread's [`Local`].
#[inline(always)]
pub(crate) fn local() -> *mut Local {
    way::part().cast()
}

/// Returns the address of the calling thread's step state.
#[inline(always)]
pub(crate) fn steps() -> *mut ThreadSteps {
    way::part()
        .wrapping_byte_add(core::mem::offset_of!(ThreadPart, steps))
        .cast()
}

const _: () = assert!(!core::mem::needs_drop::<ThreadPart>());
