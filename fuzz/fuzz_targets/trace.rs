//! Fuzzes the reader of traces, memory snapshots and logs: it never panics, and the events read are well formed. Run
//! with `cargo +nightly fuzz run trace`.
#![no_main]

use std::path::Path;

use larder_trace::{Event, MAX_BYTES, RMM_HEADER, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check(data);
    // With a valid first byte or line, which the fuzzer then need not find.
    check(&[b"\x80\x04".as_slice(), data].concat());
    check(&[RMM_HEADER.as_bytes(), b"\n", data].concat());
});

fn check(data: &[u8]) {
    let Ok(trace) = read(Path::new("fuzzed.trace"), data) else {
        return;
    };
    let mut sizes = Vec::new();
    let mut live_bytes = 0;
    for event in trace.events() {
        match *event {
            Event::Alloc { id, bytes } => {
                assert_eq!(id as usize, sizes.len());
                assert!(bytes > 0);
                live_bytes += bytes;
                assert!(live_bytes <= MAX_BYTES);
                sizes.push(Some(bytes));
            }
            Event::Free { id } => live_bytes -= sizes[id as usize].take().unwrap(),
            Event::Step { .. } => {}
        }
    }
    assert_eq!(trace.allocations() as usize, sizes.len());
}
