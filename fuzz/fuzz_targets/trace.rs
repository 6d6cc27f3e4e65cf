//! Fuzzes the reader of traces, memory snapshots and logs: it never panics, the events read are well formed, and memory
//! is proportional to the bytes read. Run with `cargo +nightly fuzz run trace`.
#![no_main]

use std::path::Path;

use larder_trace::{Event, MAX_BYTES, RMM_HEADER, Trace, read};
use libfuzzer_sys::fuzz_target;
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Memory that a reader may need for any file: a long line, with its fields, and buffers.
const CONSTANT_BYTES: usize = 4 << 20;

/// Memory that a reader may need for each byte of a file, after decompression.
const FACTOR: usize = 64;

fuzz_target!(|data: &[u8]| {
    check(data);
    // With a valid first byte or line, which the fuzzer then need not find.
    check(&[b"\x80\x04".as_slice(), data].concat());
    check(&[RMM_HEADER.as_bytes(), b"\n", data].concat());
    // A large file, and what it is packed as.
    let (once, repeated) = data.split_at(data.len() / 2);
    let large = [once, &repeated.repeat(REPETITIONS)].concat();
    check(&large);
    check_memory(&zstd::encode_all(large.as_slice(), 1).unwrap(), large.len());
});

/// How often the second half of a file is repeated to make a large one.
const REPETITIONS: usize = 256;

fn check(data: &[u8]) {
    check_memory(data, data.len());
}

/// Reads a file whose content has so many bytes.
fn check_memory(data: &[u8], content_bytes: usize) {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let read = read(Path::new("fuzzed.trace"), data);
    let peak = HEAP.peak_usage() - before;
    assert!(
        peak <= CONSTANT_BYTES + FACTOR * content_bytes,
        "{peak} bytes for {content_bytes}"
    );
    if let Ok(trace) = read {
        check_events(&trace);
    }
}

fn check_events(trace: &Trace) {
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
