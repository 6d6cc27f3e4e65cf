//! The transition table on real memory: bytes under every schedule, and driver calls.

use cudarc::driver::DevicePtrMut;
use larder_cuda::driver::StandIn;
use larder_cuda::synced::{CopyError, Head, HostMemory};
use larder_cuda::{Context, DeviceAllocError, PinnedAllocator, PinnedConfig, SyncedMemory};

use crate::common::{alone_and_clean, fill};
use crate::synced::table::{Method, expected};
use crate::synced::{HEADS, LEN, Setup, each_kind, under_all, write_on};

/// Returns how many copies to the device, copies to the host, and fills were called.
fn copies(control: &StandIn) -> [u64; 3] {
    let names = [
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemsetD8Async",
    ];
    names.map(|name| control.calls(Some(name)))
}

#[test]
fn sm_1_the_table_on_a_device() {
    under_all(|control, setup, kind| {
        for head in HEADS {
            for method in [Method::Cpu, Method::CpuMut, Method::Gpu, Method::GpuMut] {
                let (calls, after) = expected(method, head).unwrap();
                let count = |call| u64::from(calls.contains(&call));
                let calls = ["copy to device", "copy to host", "zero device"].map(count);
                let value = if head == Head::Uninitialized { 0 } else { 7 };
                let mut memory = setup.in_state(kind, head, value);
                control.reset_calls();
                let (bytes, called) = match method {
                    Method::Cpu => (memory.cpu().unwrap().to_vec(), copies(control)),
                    Method::CpuMut => (memory.cpu_mut().unwrap().to_vec(), copies(control)),
                    Method::Gpu => {
                        let (view, called) = (memory.gpu().unwrap(), copies(control));
                        (setup.other.clone_dtoh(&view).unwrap(), called)
                    }
                    _ => {
                        let (view, called) = (memory.gpu_mut().unwrap(), copies(control));
                        (setup.other.clone_dtoh(&view).unwrap(), called)
                    }
                };
                assert_eq!(called, calls, "{method:?} in {head:?}");
                assert_eq!(bytes, [value; LEN], "{method:?} in {head:?}");
                assert_eq!(memory.head(), after, "{method:?} in {head:?}");
            }
        }
    });
}

#[test]
fn sm_2_what_nobody_wrote_reads_as_zeros() {
    under_all(|control, setup, kind| {
        control.poison(true);
        // The objects below may get this memory, which is not zero.
        write_on(&setup.stream, &mut setup.make(kind, LEN), 0xcd);
        setup.make::<u8>(kind, LEN).cpu_mut().unwrap().fill(0xcd);
        assert_eq!(setup.make::<u8>(kind, LEN).cpu().unwrap(), [0; LEN]);
        let mut memory = setup.make::<u8>(kind, LEN);
        assert_eq!(setup.seen(&mut memory), [0; LEN]);
        assert_eq!(memory.cpu().unwrap(), [0; LEN]);
        control.poison(false);
    });
}

/// The two sides take turns at writing, on two streams.
#[test]
fn the_newest_values_are_always_seen() {
    under_all(|_, setup, kind| {
        let mut memory = setup.make::<u8>(kind, LEN);
        for value in 1..4 {
            memory.cpu_mut().unwrap().fill(value);
            assert_eq!(setup.seen(&mut memory), [value; LEN]);
            // The host writes while the copy to the device may still be in progress.
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

#[test]
fn overwriting_copies_nothing_and_an_unfinished_one_shows_nothing() {
    each_kind(|control, setup, kind| {
        let mut memory = setup.in_state(kind, Head::Device, 5);
        control.reset_calls();
        let over = memory.cpu_overwrite().unwrap();
        over.copy_from_slice(&[6; LEN]).unwrap();
        assert_eq!(copies(control), [0, 0, 0]);
        assert_eq!(memory.cpu().unwrap(), [6; LEN]);
        let over = memory.gpu_overwrite().unwrap();
        over.copy_from(&setup.other, &[7; LEN]).unwrap();
        assert_eq!(copies(control), [1, 0, 0]);
        assert_eq!(memory.cpu().unwrap(), [7; LEN]);
        let mut over = memory.gpu_overwrite().unwrap();
        let mut view = over.view();
        let (at, guard) = view.device_ptr_mut(&setup.stream);
        fill(&setup.stream, at, LEN as u64, 8);
        drop(guard);
        // SAFETY: the fill writes all of the memory.
        unsafe { over.written() };
        assert_eq!(memory.cpu().unwrap(), [8; LEN]);
        // Wrong lengths, and overwrites that were not finished.
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
    });
}

#[test]
fn sm_7_no_bytes_touch_no_driver() {
    each_kind(|control, setup, kind| {
        control.reset_calls();
        let mut memory = setup.make::<u32>(kind, 0);
        assert!(memory.cpu().unwrap().is_empty());
        assert!(memory.gpu().unwrap().is_empty());
        assert!(memory.cpu_mut().unwrap().is_empty());
        drop(memory.push_async(&setup.stream).unwrap());
        assert!(memory.gpu_mut().unwrap().is_empty());
        drop(memory.pull_async(&setup.stream).unwrap());
        assert_eq!(memory.head(), Head::Synced);
        let over = memory.cpu_overwrite().unwrap();
        over.copy_from_slice(&[]).unwrap();
        let over = memory.gpu_overwrite().unwrap();
        over.copy_from(&setup.stream, &[]).unwrap();
        assert!(memory.is_empty() && !memory.owns_host() && !memory.owns_device());
        drop(memory);
        let mut units = setup.make::<[u32; 0]>(kind, 7);
        assert_eq!(units.cpu_mut().unwrap(), [[0_u32; 0]; 7]);
        assert_eq!(units.gpu().unwrap().len(), 7);
        assert_eq!(units.num_bytes(), 0);
        drop(units);
        assert_eq!(control.calls(None), 0, "{:?}", control.call_table());
        let (device, stream, most) = (&setup.device, &setup.stream, usize::MAX / 4);
        let sizes = SyncedMemory::<u64>::new(device, stream, kind.clone(), most);
        let error = sizes.unwrap_err();
        assert!(matches!(error, DeviceAllocError::Memory { .. }), "{error}");
    });
}

#[test]
fn sm_8_memory_goes_back_to_its_device_whatever_is_current() {
    each_kind(|control, setup, kind| {
        let elsewhere = Context::new(1).unwrap();
        let current = || cudarc::driver::result::ctx::get_current().unwrap();
        let mut memory = setup.in_state(kind, Head::Synced, 3);
        elsewhere.cudarc().bind_to_thread().unwrap();
        let (before, used) = (current(), control.used(1));
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
    });
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
