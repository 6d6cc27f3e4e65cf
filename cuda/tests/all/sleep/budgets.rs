//! Budgets and other jobs: a sleeping allocator is charged nothing, and others may have its memory; it
//! wakes under the limits in force then.

use larder_cuda::{Context, DeviceAllocator, DeviceConfig, Limits, SleepError};

use crate::common::MIB;
use crate::sleep::{Rig, under_all_schedules};

#[test]
fn two_that_need_more_than_there_is_go_by_turns() {
    under_all_schedules(|control| {
        let limits = Limits::new(40 * MIB).unwrap();
        let context = Context::new(0).unwrap();
        let rig = |_| {
            let memory =
                DeviceAllocator::in_budget(&context, DeviceConfig::new(), limits.process());
            Rig::over(control, context.clone(), memory.unwrap())
        };
        let mut rigs = [0, 1].map(rig);
        rigs[1].memory.sleep().unwrap();
        for rig in &mut rigs {
            assert_eq!(limits.process().usage().used_bytes, 0);
            rig.memory.wake().unwrap();
            rig.alloc(32 * MIB);
            rig.memory.sleep().unwrap();
        }
        for turn in 0..6 {
            let (own, other) = (&rigs[turn % 2], &rigs[1 - turn % 2]);
            own.memory.wake().unwrap();
            assert_eq!(limits.process().usage().used_bytes, 32 * MIB);
            assert_eq!(control.used(0), 32 * MIB);
            let refused = other.memory.wake();
            assert!(matches!(refused, Err(SleepError::Budget(_))), "{refused:?}");
            assert!(other.memory.is_asleep());
            own.check();
            own.memory.sleep().unwrap();
            own.assert_asleep();
        }
        for rig in &mut rigs {
            rig.memory.wake().unwrap();
            rig.check();
            rig.free_all();
            rig.memory.release(u64::MAX);
            rig.memory.sleep().unwrap();
        }
    });
}

#[test]
fn the_device_may_be_anothers_when_it_wakes() {
    under_all_schedules(|control| {
        control.set_memory(0, 40 * MIB).unwrap();
        let mut rig = Rig::new(control, DeviceConfig::new());
        rig.fill();
        rig.memory.sleep().unwrap();
        let mut other = Rig::new(control, DeviceConfig::new());
        other.alloc(30 * MIB);
        let held = control.used(0);
        let refused = rig.memory.wake();
        assert!(matches!(refused, Err(SleepError::Device(_))), "{refused:?}");
        rig.context.settle();
        assert_eq!(
            control.used(0),
            held,
            "what it had brought back is gone again"
        );
        assert!(rig.memory.is_asleep());
        other.check();
        other.free_all();
        other.memory.sleep().unwrap();
        rig.memory.wake().unwrap();
        rig.check();
        rig.free_all();
    });
}

#[test]
fn a_limit_that_fell_meanwhile_is_obeyed() {
    under_all_schedules(|control| {
        // Beside a limit memory comes in small pieces, so that nothing is held with two blocks but what is theirs.
        let mut config = DeviceConfig::new();
        config.limit_bytes = 40 * MIB;
        let mut rig = Rig::new(control, config);
        for _ in 0..4 {
            rig.alloc(10 * MIB);
        }
        rig.memory.sleep().unwrap();
        let _ = rig.memory.set_limit(20 * MIB);
        let refused = rig.memory.wake();
        assert!(matches!(refused, Err(SleepError::Budget(_))), "{refused:?}");
        rig.assert_asleep();
        let rest = rig.live.split_off(2);
        rig.free_all();
        rig.live = rest;
        rig.memory.wake().unwrap();
        rig.check();
        assert!(control.used(0) <= 20 * MIB);
        assert!(rig.memory.alloc(&rig.streams[0], 10 * MIB).is_err());
        rig.memory.sleep().unwrap();
        let _ = rig.memory.set_limit(MIB);
        let _ = rig.memory.set_limit(u64::MAX);
        rig.memory.wake().unwrap();
        rig.check();
        rig.alloc(30 * MIB);
        rig.check();
        rig.free_all();
    });
}
