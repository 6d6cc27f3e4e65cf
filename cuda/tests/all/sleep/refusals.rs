//! Every driver call is refused while the allocator falls asleep and while it wakes.

use larder_cuda::SleepError;
use larder_cuda::driver::Rule;

use crate::common::refusal::{Refusal, SWEEP, Sweep};
use crate::common::{CODES, MIB, all_faults, alone, assert_clean, ran_in_child};
use crate::sleep::{Rig, arenas};

/// Checks that the allocator still works after a refusal, asleep or awake, and puts it to sleep.
fn assert_whole(rig: &Rig) {
    if !rig.memory.is_asleep() {
        rig.check();
        let block = rig.memory.alloc(&rig.streams[0], MIB).unwrap();
        rig.memory.free(&rig.streams[0], block).unwrap();
    }
    assert!(rig.memory.sleep().is_ok());
    rig.assert_asleep();
}

/// Runs `act` with an allocator and each refusal in turn: of one call, and of several in a row.
fn sweep(least: u64, act: impl Fn(&Rig, &Refusal)) {
    for times in [1, 2, 3] {
        let few = times > 1 && !all_faults();
        let sweep = Sweep {
            codes: if few { &CODES[..1] } else { &CODES },
            times,
            ..SWEEP
        };
        sweep.run(least, |refusal| {
            refusal.control.poison(true);
            let mut rig = Rig::new(refusal.control, arenas());
            rig.fill();
            act(&rig, refusal);
            rig.check();
            rig.free_all();
            refusal.control.poison(false);
        });
    }
}

#[test]
fn every_refused_call_leaves_it_awake_and_able_to_sleep() {
    sweep(20, |rig, refusal| {
        // Idle memory is released too.
        let idle = rig.memory.alloc(&rig.streams[0], 9 * MIB).unwrap();
        rig.memory.free(&rig.streams[0], idle).unwrap();
        if let Err(error) = refusal.around(|| rig.memory.sleep()) {
            let known = matches!(error, SleepError::Driver(_) | SleepError::Host { .. });
            assert!(known && refusal.happened(), "{error}");
            assert!(refusal.times > 1 || !rig.memory.is_asleep(), "{error}");
        }
        assert_whole(rig);
        rig.memory.wake().unwrap();
    });
}

#[test]
fn every_refused_call_leaves_it_asleep_and_able_to_wake() {
    sweep(20, |rig, refusal| {
        rig.memory.sleep().unwrap();
        if let Err(error) = refusal.around(|| rig.memory.wake()) {
            let known = matches!(error, SleepError::Driver(_) | SleepError::Device(_));
            assert!(known && refusal.happened(), "{error}");
            assert!(rig.memory.is_asleep());
            if refusal.times == 1 {
                rig.assert_asleep();
            } else {
                assert_whole(rig);
            }
            rig.memory.wake().unwrap();
        }
    });
}

/// If a sleep is refused and undoing it is refused too, the allocator is asleep. It can then sleep again or wake.
#[test]
fn a_way_back_that_is_refused_leaves_it_asleep() {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    control.poison(true);
    for skip in 0..6 {
        for back in ["cuMemMap", "cuMemSetAccess"] {
            for sleeps_on in [true, false] {
                let mut rig = Rig::new(control, arenas());
                rig.fill();
                // So that only the sleep unmaps memory.
                rig.memory.release(u64::MAX);
                for rule in [Rule::of("cuMemUnmap").after(skip + 1), Rule::of(back)] {
                    control.fail(rule).unwrap();
                }
                let slept = rig.memory.sleep();
                control.clear_failures();
                assert!(matches!(slept, Err(SleepError::Driver(_))), "{slept:?}");
                assert!(rig.memory.is_asleep());
                assert!(rig.memory.alloc(&rig.streams[0], 100).is_err());
                if sleeps_on {
                    rig.memory.sleep().unwrap();
                    rig.assert_asleep();
                }
                rig.memory.wake().unwrap();
                rig.check();
                rig.free_all();
                drop(rig);
                assert_clean(control);
            }
        }
    }
    control.poison(false);
}
