//! The effect of a new limit, goal by goal, under both ways of shrinking: upstream's, which clamps the limit to the
//! bytes held, and ours, which waits for blocks to be freed.

use crate::common::{Alike, GIB, KIB, MIB, Pool, Source, Upstream, ranged};
use larder_core::BestFit;

/// Both, upstream's first, and which way each shrinks.
fn ways() -> [(&'static str, Box<dyn Alike>); 2] {
    let [clamp, pending] = crate::common::both(GIB);
    [("clamp", clamp), ("pending", pending)]
}

/// The limit in force, what is still to go, and what is held, in MiB.
fn adjusted(pool: &mut dyn Alike, limit_mib: u64) -> (u64, u64, u64) {
    let change = pool.adjust(limit_mib * MIB);
    let held = pool.reserved_bytes();
    (
        change.limit_bytes / MIB,
        change.excess_bytes / MIB,
        held / MIB,
    )
}

#[test]
fn am_3_a_higher_limit_and_a_lower_one_above_what_is_held_release_nothing() {
    for (way, mut pool) in ways() {
        let blocks = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
        pool.free_all(blocks.into());
        for limit_mib in [2048, 512, 8, 7] {
            assert_eq!(adjusted(&mut *pool, limit_mib), (limit_mib, 0, 7), "{way}");
        }
    }
}

#[test]
fn am_3_a_goal_that_free_regions_meet_is_met_exactly() {
    for (way, mut pool) in ways() {
        let [a, b, _c] = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
        pool.free_all(vec![a, b]);
        assert_eq!(adjusted(&mut *pool, 4), (4, 0, 4), "{way}");
    }
}

#[test]
fn am_3_a_goal_met_in_part_keeps_what_was_freed() {
    for (way, mut pool) in ways() {
        let [a, b, _c] = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
        pool.free(b);
        let expected = match way {
            "clamp" => (5, 0, 5),
            _ => (1, 4, 5),
        };
        assert_eq!(adjusted(&mut *pool, 1), expected, "{way}");
        pool.free(a);
        // Upstream has forgotten the wish; ours gives the region back when it is asked for again.
        let expected = match way {
            "clamp" => (4, 0, 4),
            _ => (1, 3, 4),
        };
        assert_eq!(adjusted(&mut *pool, 1), expected, "{way}");
    }
}

#[test]
fn am_3_a_limit_of_0_gives_everything_back_that_is_free() {
    for (way, mut pool) in ways() {
        let blocks = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
        pool.free_all(blocks.into());
        assert_eq!(adjusted(&mut *pool, 0), (0, 0, 0), "{way}");
        assert_eq!(pool.source().out_bytes(), 0);
        assert!(pool.try_alloc(1).is_none());
        assert_eq!(adjusted(&mut *pool, 1), (1, 0, 0));
        let _block = pool.alloc(1);
    }
}

#[test]
fn am_3_a_limit_below_what_is_in_use_releases_nothing_and_takes_no_block_away() {
    for (way, mut pool) in ways() {
        let _blocks = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
        let expected = match way {
            "clamp" => (7, 0, 7),
            _ => (3, 4, 7),
        };
        assert_eq!(adjusted(&mut *pool, 3), expected, "{way}");
        assert_eq!(pool.tuple(), (3, 7 * MIB, 7 * MIB, 4 * MIB));
        assert!(pool.try_alloc(256).is_none());
    }
}

#[test]
fn am_3_10_000_changes_of_the_limit_need_no_more_records_than_one() {
    // The sink, the block that stays, the one that comes and goes, and what it leaves.
    let mut pool = Pool::over(ranged(MIB, GIB), Source::new(), 5);
    let mut records = None;
    let mut vacant = |pool: &Pool, round: u64| {
        let vacant = pool.shared.with(|pool| pool.report().vacant_records);
        assert_eq!(*records.get_or_insert(vacant), vacant, "round {round}");
    };
    let _stays = pool.alloc(MIB);
    for round in 0..10_000u64 {
        change_the_limit(&mut pool, round);
        vacant(&pool, round);
    }
    assert_eq!(pool.source().out_bytes(), MIB);
    let mut upstream = Upstream::new(GIB);
    let _stays = upstream.alloc(MIB);
    for round in 0..10_000u64 {
        change_the_limit(&mut upstream, round);
        assert_eq!(upstream.bfc.chunks().count(), 1);
    }
    assert_eq!(upstream.source.out_bytes(), MIB);
}

/// Allocates and frees a block beside one of 1 MiB, and lowers and raises the limit.
fn change_the_limit(pool: &mut dyn Alike, round: u64) {
    let block = pool.alloc(MIB + 256 * (round % 7));
    pool.free(block);
    let limit = [0, MIB, MIB + KIB][(round % 3) as usize];
    let change = pool.adjust(limit);
    assert_eq!(change.limit_bytes + change.excess_bytes, limit.max(MIB));
    assert_eq!(pool.reserved_bytes(), MIB);
    pool.adjust(GIB);
}
