//! The table on real memory: bytes under every schedule, and the driver's calls.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtrMut};
use larder_cuda::synced::{CopyError, Head, HostMemory};
use larder_cuda::{Context, DeviceAllocError, PinnedAllocator, PinnedConfig, SyncedMemory};

use crate::common::{alone_and_clean, fill, under_all_schedules};
use crate::synced::{SEEDS, Setup};

const LEN: usize = 1000;

fn write_on(stream: &Arc<CudaStream>, memory: &mut SyncedMemory<'_, u8>, value: u8) {
    let mut view = memory.gpu_mut().unwrap();
    let (at, _guard) = view.device_ptr_mut(stream);
    fill(stream, at, LEN as u64, value);
}

fn in_state<'a>(setup: &Setup, kind: &HostMemory, head: Head, value: u8) -> SyncedMemory<'a, u8> {
    let mut memory = setup.make(kind, LEN);
    match head {
        Head::Uninitialized => {}
        Head::Host => memory.cpu_mut().unwrap().fill(value),
        Head::Device => write_on(&setup.other, &mut memory, value),
        Head::Synced => {
            write_on(&setup.other, &mut memory, value);
            memory.cpu().unwrap();
        }
    }
    assert_eq!(memory.head(), head);
    memory
}

/// Copies and fills of the driver that were called.
fn copies(control: &larder_cuda::driver::StandIn) -> (u64, u64, u64) {
    let calls = |name| control.calls(Some(name));
    (
        calls("cuMemcpyHtoDAsync_v2"),
        calls("cuMemcpyDtoHAsync_v2"),
        calls("cuMemsetD8Async"),
    )
}

/// The effects of an access: the head after it; copies to the device, to the host, and fills.
type Access = (Head, (u64, u64, u64));

/// The effects of `cpu`, `cpu_mut`, `gpu` and `gpu_mut` in each state.
const TABLE: [(Head, [Access; 4]); 4] = [
    (
        Head::Uninitialized,
        [
            (Head::Host, (0, 0, 0)),
            (Head::Host, (0, 0, 0)),
            (Head::Device, (0, 0, 1)),
            (Head::Device, (0, 0, 1)),
        ],
    ),
    (
        Head::Host,
        [
            (Head::Host, (0, 0, 0)),
            (Head::Host, (0, 0, 0)),
            (Head::Synced, (1, 0, 0)),
            (Head::Device, (1, 0, 0)),
        ],
    ),
    (
        Head::Device,
        [
            (Head::Synced, (0, 1, 0)),
            (Head::Host, (0, 1, 0)),
            (Head::Device, (0, 0, 0)),
            (Head::Device, (0, 0, 0)),
        ],
    ),
    (
        Head::Synced,
        [
            (Head::Synced, (0, 0, 0)),
            (Head::Host, (0, 0, 0)),
            (Head::Synced, (0, 0, 0)),
            (Head::Device, (0, 0, 0)),
        ],
    ),
];

#[test]
fn sm_1_the_table_on_a_device() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        for kind in setup.kinds() {
            under_all_schedules(control, SEEDS, || {
                for (head, row) in TABLE {
                    for (method, (after, calls)) in row.into_iter().enumerate() {
                        let value = if head == Head::Uninitialized { 0 } else { 7 };
                        let mut memory = in_state(&setup, &kind, head, value);
                        control.reset_calls();
                        let bytes = match method {
                            0 => memory.cpu().unwrap().to_vec(),
                            1 => memory.cpu_mut().unwrap().to_vec(),
                            2 => {
                                let view = memory.gpu().unwrap();
                                assert_eq!(copies(control), calls);
                                setup.other.clone_dtoh(&view).unwrap()
                            }
                            _ => {
                                let view = memory.gpu_mut().unwrap();
                                assert_eq!(copies(control), calls);
                                setup.other.clone_dtoh(&view).unwrap()
                            }
                        };
                        if method < 2 {
                            assert_eq!(copies(control), calls, "{head:?}, {method}");
                        }
                        assert_eq!(bytes, [value; LEN], "{head:?}, {method}");
                        assert_eq!(memory.head(), after, "{head:?}, {method}");
                    }
                }
            });
        }
        setup.assert_nothing_lives();
    });
}

#[test]
fn sm_2_what_nobody_wrote_reads_as_zeros() {
    alone_and_clean(|control| {
        control.poison(true);
        let setup = Setup::new();
        for kind in setup.kinds() {
            under_all_schedules(control, SEEDS, || {
                // Memory that was used before.
                write_on(&setup.stream, &mut setup.make(&kind, LEN), 0xcd);
                setup.make::<u8>(&kind, LEN).cpu_mut().unwrap().fill(0xcd);
                assert_eq!(setup.make::<u8>(&kind, LEN).cpu().unwrap(), [0; LEN]);
                let mut memory = setup.make::<u8>(&kind, LEN);
                let view = memory.gpu().unwrap();
                assert_eq!(setup.other.clone_dtoh(&view).unwrap(), [0; LEN]);
                assert_eq!(memory.cpu().unwrap(), [0; LEN]);
            });
        }
        control.poison(false);
        setup.assert_nothing_lives();
    });
}

/// The two sides take turns, on two streams.
#[test]
fn the_newest_values_are_always_seen() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        for kind in setup.kinds() {
            under_all_schedules(control, SEEDS, || {
                let mut memory = setup.make::<u8>(&kind, LEN);
                for value in 1..4 {
                    memory.cpu_mut().unwrap().fill(value);
                    let view = memory.gpu().unwrap();
                    assert_eq!(setup.other.clone_dtoh(&view).unwrap(), [value; LEN]);
                    // The host writes while the copy to the device may be under way still.
                    memory.cpu_mut().unwrap().fill(value + 10);
                    memory.gpu().unwrap();
                    memory.cpu_mut().unwrap().fill(value + 20);
                    let view = memory.gpu().unwrap();
                    assert_eq!(setup.stream.clone_dtoh(&view).unwrap(), [value + 20; LEN]);
                    write_on(&setup.other, &mut memory, value + 30);
                    write_on(&setup.stream, &mut memory, value + 40);
                    assert_eq!(memory.cpu().unwrap(), [value + 40; LEN]);
                }
            });
        }
        setup.assert_nothing_lives();
    });
}

#[test]
fn overwriting_copies_nothing_and_an_unfinished_one_shows_nothing() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        for kind in setup.kinds() {
            let mut memory = in_state(&setup, &kind, Head::Device, 5);
            control.reset_calls();
            memory
                .cpu_overwrite()
                .unwrap()
                .copy_from_slice(&[6; LEN])
                .unwrap();
            assert_eq!(copies(control), (0, 0, 0));
            assert_eq!(memory.cpu().unwrap(), [6; LEN]);
            let over = memory.gpu_overwrite().unwrap();
            over.copy_from(&setup.other, &[7; LEN]).unwrap();
            assert_eq!(copies(control), (1, 0, 0));
            assert_eq!(memory.cpu().unwrap(), [7; LEN]);
            let mut over = memory.gpu_overwrite().unwrap();
            let mut view = over.view();
            let (at, guard) = view.device_ptr_mut(&setup.stream);
            fill(&setup.stream, at, LEN as u64, 8);
            drop(guard);
            // SAFETY: all of it is written.
            unsafe { over.written() };
            assert_eq!(memory.cpu().unwrap(), [8; LEN]);
            // Wrong lengths, and what was left off.
            assert_eq!(memory.head(), Head::Synced);
            let over = memory.cpu_overwrite().unwrap();
            assert!(over.copy_from_slice(&[1; LEN + 1]).is_err());
            assert_eq!(memory.cpu().unwrap(), [8; LEN], "the device has them");
            let over = memory.gpu_overwrite().unwrap();
            assert!(over.copy_from(&setup.stream, &[1; LEN - 1]).is_err());
            assert_eq!(memory.cpu().unwrap(), [8; LEN], "the host has them");
            memory.cpu_mut().unwrap();
            let mut over = memory.cpu_overwrite().unwrap();
            over[0].write(9);
            assert_eq!(memory.head(), Head::Uninitialized);
            assert_eq!(memory.cpu().unwrap(), [0; LEN]);
        }
        setup.assert_nothing_lives();
    });
}

#[test]
fn sm_7_no_bytes_touch_no_driver() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        for kind in setup.kinds() {
            control.reset_calls();
            let mut memory = setup.make::<u32>(&kind, 0);
            assert!(memory.cpu().unwrap().is_empty());
            assert!(memory.gpu().unwrap().is_empty());
            assert!(memory.cpu_mut().unwrap().is_empty());
            drop(memory.push_async(&setup.stream).unwrap());
            assert!(memory.gpu_mut().unwrap().is_empty());
            drop(memory.pull_async(&setup.stream).unwrap());
            assert_eq!(memory.head(), Head::Synced);
            memory
                .cpu_overwrite()
                .unwrap()
                .copy_from_slice(&[])
                .unwrap();
            let over = memory.gpu_overwrite().unwrap();
            over.copy_from(&setup.stream, &[]).unwrap();
            assert!(memory.is_empty() && !memory.owns_host() && !memory.owns_device());
            drop(memory);
            let mut units = setup.make::<[u32; 0]>(&kind, 7);
            assert_eq!(units.cpu_mut().unwrap(), [[0_u32; 0]; 7]);
            assert_eq!(units.gpu().unwrap().len(), 7);
            assert_eq!(units.num_bytes(), 0);
            drop(units);
            assert_eq!(control.calls(None), 0, "{:?}", control.call_table());
        }
        let sizes = SyncedMemory::<u64>::new(
            &setup.device,
            &setup.stream,
            HostMemory::Pageable,
            usize::MAX / 4,
        );
        assert!(matches!(
            sizes.unwrap_err(),
            DeviceAllocError::Memory { .. }
        ));
    });
}

#[test]
fn sm_8_memory_goes_back_to_its_device_whatever_is_current() {
    alone_and_clean(|control| {
        let elsewhere = Context::new(1).unwrap();
        let setup = Setup::new();
        let current = || control_context();
        for kind in setup.kinds() {
            let mut memory = in_state(&setup, &kind, Head::Synced, 3);
            elsewhere.cudarc().bind_to_thread().unwrap();
            let before = current();
            let used = control.used(1);
            memory.cpu_mut().unwrap().fill(4);
            memory.gpu().unwrap();
            memory.gpu_mut().unwrap();
            memory.cpu().unwrap();
            memory.gpu_mut().unwrap();
            drop(memory.pull_async(&setup.other).unwrap());
            assert_eq!(memory.cpu().unwrap(), [4; LEN]);
            assert_eq!(current(), before, "what was current is again");
            drop(memory);
            assert_eq!(current(), before, "also after the drop");
            assert_eq!(control.used(1), used);
            setup.assert_nothing_lives();
        }
    });
}

fn control_context() -> Option<usize> {
    let current = cudarc::driver::result::ctx::get_current().unwrap();
    current.map(|context| context.addr())
}

#[test]
fn the_kind_of_host_memory_is_each_objects_policy() {
    alone_and_clean(|_| {
        let setup = Setup::new();
        let none = PinnedAllocator::with_limit(&setup.context, PinnedConfig::default(), 1).unwrap();
        let strict = HostMemory::Pinned(none.clone());
        let mut memory = setup.make::<u8>(&strict, LEN);
        let error = memory.cpu().unwrap_err();
        let is_memory = |error: &_| matches!(error, DeviceAllocError::Memory { .. });
        assert!(is_memory(&error), "{error}");
        assert_eq!(memory.head(), Head::Uninitialized);
        let lenient = HostMemory::PinnedOrPageable(none);
        assert_eq!(setup.make::<u8>(&lenient, LEN).cpu().unwrap(), [0; LEN]);
        let pinned = HostMemory::Pinned(setup.pinned.clone());
        let mut memory = setup.make::<u8>(&pinned, LEN);
        memory.cpu().unwrap();
        assert!(setup.pinned.stats().live_bytes >= LEN as u64);
        drop(memory);
        let mut huge = setup.make::<u8>(&HostMemory::Pageable, isize::MAX as usize - 4096);
        let error = huge.cpu().unwrap_err();
        assert!(
            matches!(error, DeviceAllocError::Pageable { .. }),
            "{error}"
        );
        let error = huge.push_async(&setup.stream).unwrap_err();
        assert_eq!(error, CopyError::Head(Head::Uninitialized));
    });
}
