//! Every driver call of a scenario over everything is refused once. Nothing panics, each error names the refusal,
//! successful parts have the right bytes, the same scenario then succeeds with the same objects, and nothing is left
//! when they are dropped.

mod failure;
mod graph;
mod host;
mod objects;
mod scenario;

use larder_cuda::Context;

use crate::common::kernels::register_add;
use crate::common::refusal::{Refusal, SWEEP, Sweep};
use failure::{Failure, is_out_of_memory, names};
use objects::Objects;
use scenario::PARTS;

/// Checks that the refusal explains an error.
#[track_caller]
fn explained(refusal: &Refusal, what: &str, error: &Failure) {
    assert!(refusal.happened(), "{what}: {error:?}");
    assert!(names(error, refusal.code), "{what}: {error:?}");
}

/// Runs all parts. An error ends its part. Only one call is refused, so there is at most one error.
fn run(refusal: &Refusal, objects: &Objects) {
    let mut errors = 0;
    for (name, part) in PARTS {
        // Errors that cudarc cannot return at once come with the next call, or from `check`.
        for act in [part, Objects::check] {
            if let Err(error) = refusal.around(|| act(objects)) {
                // Memory that the driver did not take back counts as held for good, so the budget may run out.
                let lost = objects.memory.page_stats().lost_bytes > 0;
                if !(lost && is_out_of_memory(&error)) {
                    explained(refusal, name, &error);
                }
                errors += 1;
            }
        }
    }
    assert!(errors <= 1, "{errors} errors of one refusal");
}

/// Checks that nothing is in use, and drops all objects.
fn end(refusal: &Refusal, objects: Objects) {
    let Objects {
        context,
        streams,
        add,
        pinned,
        memory,
    } = objects;
    // A refusal may keep memory, which the second round releases.
    for _ in 0..2 {
        refusal.around(|| {
            let _ = context.synchronize();
            memory.release(u64::MAX);
            pinned.release();
        });
    }
    assert_eq!(memory.stats().live_bytes, 0);
    assert_eq!(pinned.stats().live_bytes, 0);
    refusal.around(|| drop((pinned, memory)));
    // Not refused, because cudarc forgets objects that it cannot destroy.
    drop((add, streams));
}

fn sweep(places: fn(u64) -> bool, seed: fn(u64) -> Option<u64>) {
    let sweep = Sweep {
        places,
        seed,
        ..SWEEP
    };
    sweep.run(1000, |refusal| {
        let control = refusal.control;
        // Poisoning pages of 2 MiB again and again would take most of the time.
        control.poison(false);
        register_add(control);
        control.reset_calls();
        // Not refused, because `CudaContext::new` forgets the context that it retained.
        let context = Context::new(0).unwrap();
        let objects = refusal.around(|| Objects::make(&context));
        let objects = objects.unwrap_or_else(|error| {
            explained(refusal, "made", &error);
            let _ = context.cudarc().check_err();
            Objects::make(&context).expect("no second refusal")
        });
        run(refusal, &objects);
        if refusal.happened() {
            run(&Refusal::none(control), &objects);
        } else {
            let [maps, creates] = ["cuMemMap", "cuMemCreate"].map(|name| control.calls(Some(name)));
            assert!(maps > creates, "no page moved");
        }
        end(refusal, objects);
        let _ = context.cudarc().check_err();
        assert_eq!(context.settle(), 0);
    });
}

#[test]
fn any_call_may_be_refused() {
    sweep(|place| place % 2 == 0, |_| None);
}

#[test]
fn any_call_may_be_refused_while_work_is_queued() {
    sweep(|place| place % 2 == 1, |_| Some(7));
}
