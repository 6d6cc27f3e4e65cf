//! A device that refuses a call: the plan is undone, and only memory that cannot be taken back is lost.

use super::bench::{Bench, PAGE, pages};
use super::player::Player;
use super::scenes::PLANNED;
use larder_core::pages::{PageAttempt, PageCall, PagePlan};
use larder_core::{AllocError, BestFit, Cause, Progress, Request};
use larder_model::PageCalls;

use crate::golden::Player as _;

/// A scene of [`PLANNED`].
type Scene = (&'static str, u64);

/// A scene with the plan of its request, and the chunks and pages held before it.
struct UnderWay {
    player: Player,
    request: Request,
    plan: Option<PagePlan>,
    picture: Vec<(char, u64, u64)>,
    held: u64,
}

impl UnderWay {
    /// Plays a scene, plans its request, and makes `calls` calls of the plan.
    fn after((name, wanted): Scene, calls: u64) -> Self {
        let mut player = Player::after(name);
        let bench = &mut player.bench;
        let (picture, held) = (bench.without_unmapped_end(), bench.held());
        let request = pages(wanted);
        let plan = Some(bench.plan(&request));
        let mut under_way = Self {
            player,
            request,
            plan,
            picture,
            held,
        };
        for _ in 0..calls {
            under_way.call();
        }
        under_way
    }

    fn bench(&mut self) -> &mut Bench {
        &mut self.player.bench
    }

    fn call(&mut self) -> Option<PageCall> {
        self.player.bench.call(self.plan.as_mut()?)
    }

    fn refuse(&mut self) -> PageCall {
        self.bench().device().refuse_in(Some(0));
        self.call().unwrap()
    }

    /// Makes the remaining calls of the failed plan and ends it. Returns the pages that it released.
    fn undo(&mut self) -> u64 {
        while self.call().is_some() {}
        let plan = self.plan.take().unwrap();
        assert!(!plan.succeeded());
        let released = plan.released_bytes() / PAGE;
        assert!(self.bench().finish(plan).is_none());
        released
    }
}

fn calls((name, wanted): Scene) -> PageCalls {
    let bench = &mut Player::after(name).bench;
    let before = bench.device().calls();
    let _block = bench.try_alloc(&pages(wanted)).unwrap();
    let after = bench.device().calls();
    PageCalls {
        create: after.create - before.create,
        map: after.map - before.map,
        unmap: after.unmap - before.unmap,
        release: after.release - before.release,
        set_access: after.set_access - before.set_access,
    }
}

/// Returns each scene with the number of each call of its plan.
fn each_call() -> impl Iterator<Item = (Scene, u64)> {
    let of = |scene| (0..calls(scene).total()).map(move |call| (scene, call));
    PLANNED.into_iter().flat_map(of)
}

#[test]
fn the_scenes_create_move_reuse_unmap_and_release() {
    let expected = [
        (3, 3, 0, 0, 1),
        (1, 5, 0, 0, 1),
        (1, 2, 1, 0, 1),
        (3, 3, 3, 0, 2),
        (1, 1, 1, 1, 1),
    ];
    for (scene, (create, map, unmap, release, set_access)) in PLANNED.into_iter().zip(expected) {
        let expected = PageCalls {
            create,
            map,
            unmap,
            release,
            set_access,
        };
        assert_eq!(calls(scene), expected, "{scene:?}");
    }
}

#[test]
fn whichever_call_is_refused_every_chunk_is_as_before() {
    for (scene, which) in each_call() {
        let mut under_way = UnderWay::after(scene, which);
        // Memory whose release is refused is no longer mapped anywhere, so it is lost.
        let lost = match under_way.refuse() {
            PageCall::Release { bytes, .. } => bytes,
            _ => 0,
        };
        let released = under_way.undo();
        let (held, picture) = (under_way.held, under_way.picture.clone());
        let (bench, case) = (under_way.bench(), format!("{scene:?}, call {which}"));
        assert_eq!(bench.paged.get_mut().lost_bytes(), lost, "{case}");
        assert_eq!(bench.held(), held - released - lost / PAGE, "{case}");
        if released + lost == 0 {
            assert_eq!(bench.without_unmapped_end(), picture, "{case}");
        }
    }
}

#[test]
fn after_a_refusal_the_same_request_is_served_and_no_more_is_held() {
    for (scene, which) in each_call() {
        let unrefused = &mut Player::after(scene.0).bench;
        let _block = unrefused.try_alloc(&pages(scene.1)).unwrap();
        let mut under_way = UnderWay::after(scene, which);
        under_way.refuse();
        under_way.undo();
        let _block = under_way.bench().try_alloc(&pages(scene.1)).unwrap();
        let held = under_way.bench().device().held_bytes();
        let expected = unrefused.device().held_bytes();
        assert_eq!(held, expected, "{scene:?}, call {which}");
    }
}

#[test]
fn one_refusal_does_not_fail_an_allocation() {
    for (scene, which) in each_call() {
        let bench = &mut Player::after(scene.0).bench;
        bench.device().refuse_in(Some(which));
        let served = bench.try_alloc(&pages(scene.1));
        assert!(served.is_ok(), "{scene:?}, call {which}: {served:?}");
    }
}

#[test]
fn a_plan_undone_gives_its_share_of_the_limit_back() {
    for scene in PLANNED {
        let mut under_way = UnderWay::after(scene, 0);
        under_way.refuse();
        under_way.undo();
        let bench = under_way.bench();
        let held = bench.held() * PAGE + bench.paged.get_mut().lost_bytes();
        assert_eq!(bench.paged.get_mut().set_limit(0), held, "{scene:?}");
    }
}

#[test]
fn two_refusals_fail_it() {
    let mut under_way = UnderWay::after(("creating", 3), 0);
    let mut attempt = PageAttempt::new(under_way.request);
    attempt.plan_failed();
    attempt.plan_failed();
    under_way.refuse();
    under_way.undo();
    let Progress::Failed(error) = under_way.bench().paged.get_mut().advance(&mut attempt) else {
        panic!("a third plan");
    };
    let AllocError::OutOfMemory(out) = error else {
        panic!("{error}");
    };
    assert_eq!((out.cause, out.reserved_bytes), (Cause::SubAllocator, 0));
}

#[test]
fn what_the_device_refuses_to_undo_is_lost_and_nothing_else() {
    let twice = |call| (0..3).map(move |second| (call, second));
    let mut seen = 0;
    for ((scene, first), second) in each_call().flat_map(twice) {
        let mut under_way = UnderWay::after(scene, first);
        under_way.refuse();
        // The device then refuses one of the calls that undo the plan as well.
        under_way.bench().device().refuse_in(Some(second));
        let undoes: Vec<_> = std::iter::from_fn(|| under_way.call()).collect();
        under_way.bench().device().refuse_in(None);
        under_way.undo();
        let Some(undo) = undoes.get(second as usize) else {
            continue;
        };
        seen += 1;
        let request = under_way.request;
        let (bench, case) = (
            under_way.bench(),
            format!("{scene:?}, calls {first} and {second}"),
        );
        bench.held();
        let lost = bench.paged.get_mut().lost_bytes();
        match undo {
            PageCall::Release { bytes, .. } => assert_eq!(lost, *bytes, "{case}"),
            PageCall::Unmap { range, .. } => {
                assert!(lost == 0 || lost == range.bytes(), "{case}: {lost}");
                assert_eq!(bench.paged.page_stats().lost_mappings, 1, "{case}");
            }
            other => panic!("{case}: {other:?} undoes nothing"),
        }
        // The request need not fit under the limit, but it must break nothing.
        match bench.try_alloc(&request) {
            Ok(block) => bench.free(block, None),
            Err(AllocError::OutOfMemory(_)) => {}
            Err(error) => panic!("{case}: {error}"),
        }
        assert_eq!(bench.paged.get_mut().lost_bytes(), lost, "{case}");
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn a_driver_that_refuses_any_call_of_a_backing_leaves_nothing_out_of_use() {
    for refused in 0..40 {
        let mut player = Player::new();
        player.play("gaps 16");
        player.play(&format!("refuse {refused}"));
        let mapped = player.play("back 0:16 max 16").starts_with("yes");
        player.play("refuse nothing");
        assert_eq!(
            player.bench.paged.get_mut().lost_bytes(),
            0,
            "call {refused}"
        );
        if !mapped {
            assert!(player.bench.held() < 16, "call {refused}");
            let again = player.play("back 0:16 max 16");
            assert!(
                again.starts_with("yes"),
                "call {refused}, the next time: {again}"
            );
        }
        assert_eq!(player.bench.held(), 16, "call {refused}");
        player.play("free gap1 gap3 gap5 gap7 gap9 gap11 gap13 gap15");
        player.play("alloc all=16");
        assert_eq!(player.bench.held(), 16, "call {refused}");
        player.play("free all");
        let released = player.play("release 16");
        assert!(released.starts_with("16;"), "call {refused}: {released}");
    }
}

#[test]
fn a_limit_lowered_between_two_calls_undoes_what_the_plan_created() {
    for calls in 0..6 {
        let mut under_way = UnderWay::after(("creating", 3), calls);
        let created = under_way.bench().device().held_bytes();
        let excess = under_way.bench().paged.get_mut().set_limit(PAGE);
        assert_eq!(excess, 2 * PAGE, "{calls}");
        // The calls for memory that is created already may follow, but no other create.
        while let Some(call) = under_way.call() {
            assert!(
                !matches!(call, PageCall::Create { .. }),
                "{calls}: {call:?}"
            );
        }
        under_way.undo();
        let bench = under_way.bench();
        let peak = bench.device().peak_bytes();
        assert_eq!((bench.held(), peak), (0, created), "{calls}");
        assert_eq!(bench.paged.get_mut().excess_bytes(), 0, "{calls}");
    }
}
