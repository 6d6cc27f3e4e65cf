//! Sub-allocators whose ranges are too long, too short, or break a promise.

use std::num::NonZeroU32;

use super::out_of_memory;
use crate::common::{BASE, GIB, GIVEN_BASE, GRANULE, KIB, MIB, Pool, UNIT, ranged};
use larder_core::{AllocError, Cause, Growth, RegionConfig, Request};
use larder_model::{Broken, Call};

/// Returns an allocator with one block, over a source whose further ranges are those of `answer`.
fn broken(config: RegionConfig, answer: Broken) -> Pool {
    let mut pool = Pool::new(config);
    let _block = pool.alloc(64 * KIB);
    pool.source().answer_with(Some(answer));
    pool.source().take_log();
    pool
}

fn growing_configs(limit: u64) -> [RegionConfig; 2] {
    [true, false].map(|collect_regions| RegionConfig {
        collect_regions,
        ..ranged(UNIT, limit)
    })
}

/// Returns how many ranges the source has given and how many it has taken back.
fn given_and_released(pool: &Pool) -> (usize, usize) {
    let log = pool.source().take_log();
    let given = log.iter().filter(|call| matches!(call, Call::Grow(_)));
    let released = log.iter().filter(|call| matches!(call, Call::Release(_)));
    (given.count(), released.count())
}

#[test]
fn a_sub_allocator_that_breaks_its_promises_is_an_error_and_nothing_is_lost() {
    let answers: [(&str, Broken); 5] = [
        ("too small", |bytes| (BASE, bytes / 4 / GRANULE * GRANULE)),
        ("one granule too small", |_| (BASE, 2 * MIB - GRANULE)),
        ("overlapping", |bytes| (GIVEN_BASE + UNIT, bytes)),
        ("misaligned", |bytes| (BASE + 128, bytes)),
        ("of a length off the granule", |bytes| (BASE, bytes + 1)),
    ];
    for config in growing_configs(GIB) {
        for (name, answer) in answers {
            let mut pool = broken(config, answer);
            let out = out_of_memory(&mut pool, &Request::new(2 * MIB));
            let told = matches!(out.cause, Cause::Rejected(_));
            assert!(told, "{name}: {:?}", out.cause);
            // A refused range is released, unless it overlaps held memory, where blocks may be.
            let (given, released) = given_and_released(&pool);
            assert!((1..=2).contains(&given), "{name}: {given} calls");
            let expected = if name == "overlapping" { 0 } else { given };
            assert_eq!(released, expected, "{name}");
            pool.source().answer_with(None);
            let again = pool.try_grant(&Request::new(2 * MIB));
            assert!(again.is_ok(), "it serves again: {name}");
        }
    }
}

/// `SubAllocator` promises ranges at least as long as requested, so a longer range keeps the promise.
#[test]
fn an_answer_longer_than_asked_that_passes_the_limit_is_refused_without_a_hang() {
    for config in growing_configs(3 * MIB) {
        let mut pool = broken(config, |_| (BASE, 4 * MIB));
        let request = Request::new(2 * MIB - 64 * KIB);
        let result = pool.unchanged(|pool| pool.try_grant(&request));
        let is_refused = matches!(result, Err(AllocError::OutOfMemory(_)));
        assert!(is_refused, "{result:?}");
        assert!(given_and_released(&pool).0 <= 2);
    }
}

#[test]
fn an_answer_longer_than_asked_within_the_limit_is_held_whole() {
    for config in growing_configs(GIB) {
        let mut pool = broken(config, |bytes| (BASE, bytes + MIB));
        let before = pool.reserved_bytes();
        let _block = pool.alloc(2 * MIB);
        let [Call::Grow(asked)] = pool.source().take_log()[..] else {
            panic!("one call");
        };
        assert_eq!(pool.reserved_bytes() - before, asked + MIB);
    }
}

#[test]
fn an_answer_shorter_than_asked_that_still_serves_is_held() {
    // Growth asks for as much ahead as is held, and all held memory is in use.
    let growth = Growth::Range {
        unit_bytes: 1024,
        ahead_divisor: NonZeroU32::new(1),
    };
    let config = RegionConfig {
        growth,
        ..RegionConfig::new(GIB)
    };
    let mut pool = broken(config, |bytes| (BASE, bytes / 64));
    let before = pool.reserved_bytes();
    let block = pool.alloc(1000);
    assert_eq!((block.addr().get(), block.bytes()), (BASE, 1024));
    assert_eq!(pool.reserved_bytes(), before + 1024);
}
