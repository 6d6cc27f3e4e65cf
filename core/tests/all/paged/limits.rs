//! The limit: never exceeded, even briefly, and obeyed by plans under way.

use super::bench::{Bench, PAGE, config, page_of, pages};
use super::scenes::{SCENES, releasing};
use larder_core::BestFit;
use larder_core::Cause;
use larder_core::Shared;
use larder_core::pages::{Backing, PageCall, PageDriver};
use larder_model::PageDevice;

fn limited(backing: Backing, limit: u64) -> Bench {
    let mut config = config(256, backing);
    config.limit_bytes = limit * PAGE;
    Bench::new(config)
}

#[test]
fn memory_goes_back_before_more_is_created() {
    let (mut bench, request, _live) = releasing();
    let plan = bench.plan(&request);
    assert!(bench.finish(plan).is_some());
    assert_eq!(
        (bench.held(), bench.paged.source().peak_bytes()),
        (5, 5 * PAGE)
    );
}

#[test]
fn an_idle_handle_too_large_to_move_makes_room_for_smaller_ones() {
    let mut bench = limited(Backing::Billed, 54);
    let [_ballast, three, _guard, two] = bench.pieces([48, 3, 1, 2]);
    bench.free(three);
    bench.free(two);
    let held = bench.held();
    // Two pages at the end are free, two are missing, and the idle piece has three.
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(4)));
    assert_eq!((calls.release, calls.unmap), (1, 1));
    assert_eq!(
        (bench.held(), bench.paged.source().peak_bytes()),
        (held - 1, held * PAGE)
    );
}

#[test]
fn plans_under_way_count_what_they_will_create() {
    let mut bench = limited(Backing::Billed, 5);
    let first = bench.plan(&pages(3));
    assert_eq!(bench.cause(&pages(3)), Cause::Limit);
    let second = bench.plan(&pages(2));
    assert_eq!(bench.cause(&pages(1)), Cause::Limit);
    assert_eq!(bench.paged.get_mut().report().planned_bytes, 5 * PAGE);
    assert!(bench.finish(second).is_some() && bench.finish(first).is_some());
    assert_eq!(
        (bench.held(), bench.paged.source().peak_bytes()),
        (5, 5 * PAGE)
    );
}

#[test]
fn what_a_plan_released_is_its_own_to_replace() {
    let (mut bench, request, _live) = releasing();
    let mut plan = bench.plan(&request);
    while plan.released_bytes() == 0 && bench.call(&mut plan).is_some() {}
    assert_eq!(bench.paged.source().held_bytes(), 4 * PAGE);
    // One page is idle still; a second one would be that of the plan.
    let _last = bench.alloc(&pages(1));
    assert_eq!(bench.cause(&pages(1)), Cause::Limit);
    assert!(bench.finish(plan).is_some());
    assert_eq!(
        (bench.held(), bench.paged.source().peak_bytes()),
        (5, 5 * PAGE)
    );
}

#[test]
fn what_a_plan_released_above_its_need_is_for_others() {
    let mut bench = limited(Backing::Billed, 54);
    let [_ballast, three, _guard, two] = bench.pieces([48, 3, 1, 2]);
    bench.free(three);
    bench.free(two);
    // Two pages are missing, and the idle piece has three.
    let mut plan = bench.plan(&pages(4));
    while plan.released_bytes() == 0 && bench.call(&mut plan).is_some() {}
    assert_eq!(bench.cause(&pages(2)), Cause::Limit);
    let _other = bench.alloc(&pages(1));
    assert!(bench.finish(plan).is_some());
    assert_eq!(
        (bench.held(), bench.paged.source().peak_bytes()),
        (54, 54 * PAGE)
    );
}

#[test]
fn what_several_pieces_of_a_plan_leave_above_its_need_is_for_others() {
    let mut bench = limited(Backing::InPlace, 56);
    let [_ballast, front, _guard, back, _last] = bench.pieces([48, 3, 1, 3, 1]);
    bench.free(front);
    bench.free(back);
    // Five pages are missing, and both idle pieces together have six.
    let mut plan = bench.plan(&pages(5));
    while plan.released_bytes() < 6 * PAGE && bench.call(&mut plan).is_some() {}
    assert_eq!(plan.released_bytes(), 6 * PAGE);
    assert_eq!(bench.cause(&pages(2)), Cause::Limit);
    let _other = bench.alloc(&pages(1));
    assert!(bench.finish(plan).is_some());
    assert_eq!(
        (bench.held(), bench.paged.source().peak_bytes()),
        (56, 56 * PAGE)
    );
}

#[test]
fn what_the_limit_leaves_is_created_beside_what_moves() {
    let mut bench = limited(Backing::Billed, 6);
    let [a, _b, c, _d] = bench.blocks([2, 1, 1, 1]);
    bench.free(a);
    bench.free(c);
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(4)));
    assert_eq!((calls.create, bench.held()), (1, 6));
}

#[test]
fn a_plan_undone_gives_its_share_of_the_limit_back() {
    for scene in SCENES {
        let (mut bench, request, _live) = scene();
        let plan = bench.plan(&request);
        bench.paged.source().refuse_in(Some(0));
        assert!(bench.finish(plan).is_none());
        let held = bench.held() * PAGE + bench.paged.get_mut().lost_bytes();
        assert_eq!(bench.paged.get_mut().set_limit(0), held);
    }
}

#[test]
fn a_limit_lowered_between_two_calls_undoes_what_the_plan_created() {
    for calls in 0..6 {
        let mut bench = limited(Backing::Billed, 64);
        let mut plan = bench.plan(&pages(3));
        for _ in 0..calls {
            bench.call(&mut plan);
        }
        let created = bench.paged.source().held_bytes();
        assert_eq!(bench.paged.get_mut().set_limit(PAGE), 2 * PAGE);
        // A map and an access may follow what is created already, but no other create.
        while let Some(step) = bench.call(&mut plan) {
            assert!(!matches!(step, PageCall::Create { .. }), "{step:?}");
        }
        assert!(!plan.succeeded());
        assert!(bench.finish(plan).is_none());
        assert_eq!(
            (bench.held(), bench.paged.source().peak_bytes()),
            (0, created)
        );
        assert_eq!(bench.paged.get_mut().excess_bytes(), 0);
    }
}

#[test]
fn a_limit_lowered_after_a_plan_was_agreed_on_does_not_break_it() {
    let mut bench = limited(Backing::Billed, 64);
    let mut plan = bench.plan(&pages(3));
    while bench.call(&mut plan).is_some() {}
    bench.paged.get_mut().set_limit(PAGE);
    assert!(bench.finish(plan).is_some());
    assert_eq!(
        (bench.held(), bench.paged.get_mut().excess_bytes()),
        (3, 2 * PAGE)
    );
}

#[test]
fn a_plan_that_only_moves_ignores_a_lowered_limit() {
    let mut bench = limited(Backing::Billed, 64);
    let [a, _b, c, _d] = bench.blocks([2, 1, 2, 1]);
    bench.free(a);
    bench.free(c);
    let plan = bench.plan(&pages(4));
    bench.paged.get_mut().set_limit(PAGE);
    assert!(bench.finish(plan).is_some());
    assert_eq!(bench.held(), 6);
}

#[test]
fn the_budget_binds_where_it_is_lower_than_the_limit() {
    for (budget, limit) in [(3, 5), (5, 3)] {
        let mut bench = limited(Backing::Budget(budget * PAGE), limit);
        assert_eq!(bench.cause(&pages(4)), Cause::Limit);
        let _block = bench.alloc(&pages(3));
        assert_eq!(bench.cause(&pages(1)), Cause::Limit);
        assert_eq!(bench.paged.source().peak_bytes(), 3 * PAGE);
    }
}

#[test]
fn a_part_of_a_page_above_the_limit_does_not_count() {
    let mut config = config(64, Backing::Billed);
    config.limit_bytes = 3 * PAGE - 1;
    let mut bench = Bench::new(config);
    assert_eq!(bench.cause(&pages(3)), Cause::Limit);
    let _block = bench.alloc(&pages(2));
}

/// Refuses to release anything.
struct Holds(PageDevice);

impl PageDriver for Holds {
    fn call(&self, step: PageCall) -> Result<(), larder_core::SubAllocError> {
        match step {
            PageCall::Release { .. } => Err(larder_core::SubAllocError),
            step => self.0.call(step),
        }
    }
}

#[test]
fn adjust_gives_back_what_is_idle_and_answers_with_the_excess() {
    let mut bench = limited(Backing::Billed, 64);
    let [a, b, c] = bench.blocks([2, 1, 3]);
    bench.free(a);
    let pool = bench.paged;
    let stats = pool.pool_stats();
    assert_eq!((stats.pool_bytes, stats.stable_bytes), (6 * PAGE, 4 * PAGE));
    assert_eq!(pool.adjust(5 * PAGE), 0);
    assert_eq!(pool.source().held_bytes(), 5 * PAGE);
    assert_eq!(pool.adjust(3 * PAGE), PAGE);
    assert_eq!(pool.source().held_bytes(), 4 * PAGE);
    // What comes back later goes with a later call.
    pool.with(|paged| paged.free(b)).unwrap();
    assert_eq!(pool.adjust(3 * PAGE), 0);
    assert_eq!(pool.source().held_bytes(), 3 * PAGE);
    pool.with(|paged| paged.free(c)).unwrap();
}

#[test]
fn adjust_counts_what_the_device_does_not_take_back() {
    let mut bench = limited(Backing::Billed, 64);
    let [a, _b] = bench.blocks([1, 1]);
    bench.free(a);
    let (paged, device) = bench.paged.into_parts();
    let mut pool = Shared::new(paged, Holds(device));
    assert_eq!(pool.adjust(PAGE), PAGE);
    assert_eq!(pool.get_mut().page_stats().lost_bytes, PAGE);
    assert_eq!(pool.source().0.held_bytes(), 2 * PAGE);
}

#[test]
fn where_memory_is_short_what_has_some_serves_before_a_closer_fit_without() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [hole, _a, larger, _b] = bench.blocks([2, 1, 4, 1]);
    bench.free(hole);
    assert_eq!(bench.release(2), 2);
    bench.free(larger);
    bench.paged.get_mut().set_limit(6 * PAGE);
    let (calls, block) = bench.calls_of(|bench| bench.alloc(&pages(2)));
    assert_eq!((calls.total(), page_of(&block)), (0, 3));
}
