//! Asynchronous copies.

use std::mem::forget;

use larder_cuda::synced::{CopyError, Head, HostMemory};
use larder_cuda::{DeviceAllocError, SyncedMemory};

use crate::common::alone_and_clean;
use crate::synced::{LEN, SEEDS, Setup, each_kind, under_all, write_on};

#[test]
fn a_push_and_a_pull_bring_the_values() {
    under_all(|_, setup, kind| {
        let mut memory = setup.make::<u8>(kind, LEN);
        memory.cpu_mut().unwrap().fill(1);
        memory.push_async(&setup.other).unwrap().wait().unwrap();
        assert_eq!(memory.head(), Head::Synced);
        memory.cpu_mut().unwrap().fill(2);
        drop(memory.push_async(&setup.other).unwrap());
        let view = memory.gpu().unwrap();
        assert_eq!(setup.stream.clone_dtoh(&view).unwrap(), [2; LEN]);
        write_on(&setup.stream, &mut memory, 3);
        memory.pull_async(&setup.other).unwrap().wait().unwrap();
        assert_eq!(memory.head(), Head::Synced);
        assert_eq!(memory.cpu().unwrap(), [3; LEN]);
    });
}

#[test]
fn a_pinned_copy_is_waited_for_by_its_guard_and_not_before() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        let kind = HostMemory::Pinned(setup.pinned.clone());
        let mut was_under_way = false;
        for seed in 0..SEEDS {
            let mut memory = setup.make::<u8>(&kind, LEN);
            memory.cpu_mut().unwrap().fill(1);
            setup.context.synchronize().unwrap();
            control.schedule_deferred(seed);
            control.reset_calls();
            let guard = memory.push_async(&setup.other).unwrap();
            assert_eq!(control.calls(Some("cuEventSynchronize")), 0);
            assert_eq!(control.calls(Some("cuStreamSynchronize")), 0);
            was_under_way |= !setup.context.is_done(&setup.other).unwrap();
            drop(guard);
            assert_eq!(control.calls(Some("cuEventSynchronize")), 1);
            assert_eq!(setup.context.is_done(&setup.other), Ok(true));
            control.schedule_eagerly();
        }
        assert!(was_under_way);
        setup.assert_nothing_lives();
    });
}

/// If a guard is forgotten, the next use waits for the copy, or the memory is kept until the copy has ended.
#[test]
fn a_forgotten_guard_loses_nothing() {
    under_all(|_, setup, kind| {
        let mut memory = setup.make::<u8>(kind, LEN);
        memory.cpu_mut().unwrap().fill(1);
        forget(memory.push_async(&setup.other).unwrap());
        assert_eq!(memory.head(), Head::Synced);
        memory.cpu_mut().unwrap().fill(2);
        memory.gpu().unwrap();
        write_on(&setup.other, &mut memory, 3);
        forget(memory.pull_async(&setup.other).unwrap());
        assert_eq!(memory.cpu().unwrap(), [3; LEN]);
        // The memory is dropped during a copy, and `next` may get it.
        write_on(&setup.other, &mut memory, 4);
        forget(memory.pull_async(&setup.other).unwrap());
        drop(memory);
        let mut next = setup.make::<u8>(kind, LEN);
        next.cpu_mut().unwrap().fill(5);
        setup.context.synchronize().unwrap();
        assert_eq!(next.cpu().unwrap(), [5; LEN]);
        // The host's side is replaced during a copy.
        forget(next.push_async(&setup.other).unwrap());
        next.adopt_host(vec![6; LEN]).unwrap();
        let view = next.gpu().unwrap();
        assert_eq!(setup.stream.clone_dtoh(&view).unwrap(), [6; LEN]);
    });
}

#[test]
fn sm_5_a_copy_from_a_side_that_is_not_newest_is_refused() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        let mut memory = setup.make::<u8>(&HostMemory::Pageable, LEN);
        let refused = |memory: &mut SyncedMemory<'_, u8>, push: bool| {
            let head = memory.head();
            control.reset_calls();
            let error = if push {
                memory.push_async(&setup.stream).unwrap_err()
            } else {
                memory.pull_async(&setup.stream).unwrap_err()
            };
            assert_eq!(error, CopyError::Head(head));
            assert_eq!(memory.head(), head);
            assert_eq!(control.calls(None), 0);
        };
        refused(&mut memory, true);
        refused(&mut memory, false);
        memory.cpu_mut().unwrap().fill(1);
        refused(&mut memory, false);
        memory.gpu().unwrap();
        refused(&mut memory, true);
        refused(&mut memory, false);
        memory.gpu_mut().unwrap();
        refused(&mut memory, true);
        assert_eq!(memory.cpu().unwrap(), [1; LEN]);
    });
}

#[test]
fn a_copy_while_the_devices_side_sleeps_is_refused_in_words_and_nothing_is_lost() {
    each_kind(|_, setup, kind| {
        let (sleep, wake) = (
            || setup.device.sleep().unwrap(),
            || setup.device.wake().unwrap(),
        );
        let mut memory = setup.in_state(kind, Head::Device, 3);
        sleep();
        let pulled = memory.pull_async(&setup.other);
        let asleep = matches!(pulled, Err(CopyError::Backend(DeviceAllocError::Asleep)));
        assert!(asleep, "{pulled:?}");
        drop(pulled);
        assert_eq!(memory.cpu().map(drop), Err(DeviceAllocError::Asleep));
        wake();
        assert_eq!(memory.cpu().unwrap(), [3; LEN]);
        memory.cpu_mut().unwrap().fill(5);
        sleep();
        assert_eq!(memory.gpu().map(drop), Err(DeviceAllocError::Asleep));
        wake();
        assert_eq!(setup.seen(&mut memory), [5; LEN]);
        // Overwriting gives up the old values, so the refused copy loses nothing.
        sleep();
        let lent = memory.gpu_overwrite().unwrap();
        let written = lent.copy_from(&setup.stream, &[4; LEN]);
        assert_eq!(written, Err(DeviceAllocError::Asleep));
        wake();
    });
}
