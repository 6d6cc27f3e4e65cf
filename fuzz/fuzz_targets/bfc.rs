//! Fuzzes best fit with coalescing against its model: every answer and every invariant, under any
//! policies.
//!
//! The first bytes choose the policies, the table and the device; the rest are operations, seven
//! bytes each. Run with `cargo +nightly fuzz run bfc`.
#![no_main]

use larder_model::{Op, Policies, run_bfc};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((head, ops)) = data.split_first_chunk() else {
        return;
    };
    let policies = Policies::decode(*head);
    let ops = ops.as_chunks().0.iter().map(|bytes| Op::decode(*bytes));
    if let Err(mismatch) = run_bfc(&policies, ops) {
        panic!("{policies:?}: {mismatch}");
    }
});
