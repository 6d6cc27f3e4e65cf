//! Every call of the driver, refused while the allocator falls asleep and while it wakes.

use larder_cuda::SleepError;
use larder_cuda::driver::Rule;

use crate::common::{CODES, MIB, all_faults, alone, assert_clean, is_swept};
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

#[test]
fn every_refused_call_leaves_it_asleep_or_awake() {
    let Some((control, _turn)) = alone("every_refused_call_leaves_it_asleep_or_awake") else {
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
                let what = format!("asleep, code {nth_code}, {times} calls after {skip}");
                // Something idle, so that it is released too.
                let idle = rig.memory.alloc(&rig.streams[0], 9 * MIB).unwrap();
                rig.memory.free(&rig.streams[0], idle).unwrap();
                let before = control.calls(None);
                refuse(&rig, None, skip, times, nth_code);
                let slept = rig.memory.sleep();
                control.clear_failures();
                let calls = control.calls(None) - before;
                if let Err(error) = slept {
                    let known = matches!(error, SleepError::Driver(_) | SleepError::Host { .. });
                    assert!(known, "{what}: {error}");
                    assert!(times > 1 || !rig.memory.is_asleep(), "{what}: {error}");
                    refused += 1;
                }
                assert_whole(&rig, &what);
                rig.memory.wake().unwrap();
                rig.check();
                if calls <= skip {
                    break;
                }
            }
            assert!(refused > 3, "{refused} calls refused a sleep");
            refused = 0;
            for skip in 0.. {
                if !is_swept(nth_code, skip as usize) {
                    continue;
                }
                let what = format!("awake, code {nth_code}, {times} calls after {skip}");
                rig.memory.sleep().unwrap();
                let before = control.calls(None);
                refuse(&rig, None, skip, times, nth_code);
                let woken = rig.memory.wake();
                control.clear_failures();
                let calls = control.calls(None) - before;
                if let Err(error) = woken {
                    let known = matches!(error, SleepError::Driver(_) | SleepError::Device(_));
                    assert!(known, "{what}: {error}");
                    assert!(rig.memory.is_asleep(), "{what}");
                    if times == 1 {
                        rig.assert_asleep();
                    }
                    refused += 1;
                    if skip % 2 == 0 {
                        assert_whole(&rig, &what);
                    }
                    rig.memory.wake().unwrap();
                }
                rig.check();
                if calls <= skip {
                    break;
                }
            }
            assert!(refused > 3, "{refused} calls refused a wake");
            rig.free_all();
            drop(rig);
            assert_clean(control);
        }
    }
    control.poison(false);
}

/// A sleep that is refused, and whose way back is refused too, is asleep; both ways lead on.
#[test]
fn a_way_back_that_is_refused_leaves_it_asleep() {
    let Some((control, _turn)) = alone("a_way_back_that_is_refused_leaves_it_asleep") else {
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
