//! Whole processes, from start to end. Each case runs in the main thread of its own process, so no
//! other case uses its heap, and the process may end in any way.
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

/// The C library calls this directly: one case ends the main thread, and `pthread_exit` cannot
/// unwind through the standard library's own `main`.
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
