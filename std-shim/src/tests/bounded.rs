//! The bounded upkeep of one call, counted in calls of the system, and that all calls together do
//! all of it.

use super::directed::Directed;
use super::drive::World;
use super::faulty::{Call, Faulty, Plan};
use crate::config::Config;

const MIB: usize = 1 << 20;
const ARENA_BYTES: usize = 256 * MIB;
/// One step discards the free pages of 16 spans, each with two runs, or 16 pieces of an arena.
const MOST_DISCARDS: usize = 40;
/// Huge pages that one walk step over an arena splits.
const MOST_SPLITS: usize = 3;

fn with(config: &Config) -> Directed {
    let os = Faulty::new(Plan::Willing);
    Directed::new(World::with(os, 1, 1, ARENA_BYTES, config), 1)
}

/// Makes calls do the due work until there is none. Returns the number of calls that did any.
fn work(calls: &Directed) -> usize {
    let (process, os) = (calls.process(), calls.os());
    let mut count = 0;
    while process.purger.owes_ticks() {
        let before = (os.calls(Call::Discard), os.splits());
        process.work(0, 0);
        let discards = os.calls(Call::Discard) - before.0;
        assert!(discards <= MOST_DISCARDS, "{discards} in one call");
        let splits = os.splits() - before.1;
        assert!(splits <= MOST_SPLITS, "{splits} huge pages in one call");
        calls.world.assert_sound();
        count += 1;
    }
    count
}

#[test]
fn a_tick_that_calls_make_gives_all_back_though_no_call_gives_much() {
    let mut calls = with(&Config::BALANCED);
    let blocks = calls.make_all(0, 8000, 16 * MIB / 8192);
    let large = calls.make_all(0, 200_000, 100);
    let kept = calls.thin_out(0, blocks, 8);
    calls.free(0, large);
    let purger = &calls.process().purger;
    purger.owe_ticks(2, 0);
    let steps = work(&calls);
    assert!(steps > 16, "256 spans take more than {steps} calls");
    // The thread's cache keeps some blocks.
    let (idle, least) = (30 * MIB as u64, purger.purged_bytes());
    assert!(least > idle, "{least} bytes went back");
    calls.end(kept);
}

#[test]
fn no_step_splits_many_huge_pages_beside_a_limit() {
    // Most of the spans' memory goes, and a large block here and there.
    for (bytes, are_freed) in [(8000, 1..8), (200_000, 1..2)] {
        let mut calls = with(&Config::BALANCED);
        calls.os().limit_memory(64 * MIB);
        // Huge pages that were discarded whole may be faulted again, and are split again.
        for round in 0..2 {
            let mut blocks = Vec::new();
            for _ in 0..48 * MIB / bytes {
                blocks.push(calls.make(0, bytes));
                calls.process().work(bytes, 0);
            }
            let before = calls.os().splits();
            let (freed, kept): (Vec<_>, Vec<_>) = (blocks.into_iter().enumerate())
                .partition(|(number, _)| are_freed.contains(&(number % 8)));
            calls.free(0, freed.into_iter().map(|(_, held)| held));
            let process = calls.process();
            process.purger.owe_ticks(2, 0);
            work(&calls);
            let splits = calls.os().splits() - before;
            assert!(splits > 16, "{bytes} bytes, {round}: {splits} huge pages");
            calls.free(0, kept.into_iter().map(|(_, held)| held));
            process.trim();
        }
        calls.end([]);
    }
}

#[test]
fn no_look_follows_a_filter_that_comes_in_the_middle_of_a_tick() {
    for large in [true, false] {
        let mut calls = with(&Config::BALANCED);
        let (bytes, count) = if large { (200_000, 200) } else { (8000, 4000) };
        let blocks = calls.make_all(0, bytes, count);
        let kept = calls.thin_out(0, blocks, 8);
        let (process, os) = (calls.process(), calls.os());
        process.tick();
        process.purger.owe_ticks(2, 0);
        let before = os.calls(Call::Discard);
        while os.calls(Call::Discard) == before {
            process.work(0, 0);
        }
        os.be(|manner| manner.is_filtered = true);
        let (looks, discards) = (os.calls(Call::Look), os.calls(Call::Discard));
        assert!(looks > 0);
        assert!(work(&calls) > 0);
        assert!(os.calls(Call::Discard) > discards, "large: {large}");
        assert_eq!(os.calls(Call::Look), looks, "large: {large}");
        calls.end(kept);
    }
}

#[test]
fn growth_long_ago_gives_nothing_back_that_the_next_burst_takes() {
    let config = Config {
        background: false,
        ..Config::BALANCED
    };
    for (pause_ms, gives) in [(0, true), (10_000, false)] {
        let mut calls = with(&config);
        let blocks = calls.make_all(0, 8000, 16 * MIB / 8192);
        let kept = calls.thin_out(0, blocks, 8);
        let (process, os) = (calls.process(), calls.os());
        let before = os.calls(Call::Discard);
        for _ in 0..200 {
            process.work(0, pause_ms);
        }
        let discards = os.calls(Call::Discard) - before;
        assert_eq!(discards > 0, gives, "{pause_ms} ms: {discards}");
        calls.end(kept);
    }
}

#[test]
fn what_calls_have_begun_they_end_however_long_that_takes() {
    let mut calls = with(&Config::BALANCED);
    let large = calls.make_all(0, 200_000, 200);
    calls.free(0, large);
    let process = calls.process();
    process.purger.owe_ticks(2, 0);
    for call in 0..100 {
        process.work(0, 100 * call);
    }
    let purged = process.purger.purged_bytes();
    assert!(purged > 38 * MIB as u64, "{purged} bytes");
    calls.end([]);
}

#[test]
fn a_process_that_forks_in_the_middle_of_a_tick_goes_on_with_it() {
    let mut calls = with(&Config::BALANCED);
    let large = calls.make_all(0, 200_000, 200);
    calls.free(0, large);
    let process = calls.process();
    process.purger.owe_ticks(2, 0);
    process.work(0, 0);
    // SAFETY: the thread holds no lock of the process.
    unsafe { process.lock_all() };
    // SAFETY: locked just now.
    unsafe { process.unlock_all() };
    work(&calls);
    assert!(process.purger.purged_bytes() > 38 * MIB as u64);
    // Where the advice for huge pages was withdrawn, one more tick scans again.
    process.tick();
    assert!(!process.has_idle());
    calls.end([]);
}
