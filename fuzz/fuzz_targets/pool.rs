//! Fuzzes an LRU pool against its model, which predicts every address and counter. Run with
//! `cargo +nightly fuzz run pool`.
#![no_main]

use larder_model::run_pool;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((head, ops)) = data.split_first_chunk() else {
        return;
    };
    if let Err(mismatch) = run_pool(*head, ops.as_chunks().0.iter().copied()) {
        panic!("{mismatch}");
    }
});
