//! The thread's part as a symbol in initial-exec thread-local storage.

use core::arch::{asm, global_asm};
use core::mem::offset_of;

use larder_core::small::ThreadCache;

use crate::thread::local::{Local, NO_CACHE};

use super::ThreadPart;

/// The symbol. Each version has its own symbol, since two versions may be linked into one program.
/// So do the tests of this crate, which may have the crate twice.
macro_rules! symbol {
    () => {
        concat!(
            "larder_thread_part_",
            env!("CARGO_PKG_VERSION_MAJOR"),
            "_",
            env!("CARGO_PKG_VERSION_MINOR"),
            "_",
            env!("CARGO_PKG_VERSION_PATCH"),
            tests_only!(),
        )
    };
}

#[cfg(not(test))]
macro_rules! tests_only {
    () => {
        ""
    };
}
#[cfg(test)]
macro_rules! tests_only {
    () => {
        "_tests"
    };
}

/// The symbol of the second field.
macro_rules! symbol_of_frees {
    () => {
        concat!(symbol!(), "_of_frees")
    };
}

// The bytes of `ThreadPart::new()`.
global_asm!(
    ".pushsection .tdata,\"awT\",%progbits",
    ".balign 8",
    concat!(".hidden ", symbol!()),
    concat!(".globl ", symbol!()),
    concat!(".type ", symbol!(), ",%object"),
    concat!(".size ", symbol!(), ",64"),
    concat!(symbol!(), ":"),
    ".quad {no_bins}",
    concat!(".hidden ", symbol_of_frees!()),
    concat!(".globl ", symbol_of_frees!()),
    concat!(".type ", symbol_of_frees!(), ",%object"),
    concat!(symbol_of_frees!(), ":"),
    ".quad {no_bins}",
    ".fill 6, 8, 0",
    ".popsection",
    no_bins = sym NO_CACHE,
);

const _: () = assert!(size_of::<ThreadPart>() == 64 && align_of::<ThreadPart>() == 8);
const _: () = assert!(offset_of!(ThreadPart, local) + offset_of!(Local, cache) == 0);
const _: () = assert!(offset_of!(ThreadPart, local) + offset_of!(Local, cache_of_frees) == 8);

/// Reads one of the first two fields of the calling thread's part.
macro_rules! read {
    ($field:expr) => {{
        let cache;
        // One statement: two statements would let a loop keep the first, but they count as two
        // calls in inlining decisions.
        // SAFETY: reads the field of the calling thread's part; no function that changes it calls
        // this while it does.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                concat!("mov {cache}, qword ptr [rip + ", $field, "@GOTTPOFF]"),
                "mov {cache}, qword ptr fs:[{cache}]",
                cache = out(reg) cache,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        // SAFETY: reads the field of the calling thread's part; no function that changes it calls
        // this while it does.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!(
                "mrs {thread}, tpidr_el0",
                concat!("adrp {cache}, :gottprel:", $field),
                concat!("ldr {cache}, [{cache}, :gottprel_lo12:", $field, "]"),
                "ldr {cache}, [{thread}, {cache}]",
                cache = out(reg) cache,
                thread = out(reg) _,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        cache
    }};
}

#[inline(always)]
pub(crate) fn cache() -> *mut ThreadCache {
    read!(symbol!())
}

#[inline(always)]
pub(crate) fn cache_of_frees() -> *mut ThreadCache {
    read!(symbol_of_frees!())
}

#[inline(always)]
pub(crate) fn part() -> *mut ThreadPart {
    let part;
    // SAFETY: reads the address of the calling thread's part, which never changes.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "mov {part}, qword ptr fs:[0]",
            concat!("add {part}, qword ptr [rip + ", symbol!(), "@GOTTPOFF]"),
            part = out(reg) part,
            options(pure, nomem, nostack),
        );
    }
    // SAFETY: reads the address of the calling thread's part, which never changes.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "mrs {thread}, tpidr_el0",
            concat!("adrp {part}, :gottprel:", symbol!()),
            concat!("ldr {part}, [{part}, :gottprel_lo12:", symbol!(), "]"),
            "add {part}, {thread}, {part}",
            part = out(reg) part,
            thread = out(reg) _,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    part
}
