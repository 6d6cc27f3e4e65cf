//! Typed buffers on either side: kernels, fills, copies, and moves back to the device.

use cudarc::driver::{CudaSlice, LaunchConfig, PushKernelArg, sys};
use larder_core::Placement;
use larder_cuda::{
    DeviceAllocError, HostSide, Launch, Movable, StreamAllocator, VmemAllocator, VmemBuffer,
};

use super::{DEVICE, Setup};
use crate::common::kernels::add_kernel;
use crate::common::{MIB, alone_and_clean, under_all_schedules};

const LEN: usize = 3000;
const SEEDS: u64 = 24;

fn fill_device(memory: &VmemAllocator, setup: &Setup) -> VmemBuffer<u8> {
    let all = memory.zeros::<u8>(&setup.streams[0], DEVICE as usize);
    let all = all.unwrap();
    assert_eq!(all.placement(), Placement::Device);
    all
}

#[test]
fn kernels_fills_and_copies_work_on_memory_of_either_side() {
    alone_and_clean(|control| {
        under_all_schedules(control, SEEDS, || {
            for host in [HostSide::Pinned(16 * MIB), HostSide::Managed] {
                let setup = Setup::new(host, 2);
                let add = add_kernel(control, &setup.context);
                let [origin, other] = [0, 1].map(|index| &setup.streams[index]);
                let memory = &setup.memory;
                setup.device.add_stream(other).unwrap();
                let numbers: Vec<u32> = (0..LEN as u32).collect();
                let on_device = memory.upload(origin, &numbers).unwrap();
                let rest = memory.zeros::<u8>(origin, (DEVICE - MIB) as usize).unwrap();
                let rest_2 = memory.zeros::<u8>(origin, (MIB / 2) as usize).unwrap();
                let rest_3 = memory
                    .zeros::<u8>(origin, (MIB / 2 - MIB / 64) as usize)
                    .unwrap();
                let mut on_host = memory.upload(origin, &vec![100u32; LEN]).unwrap();
                let places = (on_device.placement(), on_host.placement());
                assert_eq!(places, (Placement::Device, Placement::Host));
                let config = LaunchConfig::for_num_elems(LEN as u32);
                let count = LEN as u32;
                {
                    let (mut to, from) = (on_host.as_view_mut(), on_device.as_view());
                    let mut launch = Launch::on(origin, &add);
                    launch.arg(&mut to).arg(&from).arg(&count);
                    // SAFETY: both buffers have that many values.
                    unsafe { launch.launch(config) }.unwrap();
                }
                // Another stream reads, then the buffer's own stream writes.
                let seen = other.clone_dtoh(&on_host.as_view()).unwrap();
                origin
                    .memset_zeros(&mut on_host.as_view_mut().slice_mut(..10))
                    .unwrap();
                let after = origin.clone_dtoh(&on_host.as_view()).unwrap();
                for index in 0..LEN {
                    let value = index as u32 + 100;
                    assert_eq!(seen[index], value);
                    assert_eq!(after[index], if index < 10 { 0 } else { value });
                }
                drop((on_device, on_host, rest, rest_2, rest_3));
                assert_eq!(memory.vmem_stats().joint_live_bytes, 0);
            }
        });
    });
}

#[test]
fn a_dropped_buffer_on_the_host_is_given_again_after_every_stream_that_used_it() {
    alone_and_clean(|control| {
        under_all_schedules(control, SEEDS, || {
            let setup = Setup::new(HostSide::Pinned(2 * MIB), 3);
            let [origin, reader, next] = [0, 1, 2].map(|index| &setup.streams[index]);
            let memory = &setup.memory;
            let _all = fill_device(memory, &setup);
            setup.device.add_stream(reader).unwrap();
            let len = (2 * MIB) as usize;
            let buffer = memory.upload(origin, &vec![7u8; len]).unwrap();
            assert_eq!(buffer.placement(), Placement::Host);
            let mut seen: CudaSlice<u8> = reader.alloc_zeros(len).unwrap();
            reader.memcpy_dtod(&buffer.as_view(), &mut seen).unwrap();
            drop(buffer);
            let other = memory.upload(next, &vec![9u8; len]).unwrap();
            assert_eq!(other.placement(), Placement::Host, "the same memory");
            assert!(
                reader
                    .clone_dtoh(&seen)
                    .unwrap()
                    .iter()
                    .all(|byte| *byte == 7)
            );
            let there = next.clone_dtoh(&other.as_view()).unwrap();
            assert!(there.iter().all(|byte| *byte == 9));
        });
    });
}

#[test]
fn what_moves_to_the_device_keeps_its_values_and_frees_the_host() {
    alone_and_clean(|control| {
        under_all_schedules(control, SEEDS, || {
            let setup = Setup::new(HostSide::Pinned(8 * MIB), 2);
            let [origin, other] = [0, 1].map(|index| &setup.streams[index]);
            let memory = &setup.memory;
            setup.device.add_stream(other).unwrap();
            let all = fill_device(memory, &setup);
            let numbers: Vec<u32> = (0..LEN as u32).collect();
            let mut a = memory.upload(origin, &numbers).unwrap();
            let mut b = memory.upload(origin, &vec![5u8; 2 * MIB as usize]).unwrap();
            let mut c = memory.upload(other, &[9u64; 100]).unwrap();
            for placement in [a.placement(), b.placement(), c.placement()] {
                assert_eq!(placement, Placement::Host);
            }
            let full = memory.migrate([&mut a as &mut dyn Movable, &mut b, &mut c]);
            let bytes = a.bytes() + b.bytes() + c.bytes();
            assert_eq!(bytes, 4 * LEN as u64 + 2 * MIB + 800);
            assert_eq!((full.moved_bytes, full.left_bytes), (0, bytes));
            assert_eq!(full.refusal, None);
            drop(all);
            // Another stream's write and read are queued before the move.
            other.memset_zeros(&mut b.as_view_mut()).unwrap();
            let mut seen: CudaSlice<u8> = other.alloc_zeros(2 * MIB as usize).unwrap();
            other.memcpy_dtod(&b.as_view(), &mut seen).unwrap();
            let moved = memory.migrate([&mut a as &mut dyn Movable, &mut b, &mut c]);
            assert_eq!((moved.moved_bytes, moved.left_bytes), (bytes, 0));
            for placement in [a.placement(), b.placement(), c.placement()] {
                assert_eq!(placement, Placement::Device);
            }
            let stats = memory.vmem_stats();
            assert_eq!(stats.host.live_bytes, 0);
            assert_eq!(stats.joint_live_bytes, stats.device.live_bytes);
            // The host's memory is reused at once.
            let whole = memory.zeros::<u8>(other, 7 * MIB as usize).unwrap();
            assert_eq!(origin.clone_dtoh(&a.as_view()).unwrap(), numbers);
            let there = other.clone_dtoh(&b.as_view()).unwrap();
            assert!(there.iter().all(|byte| *byte == 0));
            assert_eq!(other.clone_dtoh(&c.as_view()).unwrap(), [9; 100]);
            assert!(
                other
                    .clone_dtoh(&seen)
                    .unwrap()
                    .iter()
                    .all(|byte| *byte == 0)
            );
            drop((a, b, c, whole));
            assert_eq!(memory.vmem_stats().joint_live_bytes, 0);
            // A block that several streams used stays live until they are known to have passed.
            setup.context.synchronize().unwrap();
            setup.device.release(0);
            assert_eq!(memory.vmem_stats().device.live_bytes, 0);
        });
    });
}

#[test]
fn buffers_of_no_bytes_are_nowhere() {
    alone_and_clean(|_| {
        let setup = Setup::new(HostSide::Pinned(8 * MIB), 1);
        let stream = &setup.streams[0];
        let mut none = setup.memory.zeros::<u32>(stream, 0).unwrap();
        assert!(none.is_empty());
        assert_eq!(none.placement(), Placement::Device);
        assert_eq!(none.move_to_device(), Ok(0));
        assert!(stream.clone_dtoh(&none.as_view()).unwrap().is_empty());
        let too_many = setup.memory.zeros::<u64>(stream, usize::MAX);
        assert!(matches!(too_many, Err(DeviceAllocError::Memory { .. })));
    });
}

#[test]
fn nothing_is_given_or_moved_inside_a_capture() {
    alone_and_clean(|_| {
        let setup = Setup::new(HostSide::Pinned(8 * MIB), 1);
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        let all = fill_device(memory, &setup);
        let mut buffer = memory.upload(stream, &[5u8; 1000]).unwrap();
        assert_eq!(buffer.placement(), Placement::Host);
        drop(all);
        setup.context.synchronize().unwrap();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(mode).unwrap();
        let capturing = DeviceAllocError::Capturing;
        assert_eq!(memory.alloc(stream, MIB).map(drop), Err(capturing.clone()));
        assert_eq!(buffer.move_to_device(), Err(capturing.clone()));
        let migrated = memory.migrate([&mut buffer as &mut dyn Movable]);
        assert_eq!(
            (migrated.left_bytes, migrated.refusal),
            (1000, Some(capturing))
        );
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is being captured; the handle outlives the call.
        unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) }
            .result()
            .unwrap();
        // SAFETY: the graph has just been created.
        unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
        assert_eq!(buffer.move_to_device(), Ok(1000));
        assert_eq!(stream.clone_dtoh(&buffer.as_view()).unwrap(), [5; 1000]);
    });
}
