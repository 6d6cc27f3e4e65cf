//! Processes from start to end, with forks and memory: each case runs in a process of its own, from its real main
//! thread, so that no other case uses its heap, and it may end in any way.
#![no_main]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod dumps;
mod ends;
mod forks;
mod known;
mod memory;
mod misuse;
mod numbers;
mod runner;
mod starts;
mod steps;
mod systems;
mod thread_ends;

use std::ffi::c_int;

use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new();

/// What the C library calls. `pthread_exit` cannot pass the standard library's own `main`, and one of
/// the cases ends the main thread.
#[unsafe(no_mangle)]
extern "C-unwind" fn main(_: c_int, _: *const *const u8) -> c_int {
    let cases = [
        starts::CASES,
        thread_ends::CASES,
        ends::CASES,
        forks::CASES,
        numbers::CASES,
        memory::CASES,
        dumps::CASES,
        misuse::CASES,
        misuse::BY_ADDRESS,
        steps::CASES,
        systems::CASES,
    ];
    #[cfg(target_os = "linux")]
    assert_eq!(systems::touch_large_value(), 1);
    c_int::from(!runner::main(&cases.concat()))
}
