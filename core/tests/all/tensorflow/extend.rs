//! CONFORMANCE 8.4: the bytes requested when nothing free serves, and the back-off from refusals.

use crate::common::{Alike, Call, GIB, KIB, MIB, Upstream};

#[test]
fn s8_4_regions_double_if_no_doubling_was_needed_and_not_twice_if_it_was() {
    let mut pool = Upstream::new(GIB);
    let mut grown = |bytes: u64| {
        let _block = pool.alloc(bytes);
        pool.source.take_log()
    };
    assert_eq!(grown(MIB), [Call::Grow(MIB)]);
    assert_eq!(
        grown(MIB),
        [Call::Grow(2 * MIB)],
        "the first needed no doubling"
    );
    assert_eq!(grown(MIB), [], "the rest of the second serves");
    assert_eq!(grown(MIB), [Call::Grow(4 * MIB)]);
    assert_eq!(
        grown(20 * MIB),
        [Call::Grow(32 * MIB)],
        "8 doubled until it is enough"
    );
    assert_eq!(
        grown(32 * MIB),
        [Call::Grow(32 * MIB)],
        "it was doubled, so it stays"
    );
    assert_eq!(grown(32 * MIB), [Call::Grow(64 * MIB)]);
}

#[test]
fn s8_4_the_last_region_is_cut_at_the_limit_and_a_request_above_the_rest_asks_nobody() {
    let mut pool = Upstream::new(5 * MIB + 300);
    let _blocks = [MIB, 2 * MIB].map(|bytes| pool.alloc(bytes));
    assert_eq!(
        pool.source.take_log(),
        [Call::Grow(MIB), Call::Grow(2 * MIB)]
    );
    pool.refuses_unchanged(2 * MIB + 257);
    assert_eq!(pool.source.take_log(), []);
    let rest = pool.alloc(2 * MIB + 256);
    assert_eq!(
        pool.source.take_log(),
        [Call::Grow(2 * MIB + 256)],
        "rounded down to granules"
    );
    assert_eq!(rest.bytes(), 2 * MIB + 256);
    assert!(pool.try_alloc(1).is_none(), "44 bytes are no granule");
}

#[test]
fn s8_4_a_request_that_failed_at_the_limit_did_not_double_the_step() {
    let mut pool = Upstream::new(64 * MIB);
    assert!(pool.try_alloc(65 * MIB).is_none());
    let _block = pool.alloc(1);
    assert_eq!(pool.source.take_log(), [Call::Grow(MIB)]);
}

#[test]
fn s8_4_a_step_doubled_for_a_refused_request_stays_doubled() {
    let mut pool = Upstream::new(64 * MIB);
    pool.source.refuse_grows.set(u32::MAX);
    assert!(pool.try_alloc(20 * MIB).is_none());
    pool.source.refuse_grows.set(0);
    pool.source.take_log();
    let _block = pool.alloc(1);
    assert_eq!(pool.source.take_log(), [Call::Grow(32 * MIB)]);
}

#[test]
fn s8_4_the_first_region_is_the_limit_rounded_if_that_is_less_than_1_mib() {
    for (limit, first) in [
        (MIB + 1, MIB),
        (MIB, MIB),
        (MIB - 1, MIB - 256),
        (1000, 768),
        (256, 256),
    ] {
        let at_once = (Upstream::at_once(limit), limit / 256 * 256);
        for (mut pool, first) in [(Upstream::new(limit), first), at_once] {
            let _block = pool.alloc(1);
            assert_eq!(pool.source.take_log(), [Call::Grow(first)], "limit {limit}");
        }
    }
    for limit in [0, 1, 255] {
        let mut pool = Upstream::new(limit);
        assert!(pool.try_alloc(1).is_none(), "limit {limit}");
        assert_eq!(pool.source.take_log(), []);
    }
}

#[test]
fn s8_4_the_step_doubles_from_a_first_region_that_the_limit_cut() {
    let mut pool = Upstream::new(100 * KIB);
    let _block = pool.alloc(100 * KIB);
    assert_eq!(pool.adjust(GIB).limit_bytes, GIB);
    let _block = pool.alloc(1);
    let calls = [Call::Grow(100 * KIB), Call::Grow(200 * KIB)];
    assert_eq!(pool.source.take_log(), calls);
}

#[test]
fn s8_4_back_off_asks_for_nine_tenths_rounded_up_until_it_succeeds() {
    let mut pool = Upstream::new(GIB);
    pool.source.capacity_bytes.set(900 * KIB);
    let _block = pool.alloc(256);
    // 0.9 MiB is 3686.4 granules, 0.81 of it 3318.3.
    let expected = [
        Call::GrowRefused(MIB),
        Call::GrowRefused(3687 * 256),
        Call::Grow(3319 * 256),
    ];
    assert_eq!(pool.source.take_log(), expected);
    // No doubling was needed, so the step doubles from what was first asked for.
    pool.source.capacity_bytes.set(u64::MAX);
    let _block = pool.alloc(900 * KIB);
    assert_eq!(pool.source.take_log(), [Call::Grow(2 * MIB)]);
}

#[test]
fn s8_4_back_off_ends_above_the_request_and_happens_once_in_a_life() {
    let mut pool = Upstream::new(GIB);
    pool.source.refuse_grows.set(u32::MAX);
    pool.refuses_unchanged(600 * KIB);
    let granules = [4096, 3687, 3319, 2988, 2690, 2421];
    assert_eq!(
        pool.source.take_log(),
        granules.map(|n| Call::GrowRefused(n * 256))
    );
    for _ in 0..3 {
        assert!(pool.try_alloc(256).is_none());
        assert_eq!(pool.source.take_log(), [Call::GrowRefused(MIB)], "used up");
    }
    // Success in between does not bring it back.
    pool.source.refuse_grows.set(0);
    let _block = pool.alloc(MIB);
    pool.source.refuse_grows.set(1);
    pool.source.take_log();
    assert!(pool.try_alloc(MIB).is_none());
    assert_eq!(pool.source.take_log(), [Call::GrowRefused(2 * MIB)]);
}

#[test]
fn s8_4_back_off_is_used_up_even_if_no_smaller_region_could_serve() {
    let mut pool = Upstream::new(GIB);
    pool.source.refuse_grows.set(1);
    assert!(pool.try_alloc(MIB).is_none());
    assert_eq!(pool.source.take_log(), [Call::GrowRefused(MIB)]);
    pool.source.refuse_grows.set(1);
    assert!(pool.try_alloc(256).is_none());
    assert_eq!(pool.source.take_log(), [Call::GrowRefused(MIB)]);
}

#[test]
fn s8_4_back_off_that_succeeded_is_used_up_too() {
    let mut pool = Upstream::new(GIB);
    pool.source.refuse_grows.set(1);
    let _block = pool.alloc(600 * KIB);
    assert_eq!(
        pool.source.take_log(),
        [Call::GrowRefused(MIB), Call::Grow(3687 * 256)]
    );
    pool.source.refuse_grows.set(1);
    assert!(pool.try_alloc(MIB).is_none());
    assert_eq!(pool.source.take_log(), [Call::GrowRefused(2 * MIB)]);
}

#[test]
fn g1_16_back_off_below_2560_bytes_ends_though_nine_tenths_round_up_to_the_same() {
    for first in (256..=2560).step_by(256).chain([4096, MIB]) {
        let mut pool = Upstream::new(first);
        pool.source.refuse_grows.set(u32::MAX);
        assert!(pool.try_alloc(1).is_none());
        let asked: Vec<u64> = pool
            .source
            .take_log()
            .iter()
            .map(|call| match call {
                Call::GrowRefused(bytes) => *bytes,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((asked[0], asked.last()), (first, Some(&256)));
        assert!(asked.windows(2).all(|pair| pair[1] < pair[0]), "{asked:?}");
    }
}
