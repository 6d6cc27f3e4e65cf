//! Uses of buffers on several streams.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda::DeviceBuffer;

use super::{SEEDS, Setup};
use crate::common::{alone_and_clean, under_all_schedules};

const LEN: usize = 1000;

/// Copies on the device: a copy from the host could force the schedule.
fn put(stream: &Arc<CudaStream>, from: &DeviceBuffer<u8>, to: &mut DeviceBuffer<u8>) {
    stream.memcpy_dtod(from, to).unwrap();
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

/// The driver gets the writes of the two halves in either order; a later use of the whole buffer waits for both.
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
                // As two threads may do, take both addresses before queuing work for either.
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
