//! Adopted memory.

use core::ptr::NonNull;

use cudarc::driver::DevicePtr;
use larder_cuda::synced::{Head, HostMemory};
use larder_cuda::{AdoptError, Context, DeviceAllocator};

use crate::common::{alone_and_clean, together, under_all_schedules};
use crate::synced::{LEN, SEEDS, Setup, each_kind, under_all, write_on};

#[test]
fn sm_3_what_the_device_wrote_lands_in_adopted_host_memory() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        let kind = HostMemory::Pageable;
        under_all_schedules(control, SEEDS, || {
            let mut mine = vec![1u8; LEN];
            {
                let mut memory = setup.make(&kind, LEN);
                let before = memory.adopt_host_borrowed(&mut mine).unwrap();
                assert_eq!(before, Head::Uninitialized);
                assert!(!memory.owns_host());
                assert_eq!(setup.seen(&mut memory), [1; LEN]);
                write_on(&setup.other, &mut memory, 2);
                memory.cpu().unwrap();
            }
            assert_eq!(mine, [2; LEN]);
            {
                let mut memory = setup.make(&kind, LEN);
                let raw = NonNull::from(&mut mine[..]);
                // SAFETY: nothing else uses the vector while `memory` lives.
                unsafe { memory.adopt_host_raw(raw) }.unwrap();
                assert!(!memory.owns_host());
                write_on(&setup.other, &mut memory, 3);
                memory.pull_async(&setup.stream).unwrap().wait().unwrap();
            }
            assert_eq!(mine, [3; LEN]);
        });
        setup.assert_nothing_lives();
    });
}

#[test]
fn sm_3_what_the_host_wrote_lands_in_adopted_device_memory() {
    under_all(|_, setup, kind| {
        let mut mine = setup.device.upload(&setup.other, &[1u8; 2 * LEN]).unwrap();
        {
            let mut memory = setup.make(kind, LEN);
            memory.adopt_device_borrowed(mine.slice_mut(LEN..)).unwrap();
            assert!(!memory.owns_device());
            assert_eq!(memory.cpu().unwrap(), [1; LEN]);
            memory.cpu_mut().unwrap().fill(2);
            memory.gpu().unwrap();
        }
        let bytes = setup.other.clone_dtoh(&mine).unwrap();
        assert_eq!((bytes[LEN - 1], bytes[LEN]), (1, 2));
        setup.context.synchronize().unwrap();
        let at = mine.device_ptr(&setup.stream).0;
        {
            let mut memory = setup.make::<u8>(kind, LEN);
            // SAFETY: nothing else uses the first half while `memory` lives, and the test waits for its work below.
            unsafe { memory.adopt_device_raw(at, LEN) }.unwrap();
            assert!(!memory.owns_device());
            assert_eq!(memory.cpu_mut().unwrap(), [1; LEN]);
            memory.cpu_mut().unwrap().fill(3);
            memory.push_async(&setup.other).unwrap().wait().unwrap();
        }
        setup.context.synchronize().unwrap();
        let bytes = setup.other.clone_dtoh(&mine).unwrap();
        assert_eq!((bytes[0], bytes[LEN - 1], bytes[LEN]), (3, 3, 2));
    });
}

/// Adopting memory on one side frees what this side owned, keeps the other side's memory, and returns the previous
/// state.
#[test]
fn owned_memory_is_adopted_and_freed() {
    each_kind(|_, setup, kind| {
        let mut memory = setup.make::<u8>(kind, LEN);
        memory.gpu_mut().unwrap();
        assert_eq!(memory.adopt_host(vec![1; LEN]).unwrap(), Head::Device);
        assert!(memory.owns_host() && memory.owns_device());
        assert_eq!(setup.seen(&mut memory), [1; LEN]);
        let boxed = vec![2; LEN].into_boxed_slice();
        assert_eq!(memory.adopt_host(boxed).unwrap(), Head::Synced);
        let pinned = setup.pinned.copy_of(&[3; LEN]).unwrap();
        assert_eq!(memory.adopt_pinned(pinned).unwrap(), Head::Host);
        assert_eq!(setup.seen(&mut memory), [3; LEN]);
        let buffer = setup.device.upload(&setup.other, &[4; LEN]).unwrap();
        memory.adopt_device(buffer).unwrap();
        assert_eq!(memory.cpu().unwrap(), [4; LEN]);
    });
}

#[test]
fn memory_that_does_not_fit_comes_back() {
    let _turn = together();
    let setup = Setup::new();
    let mut memory = setup.make::<u8>(&HostMemory::Pageable, LEN);
    memory.cpu_mut().unwrap().fill(9);
    let len = |len| AdoptError::Len { len, needed: LEN };
    let rejected = memory.adopt_host(vec![1; LEN - 1]).unwrap_err();
    let came_back = (rejected.value.len(), rejected.error);
    assert_eq!(came_back, (LEN - 1, len(LEN - 1)));
    let mut short = [0; 3];
    let error = memory.adopt_host_borrowed(&mut short).unwrap_err();
    assert_eq!(error, len(3));
    let pinned = setup.pinned.zeros(LEN + 1).unwrap();
    let rejected = memory.adopt_pinned(pinned).unwrap_err();
    let came_back = (rejected.value.len(), rejected.error);
    assert_eq!(came_back, (LEN + 1, len(LEN + 1)));
    let buffer = setup.device.zeros(&setup.stream, 1).unwrap();
    let rejected = memory.adopt_device(buffer).unwrap_err();
    assert_eq!((rejected.value.len(), rejected.error), (1, len(1)));
    // SAFETY: the call is refused before it accesses the memory.
    let error = unsafe { memory.adopt_device_raw(4096, 1) }.unwrap_err();
    assert_eq!(error, len(1));
    // SAFETY: the call is refused before it accesses the memory.
    let error = unsafe { memory.adopt_host_raw(NonNull::from(&mut [0u8][..])) }.unwrap_err();
    assert_eq!(error, len(1));
    assert_eq!(memory.head(), Head::Host);
    assert_eq!(memory.cpu().unwrap(), [9; LEN]);
}

#[test]
fn memory_of_another_device_is_not_adopted() {
    alone_and_clean(|_| {
        let setup = Setup::new();
        let elsewhere = Context::new(1).unwrap();
        let device = DeviceAllocator::new(&elsewhere).unwrap();
        let stream = elsewhere.cudarc().new_stream().unwrap();
        let mut memory = setup.make::<u8>(&HostMemory::Pageable, LEN);
        let mut buffer = device.zeros(&stream, LEN).unwrap();
        let mut other = setup.make::<u8>(&HostMemory::Pageable, LEN);
        let error = other.adopt_device_borrowed(buffer.as_view_mut());
        assert_eq!(error, Err(AdoptError::Device));
        drop(other);
        let rejected = memory.adopt_device(buffer).unwrap_err();
        assert_eq!(rejected.error, AdoptError::Device);
        assert_eq!(memory.head(), Head::Uninitialized);
    });
}
