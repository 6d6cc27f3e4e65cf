//! Ticks: idle memory is returned at the second one, used memory never is, and refusals of the
//! system do no harm.

use std::collections::{BTreeSet, VecDeque};

use larder_core::small::SizeClass;
use larder_core::sync::Ordering;

use super::directed::Directed;
use super::drive::World;
use super::faulty::{Call, Faulty, Plan};
use super::verbs::ClaimOutcome;
use crate::config::Config;
use crate::thread::local::Local;

/// Makes up for growth of `bytes` bytes, in as many steps as it takes.
fn make_up(ticks: &Directed, bytes: u64) {
    let process = ticks.process();
    process.work.with(|work| {
        work.growth.begin(bytes);
        while process.work_some(work, 0) {}
    });
}

const MIB: usize = 1 << 20;

#[test]
fn a_large_block_goes_back_at_the_second_tick_after_its_free() {
    let mut ticks = Directed::under(Plan::Willing);
    let blocks = [ticks.make(0, 3 * MIB), ticks.make(0, 2 * MIB)];
    ticks.tick();
    ticks.tick();
    assert_eq!(ticks.purged(), 0, "it is in use");
    let [first, second] = blocks;
    ticks.free(0, [first]);
    assert!(ticks.has_idle());
    assert!(ticks.stats().retained_bytes >= 3 * MIB as u64);
    ticks.tick();
    assert_eq!(ticks.purged(), 0, "it is young");
    ticks.free(0, [second]);
    ticks.tick();
    assert_eq!(ticks.purged(), 3 * MIB as u64, "the second one is young");
    assert!(ticks.has_idle(), "it expires");
    ticks.tick();
    assert_eq!(ticks.purged(), 5 * MIB as u64);
    assert_eq!(ticks.stats().retained_bytes, 0);
    ticks.falls_idle();
    ticks.end([]);
}

const LONG: [usize; 4] = [2000, 9000, 40_000, 120_000];

/// Makes thread 1 free some long blocks, and checks that it caches each.
fn keep_long_blocks(ticks: &mut Directed) {
    let blocks = LONG.map(|bytes| ticks.make(1, bytes));
    ticks.free(1, blocks);
    assert_eq!(long_blocks_kept(ticks), [true; 4]);
}

/// Returns which of those lengths thread 1 has cached.
fn long_blocks_kept(ticks: &Directed) -> [bool; 4] {
    LONG.map(|bytes| ticks.ready(1, bytes) > 0)
}

#[test]
fn what_a_thread_keeps_of_long_blocks_and_does_not_use_goes_at_the_second_tick() {
    for primaries in [2, 1] {
        let mut ticks = Directed::under(Plan::Willing);
        ticks.process().share_after(primaries);
        // Of two threads the second one shares a set, if one has it.
        let small = ticks.make(0, 100);
        keep_long_blocks(&mut ticks);
        ticks.tick();
        assert_eq!(long_blocks_kept(&ticks), [true; 4], "it may be used");
        ticks.tick();
        assert_eq!(long_blocks_kept(&ticks), [false; 4]);
        // The thread continues as if nothing had happened.
        keep_long_blocks(&mut ticks);
        ticks.end([small]);
    }
}

#[test]
fn a_thread_that_uses_its_long_blocks_keeps_them() {
    let mut ticks = Directed::under(Plan::Willing);
    keep_long_blocks(&mut ticks);
    let mut held = None;
    for _ in 0..6 {
        ticks.tick();
        assert!(long_blocks_kept(&ticks)[0]);
        match held.take() {
            Some(block) => ticks.free(1, [block]),
            None => held = Some(ticks.make(1, LONG[3])),
        }
    }
    ticks.end([]);
}

#[test]
fn a_trim_takes_what_threads_keep_of_long_blocks() {
    let mut ticks = Directed::under(Plan::Willing);
    keep_long_blocks(&mut ticks);
    assert!(ticks.process().trim() > 0);
    assert_eq!(long_blocks_kept(&ticks), [false; 4]);
    ticks.end([]);
}

#[test]
fn without_a_barrier_threads_keep_what_they_have() {
    let mut ticks = Directed::under(Plan::Willing);
    ticks.os().be(|manner| manner.has_barrier = false);
    keep_long_blocks(&mut ticks);
    ticks.tick();
    ticks.tick();
    ticks.process().trim();
    assert_eq!(long_blocks_kept(&ticks), [true; 4]);
    ticks.end([]);
}

#[test]
fn growth_takes_as_much_from_what_lies_idle_however_young() {
    let mut ticks = Directed::under(Plan::Willing);
    let [first, second, kept] = [5, 5, 1].map(|mib| ticks.make(0, mib * MIB));
    ticks.free(0, [first]);
    let between = ticks.make_all(0, 20_000, 2 * MIB / 20_000);
    ticks.free(0, [second]);
    make_up(&ticks, MIB as u64);
    let some = ticks.purged();
    assert!(some >= MIB as u64 && some < 8 * MIB as u64, "{some}");
    ticks.free(0, between);
    let idle = ticks.stats().retained_bytes;
    make_up(&ticks, 100 * MIB as u64);
    assert_eq!(ticks.stats().retained_bytes, 0);
    let all = ticks.purged();
    assert!(all >= some + idle, "spans without a used block, too: {all}");
    ticks.end([kept]);
}

#[test]
fn where_memory_comes_first_growth_is_to_be_made_up_for_though_there_is_a_thread() {
    for (config, makes_up) in [(Config::MEMORY, true), (Config::BALANCED, false)] {
        let os = Faulty::new(Plan::Willing);
        let mut ticks = Directed::new(World::with(os, 1, 1, 64 * MIB, &config), 2);
        let blocks = ticks.make_all(0, 3 * MIB, 4);
        let grown = ticks.process().purger.take_grown(u64::MAX);
        assert_eq!(grown > 0, makes_up, "{grown}");
        ticks.end(blocks);
    }
}

#[test]
fn small_blocks_go_back_at_the_second_tick_whoever_freed_them() {
    for (thread, ends) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut ticks = Directed::under(Plan::Willing);
        let mut blocks = Vec::new();
        for size in [48, 800, 9000, 40_000] {
            blocks.extend(ticks.make_all(0, size, 2 * MIB / size));
        }
        let max = ticks.stats();
        assert!(max.span_bytes > 8 * MIB as u64);
        // Mixed, so that lists have blocks of many spans.
        let (even, odd): (Vec<_>, Vec<_>) =
            (blocks.into_iter().enumerate()).partition(|(number, _)| number % 2 == 0);
        let all = even.into_iter().chain(odd);
        ticks.free(thread, all.map(|(_, held)| held));
        if ends {
            let process = ticks.process();
            ticks
                .threads
                .iter_mut()
                .for_each(|local| local.end(process));
        }
        ticks.tick();
        assert_eq!(ticks.purged(), 0, "all of it is young");
        ticks.tick();
        let (left, purged) = (ticks.stats(), ticks.purged());
        // Blocks in a running thread's cache keep spans in use.
        let kept = if ends { 0 } else { 2 * MIB as u64 };
        assert!(left.span_bytes <= kept, "{thread} {ends}: {left:?}");
        assert!(left.retained_bytes == 0, "{thread} {ends}: {left:?}");
        // Memory cut into blocks and not written was never resident.
        assert!(purged + kept >= max.live_bytes, "{thread} {ends}");
        ticks.falls_idle();
        ticks.end([]);
    }
}

/// Returns the bytes at the starts of blocks.
fn contents(starts: &[*mut u8]) -> Vec<[u8; 16]> {
    // SAFETY: blocks that were longer, in spans of which others are in use.
    let read = |start: &*mut u8| unsafe { start.cast::<[u8; 16]>().read() };
    starts.iter().map(read).collect()
}

#[test]
fn ticks_in_the_child_of_a_fork_touch_no_block_that_was_idle_before() {
    child_leaves_alone_what_is_idle(0);
}

#[test]
fn the_child_of_a_fork_in_the_middle_of_a_tick_does_not_go_on_with_it() {
    for steps in [3, 10] {
        child_leaves_alone_what_is_idle(steps);
    }
}

/// Forks after `steps` steps of ticks in the parent.
fn child_leaves_alone_what_is_idle(steps: usize) {
    let mut ticks = Directed::under(Plan::Willing);
    let mut idle = Vec::new();
    let mut kept = Vec::new();
    for (thread, size) in [(0, 48), (0, 800), (1, 100), (1, 3000)] {
        let blocks = ticks.make_all(thread, size, MIB / size);
        for (number, held) in blocks.into_iter().enumerate() {
            if number % 3 == 0 {
                idle.push(held.start);
                ticks.free(thread, [held]);
            } else {
                kept.push(held);
            }
        }
    }
    let process = ticks.process();
    process.purger.owe_ticks(2, 0);
    for _ in 0..steps {
        process.work(0, 0);
    }
    assert!(process.purger.owes_ticks());
    // Thread 1 does not exist in the child.
    // SAFETY: one thread has all the parts, and that one is never used again.
    unsafe { process.pool.park_orphans(ticks.threads[0].heap()) };
    *ticks.threads[1] = Local::new();
    process.forked.store(1, Ordering::Relaxed);
    let before = contents(&idle);
    for _ in 0..4 {
        ticks.tick();
    }
    assert!(contents(&idle) == before);
    ticks.falls_idle();
    // Memory that the child uses is returned as usual.
    let purged = ticks.purged();
    let blocks = ticks.make_all(0, 9000, 4 * MIB / 9000);
    ticks.free(0, blocks);
    for _ in 0..3 {
        ticks.tick();
    }
    assert!(ticks.purged() - purged > 3 * MIB as u64);
    ticks.end(kept);
}

#[test]
fn what_is_needed_again_between_ticks_is_never_given_back() {
    let mut ticks = Directed::under(Plan::Willing);
    let mut before = 0;
    for round in 0..40 {
        let mut blocks: Vec<_> = (0..6).map(|_| ticks.make(0, MIB)).collect();
        for size in [64, 1000, 20_000] {
            blocks.extend(ticks.make_all(0, size, MIB / size));
        }
        ticks.free(0, blocks);
        ticks.tick();
        if round == 2 {
            before = ticks.os().calls(Call::Discard);
        }
    }
    assert_eq!(ticks.os().calls(Call::Discard), before);
    ticks.tick();
    ticks.tick();
    assert!(ticks.purged() > 6 * MIB as u64, "it was there to be given");
    ticks.end([]);
}

#[test]
fn what_the_system_does_not_take_stays_until_it_does_and_keeps_nobody_awake() {
    let mut ticks = Directed::under(Plan::From(Call::Discard, 1));
    let blocks = ticks.make_all(0, 300_000, 4 * MIB / 300_000);
    ticks.free(0, blocks);
    for _ in 0..3 {
        ticks.tick();
    }
    assert!(ticks.os().calls(Call::Discard) > 0);
    assert_eq!(ticks.purged(), 0);
    assert!(ticks.stats().retained_bytes >= 3 * MIB as u64);
    assert!(!ticks.has_idle(), "nothing that a tick could do");
    ticks.os().follow(Plan::Willing);
    ticks.tick();
    // Some refusals come when half of the memory was returned.
    assert!(ticks.purged() >= MIB as u64);
    assert_eq!(ticks.stats().retained_bytes, 0);
    ticks.end([]);
}

#[test]
fn holes_between_blocks_go_back_and_the_blocks_stay() {
    let mut ticks = Directed::under(Plan::Willing);
    let mut kept = Vec::new();
    // More chunks than one walk step takes, and more pieces than are taken at a time.
    for number in 0..200 {
        let held = ticks.make(0, 140_000);
        if number % 2 == 0 {
            kept.push(held);
        } else {
            ticks.threads.swap(0, 1);
            let hole = kept.pop().unwrap();
            kept.push(held);
            ticks.free(0, [hole]);
        }
    }
    ticks.tick();
    ticks.tick();
    assert_eq!(ticks.stats().retained_bytes, 0);
    ticks.end(kept);
}

/// Allocates blocks of a size and frees all but every `every`-th. Returns those kept, and the bytes
/// of the pages without a byte of them.
fn with_gaps(
    ticks: &mut Directed,
    size: usize,
    every: usize,
    page_bytes: usize,
) -> (Vec<ClaimOutcome>, u64) {
    let page = |held: &ClaimOutcome, byte: usize| (held.start.addr() + byte) / page_bytes;
    let pages_of = |all: &[ClaimOutcome]| -> BTreeSet<usize> {
        let pages = |held| page(held, 0)..=page(held, held.layout.size() - 1);
        all.iter().flat_map(pages).collect()
    };
    let blocks = ticks.make_all(0, size, 4 * MIB / size);
    let touched = pages_of(&blocks);
    let kept = ticks.thin_out(0, blocks, every);
    // Prevents bins from caching blocks.
    ticks.restart(0);
    let free = touched.len() - pages_of(&kept).len();
    (kept, (free * page_bytes) as u64)
}

#[test]
fn pages_between_blocks_in_use_go_back_and_serve_again() {
    for page_bytes in [4 << 10, 16 << 10] {
        // 4 MiB of either fill their spans to the last block.
        for (size, every) in [(64, 900), (64, 200), (1024, 40)] {
            let faulty = Faulty::with_pages(Plan::Willing, page_bytes);
            let mut ticks = Directed::new(World::over(faulty, 1, 1), 2);
            let (kept, free) = with_gaps(&mut ticks, size, every, page_bytes);
            let spans = ticks.stats().span_bytes;
            ticks.tick();
            assert_eq!(ticks.purged(), 0, "{size}: it is young");
            ticks.tick();
            assert_eq!(ticks.purged(), free, "{size}, 1 of {every}, {page_bytes}");
            ticks.falls_idle();
            assert_eq!(
                ticks.stats().span_bytes,
                spans,
                "every span has a block in use"
            );
            // All of it is free for other blocks, more than caches and transfer caches could hold.
            let again = ticks.make_all(0, size, (4 * MIB - kept.len() * size) / size);
            assert_eq!(ticks.stats().span_bytes, spans);
            ticks.end(again.into_iter().chain(kept));
        }
    }
}

#[test]
fn pages_in_use_again_before_the_second_tick_stay() {
    let mut ticks = Directed::under(Plan::Willing);
    let (kept, free) = with_gaps(&mut ticks, 64, 1000, 4096);
    assert!(free > MIB as u64);
    for _ in 0..5 {
        ticks.tick();
        let again = ticks.make_all(0, 64, (4 * MIB - kept.len() * 64) / 64);
        ticks.free(0, again);
        ticks.restart(0);
    }
    assert_eq!(ticks.purged(), 0);
    ticks.end(kept);
}

#[test]
fn a_trim_takes_pages_between_blocks_at_once() {
    let mut ticks = Directed::under(Plan::Willing);
    let (kept, free) = with_gaps(&mut ticks, 1024, 40, 4096);
    let given = ticks.process().trim();
    assert!(given >= free, "{given} of {free}");
    assert_eq!(ticks.process().trim(), 0, "there was no more");
    ticks.end(kept);
}

#[test]
fn pages_that_the_system_does_not_take_serve_again() {
    let mut ticks = Directed::under(Plan::From(Call::Discard, 1));
    let (kept, _) = with_gaps(&mut ticks, 64, 200, 4096);
    let spans = ticks.stats().span_bytes;
    for _ in 0..3 {
        ticks.tick();
    }
    assert!(ticks.os().calls(Call::Discard) > 0);
    assert_eq!(ticks.purged(), 0);
    assert!(!ticks.has_idle(), "nothing that a tick could do");
    let again = ticks.make_all(0, 64, (4 * MIB - kept.len() * 64) / 64);
    assert_eq!(ticks.stats().span_bytes, spans);
    ticks.free(0, again);
    ticks.end(kept);
}

#[test]
fn a_cache_that_is_emptied_now_and_then_lets_spans_drain_through_which_blocks_circulate() {
    const SIZE: usize = 512;
    /// Returns the bytes of the class's spans when all blocks but one in 16 were freed, and when
    /// each of those has been replaced several times while `ms` milliseconds pass.
    fn spans(ms: u64) -> (u64, u64) {
        let mut ticks = Directed::under(Plan::Willing);
        let class = SizeClass::of(SIZE, 8).unwrap();
        let bytes = |ticks: &Directed| ticks.stats().classes[class.index()].span_bytes;
        let blocks = ticks.make_all(0, SIZE, MIB / SIZE);
        let mut held = VecDeque::from(ticks.thin_out(0, blocks, 16));
        // Blocks in transfer caches are returned.
        (0..2).for_each(|_| ticks.tick());
        let before = bytes(&ticks);
        for number in 0..20 {
            let oldest: Vec<_> = held.drain(..held.len() / 4).collect();
            let new = oldest.len();
            ticks.free(0, oldest);
            ticks.os().pass(ms);
            // A slow path, by a class that has not been used.
            let other = ticks.make(0, SIZE + 16 * (number + 1));
            held.extend((0..new).map(|_| ticks.make(0, SIZE)));
            ticks.free(0, [other]);
        }
        let after = bytes(&ticks);
        ticks.end(held);
        (before, after)
    }
    let (before, after) = spans(200);
    assert!(after <= before / 4, "{before} {after}");
    assert_eq!(spans(0), (before, before), "the time does it");
}

#[test]
fn a_new_thread_has_what_the_last_one_kept_however_long_ago_that_was() {
    const SIZE: usize = 512;
    let mut ticks = Directed::under(Plan::Willing);
    let held = ticks.make_all(0, SIZE, (16 << 10) / SIZE);
    ticks.free(0, held);
    let kept = ticks.ready(0, SIZE);
    assert!(kept > 0);
    ticks.restart(0);
    ticks.os().pass(10_000);
    let other = ticks.make(0, 2 * SIZE);
    assert_eq!(ticks.ready(0, SIZE), kept);
    ticks.end([other]);
}

#[test]
fn where_commits_count_an_idle_end_of_the_range_is_decommitted_too() {
    for counts in [false, true] {
        let mut ticks = Directed::under(Plan::Willing);
        let os = ticks.os();
        if counts {
            os.be(|manner| manner.counts_commits = true);
        }
        let kept = ticks.make(0, 500_000);
        let short = os.committed_bytes();
        let many = ticks.make_all(0, 500_000, 6);
        let long = os.committed_bytes();
        assert_eq!(long, short + (2 << 20));
        ticks.free(0, many);
        // Young at the first tick.
        ticks.tick();
        assert_eq!(os.committed_bytes(), long);
        ticks.tick();
        assert_eq!(os.committed_bytes(), if counts { short } else { long });
        let again = ticks.make_all(0, 500_000, 6);
        assert_eq!(os.committed_bytes(), long);
        ticks.free(0, again);
        ticks.end([kept]);
    }
}
