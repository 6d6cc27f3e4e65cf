//! The heap that is tuned for little memory: what it keeps for a moment goes back with no further call.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{MIB, resident_bytes};
use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::memory();

#[test]
fn memory_goes_back_while_the_program_only_sleeps() {
    let before = resident_bytes();
    let blocks = [900, 20_000, MIB].map(|size| vec![vec![1u8; size]; 100 * MIB / size]);
    assert!(resident_bytes() - before > 250 * MIB as u64);
    drop(blocks);
    let start = Instant::now();
    while resident_bytes().saturating_sub(before) > 15 * MIB as u64 {
        assert!(start.elapsed() < Duration::from_secs(30), "it stays");
        thread::sleep(Duration::from_millis(10));
    }
}
