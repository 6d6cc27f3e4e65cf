//! Fuzzes a range whose pages move, over a device that checks every call: any policies, refused
//! calls, several plans in progress, and limits that change between two calls.
//!
//! The first twelve bytes choose policies, tables and device; the rest are operations, five bytes
//! each. Run with `cargo +nightly fuzz run paged`.
#![no_main]

use larder_model::run_paged;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((head, ops)) = data.split_first_chunk() else {
        return;
    };
    if let Err(fault) = run_paged(*head, ops.as_chunks().0.iter().copied()) {
        panic!("{fault}");
    }
});
