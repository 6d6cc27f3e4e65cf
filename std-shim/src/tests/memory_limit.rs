//! A limit on the memory of the process: idle memory makes room before its last part is reached.
//! There are no ticks.

use std::alloc::Layout;

use super::drive::World;
use super::faulty::{Below, Call, Faulty, Plan};
use super::random::Random;
use crate::config::Config;
use crate::process::Process;
use crate::thread::local::Local;

const MIB: usize = 1 << 20;
const LIMIT: usize = 64 * MIB;
const HOUR_MS: u64 = 3_600_000;
const SIZES: [usize; 5] = [100, 20_000, 100_000, MIB, 3_000_000];

/// Returns the peak of the bytes that are used, or free and perhaps written. The clock starts at one
/// hour.
fn peak(os: Faulty, sizes: &[usize], live: usize) -> (usize, World) {
    os.pass(HOUR_MS);
    let world = World::with(os, 1, 1, 1 << 30, &Config::BALANCED);
    let (verbs, mut local) = (world.verbs(), Local::new());
    let process = verbs.process;
    let mut peak = 0;
    for &size in sizes.iter().cycle().take(2 * sizes.len()) {
        let layout = Layout::from_size_align(size, 16).unwrap();
        let mut blocks = Vec::new();
        for number in 0..live / size {
            let block = verbs.alloc(&mut local, layout, false);
            assert!(!block.is_null());
            if process.memory_limit.is_due() || process.purger.has_work() {
                process.work(size, HOUR_MS);
            }
            blocks.push(block);
            if number * size % MIB < size {
                let used: u64 = process.arenas().map(|arena| arena.numbers().0).sum();
                peak = peak.max((used + process.idle_bytes()) as usize);
            }
        }
        for block in blocks {
            verbs.free(&mut local, block, layout);
        }
    }
    local.end(process);
    (peak, world)
}

#[test]
fn what_is_idle_never_grows_into_the_last_part_of_a_limit() {
    let os = Faulty::new(Plan::Willing);
    os.limit_memory(LIMIT);
    let (limited, world) = peak(os, &SIZES, LIMIT / 2);
    assert!(limited < LIMIT / 16 * 15, "{limited} bytes");
    assert_eq!(world.os.reads_of_limit(), 1, "its clock stands");
    world.end();
    let (free, world) = peak(Faulty::new(Plan::Willing), &SIZES, LIMIT / 2);
    assert!(free > LIMIT, "{free} bytes: the others need no room");
    world.end();
}

#[test]
fn small_blocks_that_were_freed_make_room_for_long_ones_before_the_limit_is_reached() {
    let os = Faulty::new(Plan::Willing);
    os.limit_memory(4 * LIMIT);
    let (peak, world) = peak(os, &[300, 3_000_000], 4 * LIMIT / 100 * 65);
    assert!(peak < 4 * LIMIT / 16 * 15, "{peak} bytes");
    world.end();
}

/// Returns the peak of the resident bytes of a program that frees half of its blocks at random and
/// allocates others of another length, again and again, and writes them. Of its long blocks 3 pages
/// are exactly the length of one.
fn most_resident(limit: Option<usize>, seed: usize, live: usize) -> usize {
    let os = Faulty::new(Plan::Willing);
    if let Some(limit) = limit {
        os.limit_memory(limit);
    }
    let world = World::with(os, 1, 1, 1 << 30, &Config::BALANCED);
    let (verbs, mut local, mut random) = (world.verbs(), Local::new(), Random(seed as u64));
    let process = verbs.process;
    let (mut blocks, mut held, mut most) = (Vec::new(), 0, 0);
    for size in [12_288, 49_152, 20_480, 12_288, 163_840, 28_672] {
        let layout = Layout::from_size_align(size, 16).unwrap();
        while held + size <= live {
            let block = verbs.alloc(&mut local, layout, false);
            assert!(!block.is_null());
            process.work(size, HOUR_MS);
            // SAFETY: that long.
            unsafe { block.write_bytes(1, size) };
            blocks.push((block, layout));
            held += size;
        }
        let resident = process.arenas().map(|arena| arena.resident_bytes());
        most = most.max(resident.sum::<Option<u64>>().unwrap() as usize);
        for _ in 0..blocks.len() / 2 {
            let (block, layout) = blocks.swap_remove(random.next(blocks.len()));
            verbs.free(&mut local, block, layout);
            held -= layout.size();
        }
    }
    for (block, layout) in blocks {
        verbs.free(&mut local, block, layout);
    }
    local.end(process);
    let splits = world.os.splits();
    assert_eq!(splits > 0, limit.is_some(), "{splits} huge pages");
    world.end();
    most
}

#[test]
fn what_was_freed_between_used_blocks_makes_room_before_the_limit_is_reached() {
    for seed in 1..4 {
        let most = most_resident(Some(LIMIT), seed, LIMIT / 20 * 17);
        assert!(most < LIMIT, "{seed}: {most} bytes");
        let free = most_resident(None, seed, LIMIT / 20 * 17);
        assert!(
            free > LIMIT,
            "{seed}: {free} bytes: the others need no room"
        );
    }
}

#[test]
fn no_huge_pages_are_wished_for_in_the_last_part_of_a_limit() {
    let advised = |limit: Option<usize>| {
        let os = Faulty::new(Plan::Willing);
        if let Some(limit) = limit {
            os.limit_memory(limit);
        }
        let world = World::with(os, 1, 1, 1 << 30, &Config::BALANCED);
        let process = world.verbs().process;
        let mut blocks = Vec::new();
        let wishes = [LIMIT, 2 * LIMIT].map(|until| {
            while world.os.committed_bytes() < until {
                let block = process.alloc_large(MIB, 16).unwrap();
                process.work(MIB, HOUR_MS);
                // SAFETY: that long.
                unsafe { block.as_ptr().write_bytes(1, MIB) };
                blocks.push(block);
            }
            world.os.calls(Call::Advise)
        });
        for block in blocks {
            assert!(process.free_large(block.as_ptr(), MIB));
        }
        world.end();
        wishes
    };
    let [before, after] = advised(None);
    assert!(before > 0 && after > before, "{before}, {after}");
    let [before, after] = advised(Some(LIMIT));
    assert!(before > 0 && after == before, "{before}, {after}");
}

/// Allocates and frees blocks, more bytes than are allocated between two checks. Returns the bytes
/// that stay idle.
fn idle(process: &'static Process<Below>, bytes: usize) -> usize {
    for _ in 0..8 {
        let block = process.alloc_large(bytes, 16).unwrap();
        assert!(process.free_large(block.as_ptr(), bytes));
    }
    while process.memory_limit.is_due() || process.purger.has_work() {
        process.work(0, 0);
    }
    process.idle_bytes() as usize
}

#[test]
fn a_limit_that_the_program_sets_is_seen_at_once_and_the_lower_one_counts() {
    let world = World::with(Faulty::new(Plan::Willing), 1, 1, 1 << 30, &Config::BALANCED);
    let process = world.verbs().process;
    let limit = &process.memory_limit;
    assert!(idle(process, 40 * MIB) >= 40 * MIB);
    limit.set_own(16 * MIB as u64);
    assert!(limit.is_due());
    assert!(idle(process, MIB) <= 14 * MIB);
    limit.set_own(u64::MAX);
    assert!(idle(process, 40 * MIB) >= 40 * MIB, "it has gone");
    limit.set_own(0);
    assert_eq!(idle(process, MIB), 0);
    world.os.limit_memory(16 * MIB);
    limit.set_own(LIMIT as u64);
    assert!(idle(process, 40 * MIB) <= 14 * MIB, "the system's");
    world.end();
}

#[test]
fn a_limit_that_changes_is_seen_after_a_second() {
    let os = Faulty::new(Plan::Willing);
    let world = World::with(os, 1, 1, 1 << 30, &Config::BALANCED);
    let process = world.verbs().process;
    let idle = |bytes: usize| idle(process, bytes);
    assert!(idle(40 * MIB) >= 40 * MIB);
    world.os.limit_memory(16 * MIB);
    assert!(idle(40 * MIB) >= 40 * MIB, "not yet");
    world.os.pass(2000);
    assert!(idle(40 * MIB) <= 14 * MIB);
    let block = process.alloc_large(16 * MIB, 16).unwrap();
    idle(MIB);
    assert!(process.memory_limit.under_pressure());
    world.os.limit_memory(usize::MAX);
    world.os.pass(2000);
    idle(MIB);
    assert!(!process.memory_limit.under_pressure(), "it has gone");
    assert!(process.free_large(block.as_ptr(), 16 * MIB));
    world.end();
}
