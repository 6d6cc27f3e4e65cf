//! The heap configured for little memory: its briefly kept memory is released without further calls.
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
    // The other test's memory is little.
    while resident_bytes().saturating_sub(before) > 15 * MIB as u64 {
        assert!(start.elapsed() < Duration::from_secs(300), "it stays");
        thread::sleep(Duration::from_millis(10));
    }
}

/// What the system knows of the mapping in which a byte lies.
fn flags_at(byte: *const u8) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in maps.lines() {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16);
        if let Some((Ok(start), Ok(end))) = range.map(|(start, end)| (number(start), number(end))) {
            inside = (start..end).contains(&byte.addr());
        } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.to_owned();
        }
    }
    panic!("no mapping");
}

#[test]
fn small_blocks_have_no_huge_pages_where_the_system_makes_them_by_itself() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    let block = Box::new([1u64; 8]);
    let flags = flags_at((&raw const *block).cast());
    assert!(flags.split(' ').any(|flag| flag == "nh"), "{flags}");
}
