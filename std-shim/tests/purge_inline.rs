//! A heap that may not start a thread: memory is released on the slow paths of the program's calls.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use common::{MIB, resident_bytes};
use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new()
    .with_purge_after(Duration::from_millis(100))
    .with_background_purge(false);

#[test]
fn memory_goes_back_while_the_program_goes_on_and_no_thread_is_started() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let (before, count) = (resident_bytes(), threads());
    drop(vec![1u8; 200 * MIB]);
    let start = Instant::now();
    while resident_bytes().saturating_sub(before) > 10 * MIB as u64 {
        assert!(start.elapsed() < Duration::from_secs(300), "it stays");
        // Enough to come to a slow path.
        drop((0..1000).map(|_| vec![1u8; 900]).collect::<Vec<_>>());
    }
    assert_eq!(threads(), count);
    assert!(HEAP.stats().purged_bytes > 190 * MIB as u64);
}
