//! Fuzzes programs of steps that recur, exactly or nearly, over pages that move. Every block is
//! checked, and every layout is compared with the lifetimes for which it was made. Run with
//! `cargo +nightly fuzz run steps`.
#![no_main]

use larder_model::run_steps;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((head, ops)) = data.split_first_chunk() else {
        return;
    };
    if let Err(fault) = run_steps(*head, ops.as_chunks().0.iter().copied()) {
        panic!("{fault}");
    }
});
