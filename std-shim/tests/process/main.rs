//! Processes from start to end, with forks and memory: each case runs in a process of its own, from its real main
//! thread, so that no other case uses its heap, and it may end in any way.
#![no_main]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod ends;
mod forks;
mod known;
#[cfg(target_os = "linux")]
mod memory;
mod misuse;
mod numbers;
#[cfg(target_os = "linux")]
mod purge;
#[cfg(target_os = "linux")]
mod rounds;
mod runner;
mod starts;
mod steps;
#[cfg(target_os = "linux")]
mod systems;
mod thread_ends;

use std::ffi::c_int;

use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new().with_environment();

/// What the C library calls. `pthread_exit` cannot pass the standard library's own `main`, and one of
/// the cases ends the main thread.
#[unsafe(no_mangle)]
extern "C-unwind" fn main(_: c_int, _: *const *const u8) -> c_int {
    let mut cases = [
        starts::CASES,
        thread_ends::CASES,
        ends::CASES,
        forks::CASES,
        numbers::CASES,
        steps::CASES,
        #[cfg(target_os = "linux")]
        memory::CASES,
        #[cfg(target_os = "linux")]
        purge::CASES,
        #[cfg(target_os = "linux")]
        rounds::CASES,
        #[cfg(target_os = "linux")]
        systems::CASES,
    ]
    .concat();
    cases.extend(misuse::cases());
    #[cfg(target_os = "linux")]
    assert_eq!(systems::touch_large_value(), 1);
    c_int::from(!runner::main(&cases))
}
