//! A program whose live samples are recorded with their stacks.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::backtrace::Backtrace;
use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use larder::{Larder, LiveSamples, Profiled};

static LIVE: LiveSamples = LiveSamples::new();

#[global_allocator]
static HEAP: Profiled<Larder> = Profiled::new(Larder::new(), 4096, |sample| LIVE.note(sample));

/// Runs one test at a time, because the tests compare live bytes.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline(never)]
fn make_many_lists() -> Vec<Vec<u8>> {
    black_box((0..2000).map(|_| vec![0_u8; 1000]).collect())
}

/// Returns the folded stacks. The parsed symbol tables, which have 30 MiB, may not stay.
fn folded() -> String {
    let before = HEAP.inner().stats().live_bytes;
    let mut text = Vec::new();
    LIVE.write_folded(&mut text).unwrap();
    let after = HEAP.inner().stats().live_bytes;
    assert!(after < before + (4 << 20), "{before} before, {after} after");
    String::from_utf8(text).unwrap()
}

/// Returns the sum of the bytes in all lines that contain this word.
fn bytes_of(folded: &str, word: &str) -> f64 {
    let lines = folded.lines().filter(|line| line.contains(word));
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum()
}

#[test]
fn live_bytes_are_written_by_stack() {
    let _turn = turn();
    let lists = make_many_lists();
    let text = folded();
    let bytes = bytes_of(&text, "make_many_lists");
    // About 500 samples, so five standard deviations are about a quarter.
    assert!((bytes / 2e6 - 1.0).abs() < 0.25, "{bytes}");
    let line = text
        .lines()
        .find(|line| line.contains("make_many_lists"))
        .unwrap();
    assert!(line.contains(';') && !line.contains("larder::"), "{line}");
    assert!(text.lines().all(|line| !line.starts_with("0x0;")), "{text}");
    assert!(LIVE.totals().bytes >= bytes * 0.99);
    drop(lists);
    assert_eq!(bytes_of(&folded(), "make_many_lists"), 0.0);
    // A sample is dropped if the harness's thread takes one at the same time.
    assert!(HEAP.dropped() < 5, "{}", HEAP.dropped());
}

#[test]
fn backtraces_of_the_standard_library_are_printed_meanwhile() {
    let _turn = turn();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            thread::spawn(|| {
                (0..3)
                    .map(|_| Backtrace::force_capture().to_string().len())
                    .sum::<usize>()
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().unwrap() > 100);
    }
}
