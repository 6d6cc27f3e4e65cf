//! Pinned buffers: devices copy from and to them while the host works. A script checks that the host waits only for the
//! copies that it needs.

use crate::common;

use std::sync::Arc;

use common::{MIB, alone, alone_and_clean, assert_clean, together};
use cudarc::driver::{CudaStream, DevicePtrMut, HostSlice, result, sys};
use larder_cuda::{
    Context, DeviceAllocator, DeviceBuffer, DriverError, PinnedAllocator, PinnedConfig,
};

use crate::common::refusal::DEFERRED_SWEEP;

const LEN: usize = 1000;
const SEEDS: u64 = 64;

struct Setup {
    context: Context,
    device: DeviceAllocator,
    host: PinnedAllocator,
    streams: Vec<Arc<CudaStream>>,
}

impl Setup {
    fn new(count: usize) -> Self {
        let context = Context::new(0).unwrap();
        let device = DeviceAllocator::new(&context).unwrap();
        let host = PinnedAllocator::new(&context).unwrap();
        let streams = common::streams(&context, count);
        for stream in &streams {
            device.add_stream(stream).unwrap();
            host.add_stream(stream);
        }
        Self {
            context,
            device,
            host,
            streams,
        }
    }

    fn zeros(&self, stream: usize) -> DeviceBuffer<u8> {
        self.device.zeros(&self.streams[stream], LEN).unwrap()
    }
}

#[test]
fn values_go_to_a_device_and_back() {
    let _turn = together();
    let setup = Setup::new(1);
    let stream = &setup.streams[0];
    let numbers: Vec<u32> = (0..1000).collect();
    let mut pinned = setup.host.copy_of(&numbers).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), numbers);
    let mut there = setup.device.zeros::<u32>(stream, LEN).unwrap();
    pinned.copy_to(stream, &mut there).unwrap();
    pinned.as_mut_slice().unwrap().fill(0);
    pinned.copy_from(stream, &there).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), numbers);
    // The same with cudarc's functions.
    pinned.as_mut_slice().unwrap()[0] = 7;
    stream.memcpy_htod(&pinned, &mut there).unwrap();
    pinned.as_mut_slice().unwrap().fill(0);
    stream.memcpy_dtoh(&there, &mut pinned).unwrap();
    assert_eq!(pinned.as_slice().unwrap()[..3], [7, 1, 2]);
    let uploaded = setup.device.upload(stream, &pinned).unwrap();
    assert_eq!(stream.clone_dtoh(&uploaded).unwrap()[1..], numbers[1..]);
    assert_eq!(
        setup.host.zeros::<u64>(5).unwrap().as_slice(),
        Ok(&[0; 5][..])
    );
}

/// The contents of a dropped buffer reach the device, although the host allocates and writes at once.
/// `scripts::buffers` has the same case with our own copies.
#[test]
fn memory_that_cudarc_copied_is_given_again_when_its_streams_have_passed() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        let mut reused = false;
        for seed in 0..SEEDS {
            let mut there = [0, 1].map(|stream| setup.zeros(stream));
            setup.context.synchronize().unwrap();
            control.schedule_deferred(seed);
            let pinned = setup.host.copy_of(&[1u8; LEN]).unwrap();
            let at = pinned.as_slice().unwrap().as_ptr();
            for (stream, there) in setup.streams.iter().zip(&mut there) {
                stream.memcpy_htod(&pinned, there).unwrap();
            }
            control.reset_calls();
            drop(pinned);
            let mut next = setup.host.zeros::<u8>(LEN).unwrap();
            next.as_mut_slice().unwrap().fill(9);
            reused |= next.as_slice().unwrap().as_ptr() == at;
            assert_eq!(control.calls(Some("cuStreamSynchronize")), 0);
            assert_eq!(control.calls(Some("cuEventSynchronize")), 0);
            for (stream, there) in setup.streams.iter().zip(&there) {
                assert_eq!(stream.clone_dtoh(there).unwrap(), [1; LEN], "seed {seed}");
            }
            control.schedule_eagerly();
        }
        assert!(reused, "the pool's memory comes back");
    });
}

#[test]
fn copies_of_cudarc_on_several_streams_come_in_the_programs_order() {
    alone_and_clean(|control| {
        let setup = Setup::new(3);
        let [a, b, c] = [0, 1, 2].map(|index| &setup.streams[index]);
        for seed in 0..SEEDS {
            control.schedule_deferred(seed);
            let ones = setup.device.upload(a, &[1u8; LEN]).unwrap();
            let twos = setup.device.upload(b, &[2u8; LEN]).unwrap();
            let (mut at_b, mut at_c, mut late) = (setup.zeros(1), setup.zeros(2), setup.zeros(2));
            let mut pinned = setup.host.zeros::<u8>(LEN).unwrap();
            a.memcpy_dtoh(&ones, &mut pinned).unwrap();
            b.memcpy_htod(&pinned, &mut at_b).unwrap();
            c.memcpy_htod(&pinned, &mut at_c).unwrap();
            b.memcpy_dtoh(&twos, &mut pinned).unwrap();
            c.memcpy_htod(&pinned, &mut late).unwrap();
            drop(pinned);
            assert_eq!(a.clone_dtoh(&at_b).unwrap(), [1; LEN], "seed {seed}");
            assert_eq!(b.clone_dtoh(&at_c).unwrap(), [1; LEN], "seed {seed}");
            assert_eq!(a.clone_dtoh(&late).unwrap(), [2; LEN], "seed {seed}");
            control.schedule_eagerly();
        }
    });
}

#[test]
fn a_full_pool_waits_for_what_streams_use() {
    alone_and_clean(|control| {
        let setup = Setup::new(1);
        let limit = 4 * MIB;
        let host =
            PinnedAllocator::with_limit(&setup.context, PinnedConfig::default(), limit).unwrap();
        let stream = &setup.streams[0];
        let len = 3 * MIB as usize;
        let mut there = setup.device.zeros::<u8>(stream, len).unwrap();
        setup.context.synchronize().unwrap();
        for seed in 0..SEEDS {
            control.schedule_deferred(seed);
            let pinned = host.copy_of(&vec![1u8; len]).unwrap();
            pinned.copy_to(stream, &mut there).unwrap();
            drop(pinned);
            let next = host.zeros::<u8>(len).unwrap();
            assert_eq!(stream.clone_dtoh(&there).unwrap(), vec![1; len]);
            assert!(host.zeros::<u8>(len).is_err(), "it is in use by the host");
            drop(next);
            control.schedule_eagerly();
        }
    });
}

#[test]
fn a_stream_that_is_not_known_is_waited_for_at_once() {
    alone_and_clean(|control| {
        let setup = Setup::new(1);
        let unknown = setup.context.cudarc().new_stream().unwrap();
        setup.device.add_stream(&unknown).unwrap();
        let elsewhere = Context::new(1).unwrap();
        let other = elsewhere.cudarc().new_stream().unwrap();
        let other_device = DeviceAllocator::new(&elsewhere).unwrap();
        for seed in 0..SEEDS {
            control.schedule_deferred(seed);
            let mut there = setup.device.zeros::<u8>(&unknown, LEN).unwrap();
            let mut pinned = setup.host.copy_of(&[1u8; LEN]).unwrap();
            unknown.memcpy_htod(&pinned, &mut there).unwrap();
            assert_eq!(setup.context.is_done(&unknown), Ok(true));
            pinned.as_mut_slice().unwrap().fill(2);
            assert_eq!(unknown.clone_dtoh(&there).unwrap(), [1; LEN]);
            let mut there = other_device.zeros::<u8>(&other, LEN).unwrap();
            pinned.copy_to(&other, &mut there).unwrap();
            assert_eq!(elsewhere.is_done(&other), Ok(true));
            pinned.as_mut_slice().unwrap().fill(3);
            pinned.copy_from(&other, &there).unwrap();
            assert_eq!(pinned.as_slice().unwrap(), [2; LEN], "seed {seed}");
            control.schedule_eagerly();
        }
        assert_eq!(control.findings(), Vec::<String>::new());
    });
}

#[test]
fn no_bytes_touch_no_driver_and_wrong_sizes_are_errors() {
    alone_and_clean(|control| {
        let setup = Setup::new(1);
        let stream = &setup.streams[0];
        let mut nothing = setup.device.zeros::<u32>(stream, 0).unwrap();
        let mut there = setup.device.zeros::<u32>(stream, 10).unwrap();
        control.reset_calls();
        let mut empty = setup.host.zeros::<u32>(0).unwrap();
        assert!(empty.as_mut_slice().unwrap().is_empty());
        empty.copy_to(stream, &mut nothing).unwrap();
        empty.copy_from(stream, &nothing).unwrap();
        drop(empty);
        assert_eq!(control.calls(None), 0, "{:?}", control.call_table());
        assert!(setup.host.zeros::<u32>(usize::MAX).is_err());
        let mut nine = setup.host.zeros::<u32>(9).unwrap();
        let size = DriverError::Size { bytes: 40 };
        assert_eq!(nine.copy_to(stream, &mut there), Err(size));
        assert_eq!(nine.copy_from(stream, &there), Err(size));
        assert_eq!(HostSlice::len(&nine), 9);
    });
}

/// Two threads can cause this: one has the memory from cudarc's trait, and queues its copy after another thread's copy.
#[test]
fn copies_that_are_queued_late_are_waited_for_as_well() {
    alone_and_clean(|control| {
        let setup = Setup::new(1);
        let stream = &setup.streams[0];
        for seed in 0..SEEDS {
            control.schedule_deferred(seed);
            let (mut early, mut late) = (setup.zeros(0), setup.zeros(0));
            let mut pinned = setup.host.copy_of(&[1u8; LEN]).unwrap();
            let (to, to_guard) = late.device_ptr_mut(stream);
            // SAFETY: only work of the stream uses the memory.
            let (values, guard) = unsafe { pinned.stream_synced_slice(stream) };
            pinned.copy_to(stream, &mut early).unwrap();
            setup.context.cudarc().bind_to_thread().unwrap();
            // SAFETY: both buffers have that many bytes and outlive the copy.
            unsafe { result::memcpy_htod_async(to, values, stream.cu_stream()) }.unwrap();
            drop((guard, to_guard));
            pinned.as_mut_slice().unwrap().fill(2);
            assert_eq!(stream.clone_dtoh(&late).unwrap(), [1; LEN], "seed {seed}");
            assert_eq!(stream.clone_dtoh(&early).unwrap(), [1; LEN], "seed {seed}");
            control.schedule_eagerly();
        }
    });
}

/// The program must order the copies of a capture itself. Nothing can wait for earlier copies during the capture.
#[test]
fn captures_are_left_alone() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        let stream = &setup.streams[0];
        let mut there = setup.zeros(0);
        let mut pinned = setup.host.copy_of(&[1u8; LEN]).unwrap();
        stream.memcpy_htod(&pinned, &mut there).unwrap();
        let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(relaxed).unwrap();
        assert!(pinned.as_mut_slice().is_err());
        assert_eq!(pinned.as_slice().unwrap(), [1; LEN]);
        stream.memcpy_htod(&pinned, &mut there).unwrap();
        pinned.copy_to(stream, &mut there).unwrap();
        stream.memcpy_dtoh(&there, &mut pinned).unwrap();
        let answer = pinned.as_mut_slice();
        assert!(answer.is_err(), "the copy from before still counts");
        drop(stream.end_capture(
            sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY,
        ));
        pinned.as_mut_slice().unwrap().fill(2);
        assert_eq!(setup.context.cudarc().check_err(), Ok(()));
        assert_eq!(control.findings(), Vec::<String>::new());
    });
}

/// Keeps a stream busy until another thread reaches the barrier.
unsafe extern "C" fn pass(gate: *mut std::ffi::c_void) {
    // SAFETY: the caller passes a barrier that outlives this call.
    unsafe { &*gate.cast::<std::sync::Barrier>() }.wait();
}

/// However many buffers a stream has in flight, an allocation queries the stream once.
#[test]
fn a_stream_at_work_is_asked_once() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        // Growing the memory may wait for queued work, so this is done first.
        drop([0, 1].map(|stream| setup.zeros(stream)));
        let gate = Box::new(std::sync::Barrier::new(2));
        let data = (&raw const *gate).cast_mut().cast();
        // SAFETY: the gate outlives the stream's work, because the context is synchronized below.
        unsafe { result::stream::launch_host_function(setup.streams[0].cu_stream(), pass, data) }
            .unwrap();
        for index in 0..110 {
            let stream = usize::from(index % 10 == 0);
            let mut there = setup.zeros(stream);
            let pinned = setup.host.copy_of(&[1u8; LEN]).unwrap();
            pinned.copy_to(&setup.streams[stream], &mut there).unwrap();
        }
        assert!(setup.host.stats().live_bytes >= 90 * LEN as u64);
        control.reset_calls();
        drop(setup.host.zeros::<u8>(LEN).unwrap());
        let asked = control.calls(Some("cuEventQuery"));
        gate.wait();
        setup.context.synchronize().unwrap();
        assert_eq!(asked, 1);
        drop(setup.host.zeros::<u8>(LEN).unwrap());
        assert_eq!(setup.host.stats().live_bytes, 0);
    });
}

/// Each call is refused once. The bytes must be right, unless an error was reported.
#[test]
fn a_refused_call_is_heard_of() {
    DEFERRED_SWEEP.run(10, |refusal| {
        let setup = Setup::new(2);
        let [a, b] = [0, 1].map(|index| &setup.streams[index]);
        let (mut there, mut late) = (setup.zeros(0), setup.zeros(1));
        setup.context.synchronize().unwrap();
        let copies = || {
            let mut pinned = setup.host.copy_of(&[1u8; LEN])?;
            a.memcpy_htod(&pinned, &mut there)?;
            pinned.as_mut_slice()?.fill(2);
            pinned.copy_from(b, &there)?;
            pinned.copy_to(a, &mut late)?;
            let mut seen = pinned.as_slice()?.to_vec();
            pinned.as_mut_slice()?.fill(3);
            seen.extend(b.clone_dtoh(&late)?);
            setup.context.cudarc().check_err()?;
            Ok(seen)
        };
        refusal.heard_of(&setup.context, copies, &[1; 2 * LEN]);
        setup.host.release();
        assert_eq!(setup.host.stats().live_bytes, 0, "memory is lost");
    });
}

/// Write-combined memory has another address for kernels; copies use the buffer itself.
#[test]
fn kernels_are_given_the_devices_address_of_write_combined_buffers() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for write_combined in [false, true] {
        let setup = Setup::new(1);
        let stream = &setup.streams[0];
        let config = PinnedConfig { write_combined };
        let host = PinnedAllocator::with_limit(&setup.context, config, u64::MAX).unwrap();
        let mut buffer = host.zeros::<u8>(LEN).unwrap();
        let start = buffer.as_slice().unwrap().as_ptr().expose_provenance() as u64;
        let address = buffer.device_address().unwrap();
        assert_eq!(address == start, !write_combined);
        common::fill(stream, address, LEN as u64, 9);
        setup.context.synchronize().unwrap();
        assert_eq!(buffer.as_slice().unwrap(), [9; LEN]);
        let mut there = setup.zeros(0);
        buffer.copy_to(stream, &mut there).unwrap();
        buffer.as_mut_slice().unwrap().fill(1);
        buffer.copy_from(stream, &there).unwrap();
        assert_eq!(buffer.as_slice().unwrap(), [9; LEN]);
        assert_eq!(host.zeros::<u8>(0).unwrap().device_address(), Ok(0));
        drop((buffer, there, host));
        drop(setup);
        assert_clean(control);
    }
}

/// The host can pin only a limited amount. A pool that was refused memory works again once there is room.
#[test]
fn a_host_that_pins_no_more_is_out_of_memory_and_later_not() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    {
        let setup = Setup::new(1);
        control.set_pinned(8 * MIB);
        let held: Vec<_> = (0..100)
            .map_while(|_| setup.host.zeros::<u8>(MIB as usize).ok())
            .collect();
        assert!(!held.is_empty() && held.len() <= 8);
        let refused = setup.host.zeros::<u8>(8 * MIB as usize).unwrap_err();
        let said = refused.to_string();
        assert!(said.contains("OUT_OF_MEMORY"), "{said}");
        assert_eq!(held[0].as_slice().unwrap().len(), MIB as usize);
        drop(held);
        setup.host.release();
        drop(setup.host.zeros::<u8>(8 * MIB as usize).unwrap());
    }
    control.reset(2, common::DEVICE_BYTES);
    assert_clean(control);
}
