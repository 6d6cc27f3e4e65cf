//! Uses on several streams.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda::{Context, DeviceAllocator, DeviceBuffer, DeviceConfig};
use larder_model::Random;

use super::{SEEDS, Setup, calls_of};
use crate::common::{MIB, alone_and_clean, streams, under_all_schedules};

const LEN: usize = 1000;

/// Fills a buffer with a byte, by a copy from the device: nothing of the host forces the schedule.
fn put(stream: &Arc<CudaStream>, from: &DeviceBuffer<u8>, to: &mut DeviceBuffer<u8>) {
    stream.memcpy_dtod(from, to).unwrap();
}

#[test]
fn a_buffer_on_one_stream_costs_no_event_and_no_memory_call() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        let stream = &setup.streams[0];
        let step = || {
            let mut one = setup.memory.upload(stream, &[7u8; LEN]).unwrap();
            let mut two = setup.memory.zeros::<u8>(stream, LEN).unwrap();
            put(stream, &one, &mut two);
            stream.memset_zeros(&mut one.slice_mut(10..)).unwrap();
            assert_eq!(stream.clone_dtoh(&two).unwrap(), [7; LEN]);
        };
        step();
        control.reset_calls();
        for _ in 0..10 {
            step();
        }
        let about = [
            "cuEvent",
            "cuStreamWait",
            "cuMemAlloc",
            "cuMemFree",
            "cuMemCreate",
            "cuMemMap",
            "cuMemAddress",
            "cuMemHost",
            "cuStreamSynchronize",
        ];
        assert_eq!(calls_of(control, &about), []);
    });
}

#[test]
fn readers_wait_once_for_a_write_and_share_its_event() {
    alone_and_clean(|control| {
        let setup = Setup::new(3);
        let [a, b, c] = [0, 1, 2].map(|index| &setup.streams[index]);
        let mut buffer = setup.memory.zeros::<u8>(a, LEN).unwrap();
        let mut at_b = setup.memory.zeros::<u8>(b, LEN).unwrap();
        let mut at_c = setup.memory.zeros::<u8>(c, LEN).unwrap();
        let source = setup.memory.upload(a, &[3u8; LEN]).unwrap();
        put(a, &source, &mut buffer);
        control.reset_calls();
        for _ in 0..5 {
            put(b, &buffer, &mut at_b);
            put(c, &buffer, &mut at_c);
        }
        assert_eq!(control.calls(Some("cuEventRecord")), 1);
        assert_eq!(control.calls(Some("cuStreamWaitEvent")), 2);
        // A write waits for each reader, and for nobody else.
        control.reset_calls();
        put(a, &source, &mut buffer);
        assert_eq!(control.calls(Some("cuEventRecord")), 2);
        assert_eq!(control.calls(Some("cuStreamWaitEvent")), 2);
        control.reset_calls();
        put(a, &source, &mut buffer);
        stream_synchronised_nowhere(control);
        assert_eq!(control.calls(Some("cuStreamWaitEvent")), 0);
        // Through a reader a write waits for the writer too.
        setup.context.synchronize().unwrap();
        setup.memory.release(0);
        put(a, &source, &mut buffer);
        put(b, &buffer, &mut at_b);
        control.reset_calls();
        c.memset_zeros(&mut buffer).unwrap();
        assert_eq!(control.calls(Some("cuStreamWaitEvent")), 1);
        put(a, &source, &mut buffer);
        // A reader that writes waited for the writer already.
        put(b, &buffer, &mut at_b);
        control.reset_calls();
        put(b, &source, &mut buffer);
        // For `source`, which `a` wrote, and not for the buffer.
        assert_eq!(control.calls(Some("cuStreamWaitEvent")), 1);
        stream_synchronised_nowhere(control);
    });
}

fn stream_synchronised_nowhere(control: &larder_cuda::driver::StandIn) {
    assert_eq!(control.calls(Some("cuStreamSynchronize")), 0);
    assert_eq!(control.calls(Some("cuEventSynchronize")), 0);
}

/// Write on one stream, read on two others, write on one of these, and drop while the other reads.
#[test]
fn uses_of_several_streams_come_in_the_programs_order() {
    alone_and_clean(|control| {
        // So little memory that what is freed is wanted again.
        let context = Context::new(0).unwrap();
        let config = DeviceConfig::with_budget(2 * MIB);
        let memory = DeviceAllocator::with_config(&context, config).unwrap();
        let streams: Vec<_> = streams(&context, 3);
        for stream in &streams {
            memory.add_stream(stream).unwrap();
        }
        let [a, b, c] = [0, 1, 2].map(|index| &streams[index]);
        let len = 256 << 10;
        let ones = memory.upload(a, &vec![1u8; len]).unwrap();
        let twos = memory.upload(b, &vec![2u8; len]).unwrap();
        context.synchronize().unwrap();
        under_all_schedules(control, SEEDS, || {
            let mut at_b = memory.zeros::<u8>(b, len).unwrap();
            let mut at_c = memory.zeros::<u8>(c, len).unwrap();
            let mut late_c = memory.zeros::<u8>(c, len).unwrap();
            let mut buffer = memory.zeros::<u8>(a, len).unwrap();
            put(a, &ones, &mut buffer);
            put(b, &buffer, &mut at_b);
            put(c, &buffer, &mut at_c);
            put(b, &twos, &mut buffer);
            put(c, &buffer, &mut late_c);
            drop(buffer);
            // Takes the buffer's memory as soon as it may.
            let mut next = memory.zeros::<u8>(a, len).unwrap();
            put(a, &ones, &mut next);
            assert_eq!(b.clone_dtoh(&at_b).unwrap(), vec![1; len]);
            assert_eq!(c.clone_dtoh(&at_c).unwrap(), vec![1; len]);
            assert_eq!(a.clone_dtoh(&late_c).unwrap(), vec![2; len]);
            assert_eq!(c.clone_dtoh(&next).unwrap(), vec![1; len]);
        });
    });
}

#[test]
fn a_stream_that_allocated_nothing_is_waited_for() {
    alone_and_clean(|control| {
        let setup = Setup::new(1);
        let (a, memory) = (&setup.streams[0], &setup.memory);
        let unknown = setup.context.cudarc().new_stream().unwrap();
        let per_thread = setup.context.cudarc().per_thread_stream();
        let ones = memory.upload(a, &[1u8; LEN]).unwrap();
        for stranger in [&unknown, &per_thread] {
            under_all_schedules(control, SEEDS, || {
                let mut buffer = memory.zeros::<u8>(a, LEN).unwrap();
                let mut other = memory.zeros::<u8>(a, LEN).unwrap();
                put(a, &ones, &mut buffer);
                put(stranger, &buffer, &mut other);
                stranger.memset_zeros(&mut buffer).unwrap();
                assert_eq!(setup.context.is_done(stranger), Ok(true), "over at once");
                assert_eq!(a.clone_dtoh(&buffer).unwrap(), [0; LEN]);
                put(a, &other, &mut buffer);
                stranger.memset_zeros(&mut other.slice_mut(..5)).unwrap();
                assert_eq!(a.clone_dtoh(&buffer).unwrap(), [1; LEN]);
                assert_eq!(a.clone_dtoh(&other.slice(3..7)).unwrap(), [0, 0, 1, 1]);
            });
        }
    });
}

/// Both halves are handed to the driver in either order; afterwards the whole waits for both.
#[test]
fn parts_that_were_split_are_written_on_two_streams() {
    alone_and_clean(|control| {
        use cudarc::driver::DevicePtrMut;
        let setup = Setup::new(3);
        let [a, b, c] = [0, 1, 2].map(|index| &setup.streams[index]);
        let memory = &setup.memory;
        under_all_schedules(control, SEEDS, || {
            let mut buffer = memory.zeros::<u8>(a, 2 * LEN).unwrap();
            {
                let (mut low, mut high) = buffer.split_at_mut(LEN);
                // As by two threads: both have their address before either queues its work.
                let (low, _low) = low.device_ptr_mut(b);
                let (high, _high) = high.device_ptr_mut(c);
                crate::common::fill(c, high, LEN as u64, 2);
                crate::common::fill(b, low, LEN as u64, 1);
            }
            let mut expected = vec![1; LEN];
            expected.extend([2; LEN]);
            assert_eq!(a.clone_dtoh(&buffer).unwrap(), expected);
            a.memset_zeros(&mut buffer).unwrap();
            assert_eq!(c.clone_dtoh(&buffer).unwrap(), [0; 2 * LEN]);
        });
    });
}

/// Threads that read one buffer at once, and write the parts of another.
#[test]
fn threads_share_buffers() {
    alone_and_clean(|control| {
        let setup = Setup::new(4);
        let (memory, streams) = (&setup.memory, &setup.streams);
        under_all_schedules(control, SEEDS, || {
            let ones = memory.upload(&streams[0], &[1u8; LEN]).unwrap();
            let mut parts = memory.zeros::<u8>(&streams[1], 4 * LEN).unwrap();
            let (low, high) = parts.split_at_mut(2 * LEN);
            let (first, second) = low.split_at_mut(LEN);
            let (third, fourth) = high.split_at_mut(LEN);
            std::thread::scope(|scope| {
                let parts = [first, second, third, fourth];
                for (stream, mut part) in streams.iter().zip(parts) {
                    let ones = &ones;
                    scope.spawn(move || {
                        stream.memset_zeros(&mut part).unwrap();
                        stream.memcpy_dtod(ones, &mut part).unwrap();
                    });
                }
            });
            drop(ones);
            let next = memory.zeros::<u8>(&streams[0], LEN).unwrap();
            assert_eq!(streams[2].clone_dtoh(&parts).unwrap(), [1; 4 * LEN]);
            assert_eq!(streams[3].clone_dtoh(&next).unwrap(), [0; LEN]);
        });
    });
}

/// Random uses of a few buffers on a few streams, beside what each must hold.
#[test]
fn random_uses_keep_every_byte() {
    alone_and_clean(|control| {
        let setup = Setup::new(4);
        let (memory, streams) = (&setup.memory, &setup.streams);
        for seed in 0..SEEDS_OF_USES {
            control.schedule_deferred(seed);
            let mut random = Random::new(seed);
            let mut held: Vec<(DeviceBuffer<u8>, Vec<u8>)> = Vec::new();
            for _ in 0..60 {
                let stream = &streams[random.below(4) as usize];
                let act = random.below(8);
                if held.len() < 2 || act == 0 {
                    let value = random.below(250) as u8;
                    let buffer = memory.upload(stream, &[value; LEN]).unwrap();
                    held.push((buffer, vec![value; LEN]));
                    continue;
                }
                let at = random.index(held.len());
                if act == 1 {
                    held.swap_remove(at);
                    continue;
                }
                let (mut to, _) = held.swap_remove(at);
                let (from, bytes) = &held[random.index(held.len())];
                put(stream, from, &mut to);
                let bytes = bytes.clone();
                held.push((to, bytes));
            }
            for (buffer, bytes) in &held {
                let stream = &streams[random.below(4) as usize];
                assert_eq!(&stream.clone_dtoh(buffer).unwrap(), bytes, "seed {seed}");
            }
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        }
        control.schedule_eagerly();
    });
}

const SEEDS_OF_USES: u64 = 200;
