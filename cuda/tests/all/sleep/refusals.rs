//! Every driver call, refused while the allocator falls asleep and while it wakes.

use larder_cuda::SleepError;
use larder_cuda::driver::Rule;

use crate::common::{CODES, MIB, all_faults, alone, assert_clean, is_swept, ran_in_child};
use crate::sleep::{Rig, arenas};

/// Calls refused in a row.
const RUNS: [u64; 3] = [1, 2, 3];

fn refuse(rig: &Rig, function: Option<&str>, skip: u64, times: u64, nth_code: usize) {
    let rule = Rule {
        function,
        skip,
        times,
        code: CODES[nth_code],
    };
    rig.control.fail(rule).unwrap();
}

/// After a refusal: asleep or awake, and able to go on.
fn assert_whole(rig: &Rig, what: &str) {
    if !rig.memory.is_asleep() {
        rig.check();
        let block = rig.memory.alloc(&rig.streams[0], MIB).unwrap();
        rig.memory.free(&rig.streams[0], block).unwrap();
    }
    let slept = rig.memory.sleep();
    assert!(slept.is_ok(), "{what}: {slept:?}");
    rig.assert_asleep();
}

/// Runs `act` with an allocator and each refusal in turn: how many calls are made first, and what it is.
/// `act` says how many calls were made, and whether that was refused.
fn sweep(act: impl Fn(&Rig, &str, &dyn Fn()) -> (u64, bool)) {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    control.poison(true);
    for times in RUNS {
        for nth_code in 0..CODES.len() {
            if times > 1 && nth_code != 0 && !all_faults() {
                continue;
            }
            let mut rig = Rig::new(control, arenas());
            rig.fill();
            let mut refused = 0;
            for skip in 0.. {
                if !is_swept(nth_code, skip as usize) {
                    continue;
                }
                let what = format!("code {nth_code}, {times} calls after {skip}");
                let (calls, was_refused) =
                    act(&rig, &what, &|| refuse(&rig, None, skip, times, nth_code));
                rig.check();
                refused += u64::from(was_refused);
                if calls <= skip {
                    break;
                }
            }
            assert!(refused > 3, "only {refused} calls were of use");
            rig.free_all();
            drop(rig);
            assert_clean(control);
        }
    }
    control.poison(false);
}

/// Does something while calls are refused; the number of calls.
fn refusing<R>(rig: &Rig, refuse: &dyn Fn(), act: impl FnOnce() -> R) -> (R, u64) {
    let before = rig.control.calls(None);
    refuse();
    let answer = act();
    rig.control.clear_failures();
    (answer, rig.control.calls(None) - before)
}

#[test]
fn every_refused_call_leaves_it_awake_and_able_to_sleep() {
    sweep(|rig, what, refuse| {
        // Something idle, so that it is released too.
        let idle = rig.memory.alloc(&rig.streams[0], 9 * MIB).unwrap();
        rig.memory.free(&rig.streams[0], idle).unwrap();
        let (slept, calls) = refusing(rig, refuse, || rig.memory.sleep());
        if let Err(error) = slept {
            let known = matches!(error, SleepError::Driver(_) | SleepError::Host { .. });
            assert!(known, "{what}: {error}");
            let is_one = what.contains(", 1 calls");
            assert!(!is_one || !rig.memory.is_asleep(), "{what}: {error}");
        }
        assert_whole(rig, what);
        rig.memory.wake().unwrap();
        (calls, slept.is_err())
    });
}

#[test]
fn every_refused_call_leaves_it_asleep_and_able_to_wake() {
    sweep(|rig, what, refuse| {
        rig.memory.sleep().unwrap();
        let (woken, calls) = refusing(rig, refuse, || rig.memory.wake());
        if let Err(error) = woken {
            let known = matches!(error, SleepError::Driver(_) | SleepError::Device(_));
            assert!(known, "{what}: {error}");
            assert!(rig.memory.is_asleep(), "{what}");
            if what.contains(", 1 calls") {
                rig.assert_asleep();
            } else {
                assert_whole(rig, what);
            }
            rig.memory.wake().unwrap();
        }
        (calls, woken.is_err())
    });
}

/// A sleep that is refused, and whose way back is refused too, is asleep; both ways lead on.
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
                // So that all unmaps are the sleep's own.
                rig.memory.release(u64::MAX);
                refuse(&rig, Some("cuMemUnmap"), skip + 1, 1, 1);
                refuse(&rig, Some(back), 0, 1, 1);
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
