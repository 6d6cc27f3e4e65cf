//! Sub-allocators whose ranges are not adjacent, too long, too short, or break a promise.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::rc::Rc;

use super::{BASE, GRANULE, out_of_memory, ranged};
use crate::common::{Call, GIB, KIB, MIB, Pool, Random, Source, assert_disjoint, range};
use larder_core::{AllocError, Block, Cause, Growth, RegionConfig, Request};

#[test]
fn answers_that_are_not_adjacent_become_regions_and_cost_at_most_two_calls() {
    let mut pool = Pool::new(ranged(GIB));
    let _small = pool.alloc(GRANULE);
    pool.source().take_log();
    // 63.75 KiB are free at the end, but what is asked for to go with them lies elsewhere.
    let _large = pool.alloc(96 * KIB);
    let calls = pool.source().take_log();
    assert!(calls.len() <= 2, "{calls:?}");
    assert!(pool.reserved_bytes() <= (64 + 128 + 128) * KIB);
    assert!(pool.regions().len() <= 3);
}

#[test]
fn a_source_that_is_adjacent_now_and_then_neither_hoards_nor_loses() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut pool = Pool::over(ranged(16 * MIB), Source::contiguous(), 1024);
        let mut live: Vec<Block> = Vec::new();
        for _ in 0..200 {
            pool.source().contiguous.set(random.below(2) == 0);
            match random.below(8) {
                0..4 => {
                    let log2 = random.below(20);
                    pool.source().take_log();
                    live.extend(pool.try_alloc(1 + random.below(1 << log2)));
                    let grows = pool.source().take_log();
                    let grows = grows.iter().filter(|call| matches!(call, Call::Grow(_)));
                    assert!(grows.count() <= 2);
                }
                4..7 if !live.is_empty() => {
                    let i = random.index(live.len());
                    pool.free(live.swap_remove(i));
                }
                _ => drop(pool.trim()),
            }
            assert_disjoint(&live);
            assert_eq!(pool.reserved_bytes(), pool.source().out_bytes());
        }
        pool.free_all(live);
        pool.trim();
        assert_eq!((pool.reserved_bytes(), pool.source().out_bytes()), (0, 0));
    }
}

/// An allocator with one block, over a source that from now on answers with what `f` makes of the
/// wished bytes; more than 100 answers are taken for a hang.
fn broken(config: RegionConfig, f: fn(u64) -> (u64, u64)) -> (Pool, Rc<Cell<u32>>) {
    let mut pool = Pool::new(config);
    let _block = pool.alloc(64 * KIB);
    let calls = Rc::new(Cell::new(0));
    let counter = Rc::clone(&calls);
    pool.source().answer_by(move |request| {
        counter.set(counter.get() + 1);
        assert!(
            counter.get() < 100,
            "the same answer is asked for again and again"
        );
        let (start, bytes) = f(request.bytes);
        Ok(range(start, bytes))
    });
    (pool, calls)
}

fn growing_configs(limit: u64) -> [RegionConfig; 2] {
    let collecting = ranged(limit);
    let collect_regions = false;
    [
        collecting,
        RegionConfig {
            collect_regions,
            ..collecting
        },
    ]
}

#[test]
fn a_sub_allocator_that_breaks_its_promises_is_an_error_and_nothing_is_lost() {
    type Answer = fn(u64) -> (u64, u64);
    let answers: [(&str, Answer); 5] = [
        ("too small", |bytes| (BASE, bytes / 4 / 256 * 256)),
        ("one granule too small", |_| (BASE, 2 * MIB - 256)),
        ("overlapping", |bytes| (0x7000_0001_0000, bytes)),
        ("misaligned", |bytes| (BASE + 128, bytes)),
        ("of a length off the granule", |bytes| (BASE, bytes + 1)),
    ];
    for config in growing_configs(GIB) {
        for (name, answer) in answers {
            println!("{name}");
            let (mut pool, calls) = broken(config, answer);
            let before = pool.picture();
            pool.source().take_log();
            let out = out_of_memory(&mut pool, &Request::new(2 * MIB));
            let told = matches!(out.cause, Cause::Rejected(_));
            assert!(told, "{name}: {:?}", out.cause);
            assert_eq!(pool.picture(), before);
            assert!(calls.get() <= 2, "{name}: {} calls", calls.get());
            // Each range that is not held goes back, unless blocks may live in it.
            let log = pool.source().take_log();
            let grown = log
                .iter()
                .filter(|call| matches!(call, Call::Grow(_)))
                .count();
            let released = log
                .iter()
                .filter(|call| matches!(call, Call::Release(_)))
                .count();
            let expected = if name == "overlapping" { 0 } else { grown };
            assert_eq!(released, expected, "{name}: {log:?}");
            pool.source().answer_by_rule();
            assert!(pool.try_alloc(2 * MIB).is_some(), "it serves again");
        }
    }
}

/// `SubAllocator` promises "at least as long as was asked", so a longer answer keeps the promise.
#[test]
fn an_answer_longer_than_asked_that_passes_the_limit_is_refused_without_a_hang() {
    for config in growing_configs(3 * MIB) {
        let (mut pool, calls) = broken(config, |_| (BASE, 4 * MIB));
        let before = pool.picture();
        let result = pool.try_grant(&Request::new(2 * MIB - 64 * KIB));
        assert!(
            matches!(result, Err(AllocError::OutOfMemory(_))),
            "{result:?}"
        );
        assert!(calls.get() <= 2);
        assert_eq!(pool.picture(), before);
    }
}

#[test]
fn an_answer_longer_than_asked_within_the_limit_is_held_whole() {
    for config in growing_configs(GIB) {
        let (mut pool, _) = broken(config, |bytes| (BASE, bytes + MIB));
        let before = pool.reserved_bytes();
        pool.source().take_log();
        let _block = pool.alloc(2 * MIB);
        let asked = match pool.source().take_log()[..] {
            [Call::Grow(bytes)] => bytes,
            ref other => panic!("{other:?}"),
        };
        assert_eq!(pool.reserved_bytes() - before, asked + MIB);
    }
}

#[test]
fn an_answer_shorter_than_asked_that_still_serves_is_held() {
    // Ahead as much as is held, which is wholly used.
    let growth = Growth::Range {
        unit_bytes: 1024,
        ahead_divisor: NonZeroU32::new(1),
    };
    let config = RegionConfig {
        growth,
        ..RegionConfig::new(GIB)
    };
    let (mut pool, _) = broken(config, |bytes| (BASE, bytes / 64));
    let before = pool.reserved_bytes();
    let block = pool.alloc(1000);
    assert_eq!((block.addr().get(), block.bytes()), (BASE, 1024));
    assert_eq!(pool.reserved_bytes(), before + 1024);
}

/// The unit rounds a request near the largest region past what a region can hold.
#[test]
fn a_request_that_its_unit_rounds_past_the_largest_region_is_served_or_refused_in_words() {
    let config = RegionConfig::new(u64::MAX);
    let mut pool = Pool::new(config);
    let bytes = u64::from(u32::MAX) * GRANULE - GRANULE;
    match pool.try_grant(&Request::new(bytes)) {
        Ok(grant) => assert_eq!(grant.block.bytes(), bytes),
        Err(AllocError::TooLarge { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}
