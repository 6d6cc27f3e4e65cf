//! Random programs on a heap whose system refuses: the result is a block or null, and nothing is
//! lost.

use std::alloc::Layout;
use std::mem;
use std::thread;

use larder_core::Locked;

use super::drive::{ARENA_BYTES, World};
use super::faulty::{CALLS, Call, Faulty, Plan};
use super::verbs::{ClaimOutcome, Random, Verbs, some_layout};
use crate::config::{Config, HugePages};
use crate::thread::local::Local;
use crate::thread::wait::Sleep;

/// Number of operations of a program in the exhaustive tests.
const SHORT: usize = 260;
const SEED: u64 = 1;

/// Page lengths of existing systems.
const PAGES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

/// Runs a program under a plan. Returns how many calls of a kind it made, and how many null
/// results.
fn program(plan: Plan, seed: u64, operations: usize) -> ([usize; CALLS], usize) {
    program_over(Faulty::new(plan), seed, operations)
}

fn program_over(os: Faulty, seed: u64, operations: usize) -> ([usize; CALLS], usize) {
    let mut world = World::over(os, seed, 3);
    world.run(operations);
    let counts = (Call::ALL.map(|call| world.os.calls(call)), world.nulls);
    world.end();
    counts
}

/// Returns every third place where a call may be refused, or each with `LARDER_FAULTS=all`
/// (`./check.sh long`).
fn places(calls: usize) -> impl Iterator<Item = usize> {
    let is_long = std::env::var_os("LARDER_FAULTS").is_some_and(|word| word == "all");
    (1..=calls).step_by(if is_long { 1 } else { 3 })
}

/// Refuses each call of a kind in turn, alone and with all that follow.
fn refuse_each(call: Call) {
    let calls_of = |seed| {
        let (calls, nulls) = program(Plan::Willing, seed, SHORT);
        assert_eq!(nulls, 0);
        calls[call as usize]
    };
    let enough = |seed: &u64| calls_of(*seed) > 4;
    let seed = (SEED..SEED + 20).find(enough);
    let seed = seed.expect("a program that makes enough calls to tell");
    for n in places(calls_of(seed)) {
        program(Plan::Once(call, n), seed, SHORT);
        program(Plan::From(call, n), seed, SHORT);
    }
}

#[test]
fn over_a_willing_system_every_request_is_served_and_nothing_is_lost() {
    for seed in 1..=5 {
        let (calls, nulls) = program(Plan::Willing, seed, 3000);
        assert_eq!(nulls, 0, "seed {seed}");
        assert!(
            Call::ALL.iter().zip(calls).all(|(call, count)| count > 0
                || *call == Call::Move
                || cfg!(not(any(target_os = "linux", target_os = "android")))
                    && *call == Call::Advise),
            "seed {seed}: {calls:?}"
        );
    }
}

#[test]
fn pages_of_any_length_are_handled_whole() {
    for page_bytes in PAGES {
        for plan in [Plan::Willing, Plan::Random { seed: 3, one_in: 5 }] {
            for seed in 1..=3 {
                let os = Faulty::with_pages(plan, page_bytes);
                let (calls, nulls) = program_over(os, seed, 1500);
                assert!(plan != Plan::Willing || nulls == 0, "{page_bytes}: {seed}");
                // Advice depends on how much of the memory is used; moves are covered in `moving`.
                let needed = Call::ALL.iter().zip(calls);
                let made = needed.filter(|(call, count)| {
                    matches!(call, Call::Advise | Call::Look | Call::Move) || *count > 0
                });
                assert_eq!(made.count(), CALLS, "{page_bytes}, {seed}: {calls:?}");
            }
        }
    }
}

#[test]
fn a_hardened_heap_masks_its_links_and_loses_nothing() {
    let config = Config {
        huge_pages: HugePages::Above(0),
        ..Config::HARDENED
    };
    for plan in [Plan::Willing, Plan::Random { seed: 3, one_in: 5 }] {
        for seed in 1..=3 {
            // The second and third thread share a set.
            let mut world = World::with(Faulty::new(plan), seed, 3, ARENA_BYTES, &config);
            world.verbs().process.share_after(1);
            world.run(3000);
            assert!(plan != Plan::Willing || world.nulls == 0, "{seed}");
            world.end();
        }
    }
    let mut world = World::with(Faulty::new(Plan::Willing), SEED, 1, ARENA_BYTES, &config);
    let (verbs, layout) = (world.verbs(), Layout::new::<[usize; 4]>());
    let mut local = Local::new();
    let blocks: [_; 8] = std::array::from_fn(|_| verbs.alloc(&mut local, layout, true));
    for &block in &blocks {
        verbs.free(&mut local, block, layout);
    }
    for &block in &blocks {
        // SAFETY: memory of the arena, which is not used just now.
        let word = unsafe { block.cast::<usize>().read() };
        assert!(word.abs_diff(block.addr()) > 1 << 40, "{word:#x} {block:p}");
    }
    local.end(verbs.process);
    world.run(100);
    world.end();
}

#[test]
fn any_refused_reserve_is_survived() {
    refuse_each(Call::Reserve);
}

#[test]
fn any_refused_commit_is_survived() {
    refuse_each(Call::Commit);
}

#[test]
fn any_refused_decommit_is_survived() {
    refuse_each(Call::Decommit);
}

#[test]
fn any_refused_discard_is_survived() {
    refuse_each(Call::Discard);
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn refused_wishes_for_huge_pages_are_survived() {
    program(Plan::From(Call::Advise, 1), SEED, SHORT);
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn a_system_that_does_not_say_what_is_resident_is_survived() {
    program(Plan::From(Call::Look, 1), SEED, SHORT);
    program(Plan::From(Call::Look, 3), SEED, SHORT);
}

#[test]
fn a_system_that_refuses_everything_from_some_call_on_is_survived() {
    let (calls, _) = program(Plan::Willing, SEED, SHORT);
    let mut nulls = 0;
    for n in places(calls.iter().sum()) {
        nulls += program(Plan::AllFrom(n), SEED, SHORT).1;
    }
    assert!(nulls > 0, "no plan had an effect");
}

#[test]
fn random_refusals_are_survived() {
    let mut nulls = 0;
    for seed in 1..=12 {
        let one_in = [2, 3, 5, 20][seed as usize % 4];
        nulls += program(Plan::Random { seed, one_in }, seed, 1000).1;
    }
    assert!(nulls > 0, "no plan had an effect");
}

#[test]
fn limits_on_addresses_and_on_memory_give_null_and_are_survived() {
    for seed in 1..=4 {
        for (reserved, committed) in [
            (11 << 20, usize::MAX),
            (usize::MAX, 7 << 20),
            (9 << 20, 5 << 20),
        ] {
            let mut world = World::new(Plan::Willing, seed, 2);
            world.os.limit(reserved, committed);
            world.run(1200);
            assert!(world.nulls > 0, "the limit had no effect");
            assert!(world.os.reserved_bytes() <= reserved);
            assert!(world.os.committed_bytes() <= committed);
            // Once the limits are gone every request is served again.
            world.os.limit(usize::MAX, usize::MAX);
            let nulls = world.nulls;
            world.run(600);
            assert_eq!(world.nulls, nulls);
            world.end();
        }
    }
}

#[test]
fn tables_are_committed_as_the_range_grows() {
    const BLOCK: usize = 48 << 20;
    let world = World::with(
        Faulty::new(Plan::Willing),
        1,
        1,
        64 << 30,
        &Config::BALANCED,
    );
    let process = world.verbs().process;
    let mut blocks = Vec::new();
    for count in 1..=12 {
        blocks.push(process.alloc_large(BLOCK, 16).unwrap());
        // Growth goes ahead by a 16th, the tables by a megabyte, and they take less than a 200th of the range.
        let held = count * (BLOCK + BLOCK / 16 + BLOCK / 200) + (6 << 20);
        assert!(world.os.committed_bytes() <= held, "{count} blocks");
        world.assert_sound();
    }
    for block in blocks {
        assert!(process.free_large(block.as_ptr(), BLOCK));
    }
    world.end();
}

#[test]
fn an_address_where_nothing_was_ever_held_is_no_block_and_no_table_is_written_for_it() {
    const BLOCK: usize = 100_000;
    let world = World::with(
        Faulty::new(Plan::Willing),
        1,
        1,
        64 << 30,
        &Config::BALANCED,
    );
    let process = world.verbs().process;
    let block = process.alloc_large(BLOCK, 16).unwrap().as_ptr();
    for at in (0..63 << 30).step_by(1 << 30).skip(1) {
        assert!(!process.free_large(block.wrapping_add(at), BLOCK));
    }
    assert!(process.free_large(block, BLOCK));
    world.end();
}

#[test]
fn where_commits_count_arenas_double_so_that_tables_stay_short() {
    const GIB: usize = 1 << 30;
    const BLOCK: usize = 48 << 20;
    let os = Faulty::new(Plan::Willing);
    os.be(|manner| manner.counts_commits = true);
    let world = World::with(os, 1, 1, 64 * GIB, &Config::BALANCED);
    let process = world.verbs().process;
    let mut blocks = vec![process.alloc_large(BLOCK, 16).unwrap()];
    // Tables take less than a 200th of their range. The first growth is the block's.
    assert!(world.os.committed_bytes() <= BLOCK + GIB / 200);
    while process.arenas().count() < 4 {
        blocks.push(process.alloc_large(BLOCK, 16).unwrap());
    }
    let arenas: Vec<_> = process.arenas().map(|arena| arena.bytes() / GIB).collect();
    assert_eq!(arenas, [1, 1, 2, 4]);
    for block in blocks {
        assert!(process.free_large(block.as_ptr(), BLOCK));
    }
    world.end();
}

#[test]
fn before_a_block_that_is_aligned_coarsely_nothing_is_committed() {
    for counts in [false, true] {
        let os = Faulty::new(Plan::Willing);
        if counts {
            os.be(|manner| manner.counts_commits = true);
        }
        let world = World::with(os, 1, 1, 64 << 30, &Config::BALANCED);
        let process = world.verbs().process;
        let first = process.alloc_large(100_000, 16).unwrap().as_ptr();
        // In both a mapping may be that long.
        let (align, committed) = (1 << 30, world.os.committed_bytes());
        let aligned = process.alloc_large(100, align).unwrap().as_ptr();
        assert!(aligned.addr().is_multiple_of(align));
        assert!(world.os.committed_bytes() <= committed + (2 << 20));
        assert!(process.free_large(aligned, 100));
        assert_eq!(world.os.committed_bytes(), committed);
        assert!(process.free_large(first, 100_000));
        world.end();
    }
}

/// Blocks sent to a thread and not yet received. The thread sanitizer sees this kind of lock, and
/// not the standard library's.
type Inbox = Locked<Vec<ClaimOutcome>, Sleep>;

fn take(inbox: &Inbox) -> Vec<ClaimOutcome> {
    inbox.with(mem::take)
}

/// Runs one of a program's threads: blocks go to any of them, so a span gets blocks back from all.
fn shuffle(verbs: Verbs, seed: u64, inboxes: &[Inbox], mine: &Inbox) {
    let mut random = Random(seed * 2 + 1);
    let mut local = Local::new();
    for _ in 0..3000 {
        for held in take(mine) {
            held.check(held.layout.size());
            verbs.free(&mut local, held.start, held.layout);
        }
        let layout = match random.next(3) {
            0 => some_layout(&mut random),
            _ => Layout::new::<[u64; 6]>(),
        };
        let start = verbs.alloc(&mut local, layout, false);
        if !start.is_null() {
            let fill = random.next(255) as u8 + 1;
            let held = ClaimOutcome::new(start, layout, fill);
            let to = &inboxes[random.next(inboxes.len())];
            to.with(|inbox| inbox.push(held));
        }
        match random.next(300) {
            0 => drop(verbs.process.trim()),
            2..4 => verbs.process.tick(),
            1 => {
                local.end(verbs.process);
                local = Local::new();
            }
            _ => {}
        }
    }
    local.end(verbs.process);
}

#[test]
fn several_threads_over_a_system_that_refuses_at_random_lose_nothing() {
    for (seed, plan) in [(1, Plan::Willing), (2, Plan::Random { seed: 2, one_in: 4 })] {
        let world = World::new(plan, seed, 1);
        let verbs = world.verbs();
        let inboxes = [const { Inbox::new(Vec::new()) }; 3];
        thread::scope(|scope| {
            for number in 0..3 {
                let (mine, all) = (&inboxes[number], &inboxes);
                scope.spawn(move || shuffle(verbs, seed * 10 + number as u64, all, mine));
            }
        });
        let mut local = Local::new();
        for held in inboxes.iter().flat_map(take) {
            held.check(held.layout.size());
            verbs.free(&mut local, held.start, held.layout);
        }
        local.end(verbs.process);
        world.end();
    }
}

#[test]
fn blocks_that_several_threads_free_at_once_come_back_while_their_owner_goes_on() {
    let world = World::new(Plan::Willing, 1, 1);
    let (verbs, mut owner) = (world.verbs(), Local::new());
    let layout = Layout::new::<[u8; 1000]>();
    let mut some = |fill: usize| {
        let start = verbs.alloc(&mut owner, layout, false);
        ClaimOutcome::new(start, layout, fill as u8 | 1)
    };
    // Dealt out like cards, so that each span has blocks in every hand.
    let mut hands: [Vec<ClaimOutcome>; 3] = Default::default();
    for number in 0..6000 {
        hands[number % 3].push(some(number));
    }
    let mut mine = Vec::new();
    thread::scope(|scope| {
        for hand in hands {
            // From here on only locks of the heap are taken.
            scope.spawn(move || {
                let mut local = Local::new();
                for held in hand {
                    held.check(held.layout.size());
                    verbs.free(&mut local, held.start, held.layout);
                }
                local.end(verbs.process);
            });
        }
        mine.extend((0..6000).map(&mut some));
    });
    for held in mine {
        held.check(held.layout.size());
        verbs.free(&mut owner, held.start, held.layout);
    }
    owner.end(verbs.process);
    world.end();
}
