//! Programs of steps that come again, exactly or nearly, over pages that move: every block is
//! watched, every layout compared with the lives it is for. Run by `cargo +nightly fuzz run steps`.
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
