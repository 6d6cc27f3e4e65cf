//! A device that refuses a call: the plan is undone, and only what cannot be undone is lost.

use super::bench::{Bench, PAGE, config, pages};
use super::scenes::{SCENES, Scene, clearing, creating, moving, releasing, waking};
use larder_core::pages::{Backing, PageCall};
use larder_core::{AllocError, BestFit, Cause};
use larder_model::{PageCalls, PageDevice};

fn calls(scene: fn() -> Scene) -> PageCalls {
    let (mut bench, request, _live) = scene();
    bench.calls_of(|bench| bench.alloc(&request)).0
}

#[test]
fn the_scenes_create_move_reuse_unmap_and_release() {
    let expected = |create, map, unmap, release| PageCalls {
        create,
        map,
        unmap,
        release,
        set_access: 1,
    };
    assert_eq!(calls(creating), expected(3, 3, 0, 0));
    assert_eq!(calls(moving), expected(1, 5, 0, 0));
    assert_eq!(calls(waking), expected(1, 2, 1, 0));
    let clearing = calls(clearing);
    assert!(clearing.create > 0 && clearing.unmap > 0, "{clearing:?}");
    assert_eq!(calls(releasing), expected(1, 1, 1, 1));
}

/// A scene after one refused call of its plan, and that call.
struct Refused {
    scene: Scene,
    /// Chunks before, without the unmapped end.
    picture: Vec<(char, u64, u64)>,
    held: u64,
    released: u64,
    call: PageCall,
}

fn refuse(scene: fn() -> Scene, which: u64) -> Refused {
    let (mut bench, request, live) = scene();
    let (picture, held) = (bench.without_unmapped_end(), bench.held());
    let mut plan = bench.plan(&request);
    for _ in 0..which {
        bench.call(&mut plan);
    }
    bench.paged.source().refuse_in(Some(0));
    let call = bench.call(&mut plan).unwrap();
    while bench.call(&mut plan).is_some() {}
    assert!(!plan.succeeded());
    let released = plan.released_bytes() / PAGE;
    assert!(bench.finish(plan).is_none());
    Refused {
        scene: (bench, request, live),
        picture,
        held,
        released,
        call,
    }
}

#[test]
fn whichever_call_is_refused_every_chunk_is_as_before() {
    for scene in SCENES {
        for which in 0..calls(scene).total() {
            let refused = refuse(scene, which);
            let (bench, ..) = &refused.scene;
            // What is not taken back is mapped nowhere any more.
            let lost = match refused.call {
                PageCall::Release { bytes, .. } => bytes,
                _ => 0,
            };
            assert_eq!(bench.paged.with(|pool| pool.lost_bytes()), lost);
            assert_eq!(bench.held(), refused.held - refused.released - lost / PAGE);
            if refused.released + lost == 0 {
                assert_eq!(bench.without_unmapped_end(), refused.picture);
            }
        }
    }
}

#[test]
fn after_a_refusal_the_same_request_is_served_and_no_more_is_held() {
    for scene in SCENES {
        let (mut bench, request, _live) = scene();
        let _block = bench.alloc(&request);
        let held = bench.paged.source().held_bytes();
        for which in 0..calls(scene).total() {
            let (mut bench, request, _live) = refuse(scene, which).scene;
            let _block = bench.alloc(&request);
            assert_eq!(bench.paged.source().held_bytes(), held);
        }
    }
}

#[test]
fn one_refusal_does_not_fail_an_allocation() {
    for scene in SCENES {
        for refused in 0..calls(scene).total() {
            let (mut bench, request, _live) = scene();
            bench.paged.source().refuse_in(Some(refused));
            let _block = bench.alloc(&request);
        }
    }
}

#[test]
fn two_refusals_fail_it() {
    let (mut bench, request, _live) = creating();
    let mut plan = bench.plan(&request);
    let mut attempt = larder_core::pages::PageAttempt::new(request);
    attempt.plan_failed();
    attempt.plan_failed();
    bench.paged.source().refuse_in(Some(0));
    while bench.call(&mut plan).is_some() {}
    assert!(bench.paged.get_mut().finish(plan).is_none());
    let larder_core::Progress::Failed(error) = bench.paged.get_mut().advance(&mut attempt) else {
        panic!("a third plan");
    };
    let AllocError::OutOfMemory(out) = error else {
        panic!("{error}");
    };
    assert_eq!((out.cause, out.reserved_bytes), (Cause::SubAllocator, 0));
}

/// Refuses one call of the plan, and then one call of those that undo it. Gives the allocator and
/// the refused undo, if there was one.
fn refuse_twice(scene: fn() -> Scene, first: u64, second: u64) -> Option<(Scene, PageCall)> {
    let (mut bench, request, live) = scene();
    let mut plan = bench.plan(&request);
    for _ in 0..first {
        bench.call(&mut plan);
    }
    bench.paged.source().refuse_in(Some(0));
    bench.call(&mut plan);
    bench.paged.source().refuse_in(Some(second));
    let mut undo = None;
    let mut left = second;
    while let Some(step) = bench.call(&mut plan) {
        if left == 0 {
            undo = undo.or(Some(step));
        }
        left = left.saturating_sub(1);
    }
    bench.paged.source().refuse_in(None);
    assert!(bench.finish(plan).is_none());
    undo.map(|undo| ((bench, request, live), undo))
}

#[test]
fn what_the_device_refuses_to_undo_is_lost_and_nothing_else() {
    let mut seen = 0;
    for scene in SCENES {
        for first in 0..calls(scene).total() {
            for second in 0..3 {
                let Some(((mut bench, request, _live), undo)) = refuse_twice(scene, first, second)
                else {
                    continue;
                };
                seen += 1;
                bench.held();
                let lost = bench.paged.get_mut().lost_bytes();
                match undo {
                    PageCall::Release { bytes, .. } => assert_eq!(lost, bytes),
                    PageCall::Unmap { range, .. } => {
                        assert!(lost == 0 || lost == range.bytes());
                        assert_eq!(bench.paged.page_stats().lost_mappings, 1);
                    }
                    other => panic!("{other:?} undoes nothing"),
                }
                // The limit leaves room for it in two scenes of three; nothing breaks in any.
                match bench.try_alloc(&request) {
                    Ok(block) => bench.free(block),
                    Err(AllocError::OutOfMemory(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                assert_eq!(bench.paged.with(|pool| pool.lost_bytes()), lost);
            }
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn lost_bytes_count_against_the_limit() {
    let mut config = config(64, Backing::Billed);
    config.limit_bytes = 3 * PAGE;
    let mut bench = Bench::new(config);
    let mut plan = bench.plan(&pages(2));
    bench.call(&mut plan);
    bench.call(&mut plan);
    // The second create is refused, and the unmap of the first page.
    bench.paged.source().refuse_in(Some(0));
    bench.call(&mut plan);
    bench.paged.source().refuse_in(Some(0));
    assert!(bench.finish(plan).is_none());
    assert_eq!(bench.paged.get_mut().lost_bytes(), PAGE);
    assert_eq!(bench.cause(&pages(3)), Cause::Limit);
    let block = bench.alloc(&pages(2));
    assert_eq!(
        (bench.held(), bench.paged.source().held_bytes()),
        (2, 3 * PAGE)
    );
    bench.free(block);
    assert_eq!(bench.paged.get_mut().set_limit(2 * PAGE), PAGE);
}

#[test]
fn a_full_device_is_given_what_cannot_move() {
    let config = config(256, Backing::Budget(256 * PAGE));
    let mut bench = Bench::on(PageDevice::new(PAGE, 55 * PAGE), config, 256, 256, 1024);
    let [_ballast, three, _guard, two] = bench.pieces([48, 3, 1, 2]);
    bench.free(three);
    bench.free(two);
    // At the end two pages are free and two are missing; the device has one, and a piece of three
    // pages is idle.
    let _block = bench.alloc(&pages(4));
}
