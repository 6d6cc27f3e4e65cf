//! `RegionError`: ranges that may not become a region, added by hand or committed.

use super::{BASE, FIXED, GRANULE, fixed, out_of_memory, ranged};
use crate::common::{GIB, KIB, Pool, Source, range};
use larder_core::{
    AllocError, BestFit, Cause, MAX_REGIONS, Progress, RegionAttempt, RegionConfig, RegionError,
    RegionPlan, Request,
};

#[track_caller]
fn region_error(pool: &mut Pool, start: u64, bytes: u64) -> RegionError {
    let place = range(start, bytes);
    let rejected = pool
        .unchanged(|pool| pool.shared.get_mut().add_region(place))
        .expect_err("a bad region");
    assert_eq!(rejected.value, place, "it comes back");
    rejected.error
}

#[test]
fn regions_off_the_granule_are_misaligned_at_either_end() {
    let mut pool = fixed(4);
    for (start, bytes) in [
        (1, 256),
        (128, 256),
        (255, 257),
        (256, 255),
        (256, 257),
        (512, 1),
    ] {
        assert_eq!(
            region_error(&mut pool, start, bytes),
            RegionError::Misaligned
        );
    }
}

#[test]
fn regions_that_overlap_another_are_refused_and_those_that_touch_are_not() {
    for config in [FIXED, RegionConfig::new(u64::MAX)] {
        let (start, bytes) = (BASE, 4 * GRANULE);
        let regions = [(start, bytes), (start + 16 * GRANULE, bytes)];
        let mut pool = Pool::with_regions(config, &regions);
        for (first, granules) in [
            (0, 4),
            (1, 2),
            (0, 1),
            (3, 1),
            (3, 2),
            (3, 20),
            (15, 2),
            (19, 9),
        ] {
            let error = region_error(&mut pool, BASE + first * GRANULE, granules * GRANULE);
            assert_eq!(error, RegionError::Overlap, "{first} +{granules}");
        }
        let error = region_error(&mut pool, BASE - GRANULE, 2 * GRANULE);
        assert_eq!(error, RegionError::Overlap);
        let error = region_error(&mut pool, BASE - GRANULE, 64 * GRANULE);
        assert_eq!(error, RegionError::Overlap);
        pool.add_region(BASE - GRANULE, GRANULE);
        pool.add_region(BASE + 4 * GRANULE, 12 * GRANULE);
        pool.add_region(BASE + 20 * GRANULE, GRANULE);
        assert_eq!(pool.reserved_bytes(), 22 * GRANULE);
    }
}

#[test]
fn a_region_of_more_granules_than_32_bits_count_is_too_large() {
    let mut pool = Pool::new(FIXED);
    let max = u64::from(u32::MAX) * GRANULE;
    assert_eq!(
        region_error(&mut pool, 0, max + GRANULE),
        RegionError::TooLarge
    );
    assert_eq!(
        region_error(&mut pool, 0, u64::MAX - 255),
        RegionError::TooLarge
    );
    pool.add_region(0, max);
    // The largest size of all at the largest address of all.
    let mut pool = Pool::new(FIXED);
    let start = u64::MAX - 255 - max;
    pool.add_region(start, max);
    let block = pool.alloc(max - GRANULE);
    assert_eq!(block.addr().get(), start);
    pool.free(block);
}

#[test]
fn a_region_past_the_limit_is_refused_and_one_up_to_it_is_held() {
    let config = RegionConfig {
        limit_bytes: 8 * GRANULE + 100,
        ..FIXED
    };
    let mut pool = Pool::new(config);
    assert_eq!(
        region_error(&mut pool, BASE, 9 * GRANULE),
        RegionError::Limit
    );
    pool.add_region(BASE, 6 * GRANULE);
    assert_eq!(
        region_error(&mut pool, 2 * BASE, 3 * GRANULE),
        RegionError::Limit
    );
    pool.add_region(2 * BASE, 2 * GRANULE);
    assert_eq!(
        region_error(&mut pool, 3 * BASE, GRANULE),
        RegionError::Limit
    );
    pool.shared.get_mut().set_limit(GRANULE);
    assert_eq!(
        region_error(&mut pool, 3 * BASE, GRANULE),
        RegionError::Limit
    );
    pool.shared.get_mut().set_limit(u64::MAX);
    pool.add_region(3 * BASE, GRANULE);
}

#[test]
fn a_region_without_a_record_left_is_refused() {
    let mut pool = Pool::over(FIXED, Source::new(), 3);
    pool.add_region(BASE, 4 * GRANULE);
    let block = pool.alloc(GRANULE);
    assert_eq!(
        region_error(&mut pool, 2 * BASE, GRANULE),
        RegionError::TableFull
    );
    // The same where it would enlarge a region.
    let mut range_pool = Pool::over(ranged(u64::MAX), Source::new(), 3);
    range_pool.add_region(BASE, 4 * GRANULE);
    let _block = range_pool.alloc(GRANULE);
    let behind = BASE + 4 * GRANULE;
    assert_eq!(
        region_error(&mut range_pool, behind, GRANULE),
        RegionError::TableFull
    );
    pool.free(block);
    pool.add_region(2 * BASE, GRANULE);
}

#[test]
fn one_region_more_than_the_table_holds_is_refused() {
    let mut pool = Pool::new(FIXED);
    for i in 0..MAX_REGIONS as u64 {
        pool.shared
            .get_mut()
            .add_region(range(i * 2 * GRANULE, GRANULE))
            .expect("room");
    }
    pool.check();
    let records = pool.shared.get_mut().report().vacant_records;
    assert_eq!(
        region_error(&mut pool, 1 << 40, GRANULE),
        RegionError::RegionsFull
    );
    assert_eq!(pool.shared.get_mut().report().vacant_records, records);
}

/// The ticket a request asks for.
fn ticket(pool: &mut Pool, attempt: &mut RegionAttempt) -> larder_core::GrowTicket {
    let progress = pool.shared.get_mut().advance(attempt);
    pool.check();
    match progress {
        Progress::Plan(RegionPlan::Grow(ticket)) => ticket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_commit_is_refused_when_the_range_is_too_small_or_the_limit_was_lowered() {
    let mut pool = Pool::new(ranged(GIB));
    let mut attempt = RegionAttempt::new(Request::new(100 * KIB));
    let before = pool.picture();
    for (bytes, limit, error) in [
        (128 * KIB - GRANULE, GIB, RegionError::TooSmall),
        (128 * KIB, 128 * KIB - 1, RegionError::Limit),
        (128 * KIB + 1, GIB, RegionError::Misaligned),
    ] {
        let ticket = ticket(&mut pool, &mut attempt);
        assert_eq!(
            (ticket.bytes(), ticket.least_bytes()),
            (128 * KIB, 128 * KIB)
        );
        pool.shared.get_mut().set_limit(limit);
        pool.check();
        let given = range(BASE, bytes);
        let rejected = pool
            .shared
            .get_mut()
            .commit(ticket, given)
            .expect_err("a bad range");
        pool.check();
        assert_eq!((rejected.error, rejected.value), (error, given));
        pool.shared.get_mut().set_limit(GIB);
        assert_eq!(
            pool.picture(),
            before,
            "the ticket is used up and counts no more"
        );
    }
    let ticket = ticket(&mut pool, &mut attempt);
    pool.shared
        .get_mut()
        .commit(ticket, range(BASE, 128 * KIB))
        .expect("as asked");
    pool.check();
    assert!(matches!(
        pool.shared.get_mut().advance(&mut attempt),
        Progress::Ready(_)
    ));
    pool.check();
}

#[test]
fn a_commit_is_refused_when_tables_have_filled_up_meanwhile() {
    let mut pool = Pool::over(ranged(GIB), Source::new(), 3);
    pool.add_region(BASE, 4 * GRANULE);
    let mut attempt = RegionAttempt::new(Request::new(64 * KIB));
    let waiting = ticket(&mut pool, &mut attempt);
    let _block = pool.alloc(GRANULE);
    let rejected = pool
        .shared
        .get_mut()
        .commit(waiting, range(16 * BASE, 64 * KIB))
        .expect_err("no record");
    pool.check();
    assert_eq!(rejected.error, RegionError::TableFull);

    let mut pool = Pool::new(RegionConfig {
        collect_regions: false,
        ..ranged(GIB)
    });
    for i in 1..MAX_REGIONS as u64 {
        pool.shared
            .get_mut()
            .add_region(range(i * 2 * GRANULE, GRANULE))
            .expect("room");
    }
    let mut attempt = RegionAttempt::new(Request::new(100 * KIB));
    let waiting = ticket(&mut pool, &mut attempt);
    pool.add_region(1 << 40, GRANULE);
    let rejected = pool
        .shared
        .get_mut()
        .commit(waiting, range(1 << 41, 128 * KIB))
        .expect_err("no region");
    pool.check();
    assert_eq!(rejected.error, RegionError::RegionsFull);
    attempt.growth_rejected(rejected.error);
    match pool.shared.get_mut().advance(&mut attempt) {
        Progress::Failed(AllocError::OutOfMemory(out)) => assert_eq!(out.cause, Cause::Regions),
        other => panic!("{other:?}"),
    }
    pool.check();
}

#[test]
fn a_ticket_counts_against_the_limit_until_it_is_aborted() {
    let mut pool = Pool::new(ranged(128 * KIB));
    let mut attempt = RegionAttempt::new(Request::new(64 * KIB));
    let [one, two] = [0, 1].map(|_| ticket(&mut pool, &mut attempt));
    let out = out_of_memory(&mut pool, &Request::new(1));
    assert_eq!(
        (out.cause, out.reserved_bytes),
        (Cause::Limit, 128 * KIB),
        "growth under way"
    );
    assert_eq!(region_error(&mut pool, BASE, GRANULE), RegionError::Limit);
    pool.shared.get_mut().abort(one);
    pool.check();
    pool.add_region(BASE, GRANULE);
    assert_eq!(
        pool.shared.get_mut().retry_smaller(two),
        None,
        "nothing smaller helps; it is aborted"
    );
    pool.check();
    assert_eq!(pool.shared.get_mut().excess_bytes(), 0);
    pool.add_region(16 * BASE, 128 * KIB - GRANULE);
}
