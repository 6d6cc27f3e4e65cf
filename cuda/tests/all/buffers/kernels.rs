//! Buffers as kernel arguments, on their own stream and on others.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use larder_core::StreamId;
use larder_cuda::{
    BufferView, BufferViewMut, Context, DeviceAllocError, DeviceBuffer, DriverError, Launch,
    PinnedAllocator,
};

use super::{SEEDS, Setup};
use crate::common::kernels::add_kernel;
use crate::common::{alone_and_clean, under_all_schedules};

const LEN: u32 = 300;

fn config() -> LaunchConfig {
    LaunchConfig::for_num_elems(LEN)
}

#[test]
fn kernels_take_buffers_and_parts_on_their_own_stream() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        let add = add_kernel(control, &setup.context);
        let [a, b] = [0, 1].map(|index| &setup.streams[index]);
        let half = LEN / 2;
        under_all_schedules(control, SEEDS, || {
            let ones = setup.memory.upload(a, &[1u32; LEN as usize]).unwrap();
            let mut sum = setup.memory.zeros::<u32>(a, LEN as usize).unwrap();
            // Another stream writes last, so the kernel's stream has to wait for it.
            b.memcpy_dtod(&ones, &mut sum).unwrap();
            let mut launch = Launch::on(a, &add);
            launch.arg(&mut sum).arg(&ones).arg(&LEN);
            // SAFETY: the kernel takes two pointers and a length, which fit.
            unsafe { launch.launch(config()) }.unwrap();
            {
                let (mut low, mut high) = sum.split_at_mut(half as usize);
                let part: BufferView<'_, u32> = ones.slice(..half as usize);
                let mut launch = Launch::on(a, &add);
                launch.arg(&mut low).arg(&part).arg(&half);
                // SAFETY: the kernel takes two pointers and a length, which fit.
                unsafe { launch.launch(config()) }.unwrap();
                let high: &mut BufferViewMut<'_, u32> = &mut high;
                let mut launch = Launch::on(a, &add);
                launch.arg(high).arg(&part).arg(&half);
                // SAFETY: the kernel takes two pointers and a length, which fit.
                unsafe { launch.launch(config()) }.unwrap();
            }
            assert_eq!(b.clone_dtoh(&sum).unwrap(), [3; LEN as usize]);
        });
    });
}

#[test]
fn a_launch_or_a_copy_while_the_memory_sleeps_is_refused_and_nothing_is_lost() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        let add = add_kernel(control, &setup.context);
        let [a, b] = [0, 1].map(|index| &setup.streams[index]);
        let pinned = PinnedAllocator::new(&setup.context).unwrap();
        under_all_schedules(control, SEEDS, || {
            let ones = setup.memory.upload(a, &[1u32; LEN as usize]).unwrap();
            let mut sum = setup.memory.zeros::<u32>(a, LEN as usize).unwrap();
            setup.memory.sleep().unwrap();
            // This includes a stream that the allocator does not know.
            let other = setup.context.cudarc().new_stream().unwrap();
            for stream in [a, b, &other] {
                let launched = launch_add(stream, &add, &mut sum, &ones);
                assert_eq!(launched, Err(DeviceAllocError::Asleep));
                assert!(stream.clone_dtoh(&ones).is_err());
                assert!(stream.memcpy_dtod(&ones, &mut sum).is_err());
                assert!(stream.memset_zeros(&mut sum.slice_mut(3..)).is_err());
            }
            assert_eq!(ones.to_vec(), Err(DeviceAllocError::Asleep));
            assert_eq!(ones.slice(3..7).to_vec(), Err(DeviceAllocError::Asleep));
            assert!(matches!(ones.try_clone(), Err(DeviceAllocError::Asleep)));
            let host = &mut pinned.zeros::<u32>(LEN as usize).unwrap();
            assert_eq!(host.copy_from(a, &ones), Err(DriverError::Asleep));
            assert_eq!(host.copy_to(a, &mut sum), Err(DriverError::Asleep));
            drop(other);
            setup.memory.wake().unwrap();
            launch_add(b, &add, &mut sum, &ones).unwrap();
            assert_eq!(a.clone_dtoh(&sum).unwrap(), [1; LEN as usize]);
        });
    });
}

/// Launches `to[i] += from[i]` for all elements.
fn launch_add(
    stream: &Arc<CudaStream>,
    add: &CudaFunction,
    to: &mut DeviceBuffer<u32>,
    from: &DeviceBuffer<u32>,
) -> Result<(), DeviceAllocError> {
    let mut launch = Launch::on(stream, add);
    launch.arg(to).arg(from).arg(&LEN);
    // SAFETY: the kernel takes two pointers and a length, which fit.
    unsafe { launch.launch(config()) }.map(drop)
}

#[test]
fn kernels_on_other_streams_wait_and_are_waited_for() {
    alone_and_clean(|control| {
        let setup = Setup::new(1);
        let add = add_kernel(control, &setup.context);
        let a = &setup.streams[0];
        // The allocator does not know this stream before its first kernel argument.
        let b = &setup.context.cudarc().new_stream().unwrap();
        under_all_schedules(control, SEEDS, || {
            let ones = setup.memory.upload(a, &[1u32; LEN as usize]).unwrap();
            let mut sum = setup.memory.zeros::<u32>(a, LEN as usize).unwrap();
            for _ in 0..3 {
                launch_add(b, &add, &mut sum, &ones).unwrap();
                launch_add(a, &add, &mut sum, &ones).unwrap();
            }
            assert_eq!(a.clone_dtoh(&sum).unwrap(), [6; LEN as usize]);
            // Both buffers are freed below while `b` still uses `sum`.
            let mut copy = setup.memory.zeros::<u32>(b, LEN as usize).unwrap();
            launch_add(b, &add, &mut copy, &sum).unwrap();
            drop((sum, ones));
            let mut next = setup.memory.upload(a, &[9u32; LEN as usize]).unwrap();
            a.memset_zeros(&mut next).unwrap();
            assert_eq!(b.clone_dtoh(&copy).unwrap(), [6; LEN as usize]);
        });
    });
}

#[test]
fn a_launch_on_another_stream_comes_after_long_work_of_the_buffers_own() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        let add = add_kernel(control, &setup.context);
        let [a, b] = [0, 1].map(|index| &setup.streams[index]);
        let half = LEN / 2;
        under_all_schedules(control, SEEDS, || {
            let ones = setup.memory.upload(a, &[1u32; LEN as usize]).unwrap();
            let mut sum = setup.memory.zeros::<u32>(a, LEN as usize).unwrap();
            for _ in 0..20 {
                launch_add(a, &add, &mut sum, &ones).unwrap();
            }
            let mut copy = setup.memory.zeros::<u32>(b, LEN as usize).unwrap();
            {
                // The kernel reads part of a buffer that another stream writes. The builder launches it twice.
                let (part, mut to) = (sum.slice(..half as usize), copy.slice_mut(..half as usize));
                let mut launch = Launch::on(b, &add);
                launch.arg(&mut to).arg(&part).arg(&half);
                // SAFETY: the kernel takes two pointers and a length, which fit.
                unsafe { launch.launch(config()) }.unwrap();
                // SAFETY: the kernel takes two pointers and a length, which fit.
                unsafe { launch.launch(config()) }.unwrap();
            }
            {
                // The kernel writes one half of a buffer and reads the other half.
                let (mut low, high) = copy.split_at_mut(half as usize);
                let mut launch = Launch::on(a, &add);
                launch.arg(&mut low).arg(&high).arg(&half);
                // SAFETY: the kernel takes two pointers and a length, which fit.
                unsafe { launch.launch(config()) }.unwrap();
            }
            let mut expected = [0; LEN as usize];
            expected[..half as usize].fill(40);
            assert_eq!(b.clone_dtoh(&copy).unwrap(), expected);
        });
        assert_eq!(setup.context.cudarc().check_err(), Ok(()));
    });
}

#[test]
fn a_buffer_of_no_bytes_is_an_argument_without_an_address() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        let add = add_kernel(control, &setup.context);
        let mut none = setup.memory.zeros::<u32>(&setup.streams[0], 0).unwrap();
        let also = setup.memory.zeros::<u32>(&setup.streams[0], 0).unwrap();
        control.reset_calls();
        let mut launch = Launch::on(&setup.streams[1], &add);
        launch.arg(&mut none).arg(&also).arg(&0_u32);
        assert_eq!(control.calls(None), 0, "{:?}", control.call_table());
        // SAFETY: the kernel takes two pointers and a length, which is zero, so it accesses no memory.
        unsafe { launch.launch(config()) }.unwrap();
        // The kernel has to finish before its module is unloaded.
        setup.streams[1].synchronize().unwrap();
    });
}

#[test]
fn a_stream_that_cannot_be_known_is_an_error() {
    alone_and_clean(|control| {
        let setup = Setup::new(1);
        let add = add_kernel(control, &setup.context);
        let len = LEN as usize;
        let mut to = setup.memory.zeros::<u32>(&setup.streams[0], len).unwrap();
        let from = setup.memory.zeros::<u32>(&setup.streams[0], len).unwrap();
        let elsewhere = Context::new(1).unwrap();
        let other = elsewhere.cudarc().new_stream().unwrap();
        let per_thread = setup.context.cudarc().per_thread_stream();
        control.reset_calls();
        for stranger in [&other, &per_thread] {
            let error = launch_add(stranger, &add, &mut to, &from).unwrap_err();
            assert_eq!(error, DeviceAllocError::Stream);
        }
        assert_eq!(control.calls(Some("cuLaunchKernel")), 0);
        let more: Vec<_> = (1..StreamId::COUNT)
            .map(|_| setup.context.cudarc().new_stream().unwrap())
            .collect();
        for stream in &more {
            setup.memory.add_stream(stream).unwrap();
        }
        let one_more = setup.context.cudarc().new_stream().unwrap();
        control.reset_calls();
        let mut launch = Launch::on(&one_more, &add);
        launch.arg(&mut to).arg(&from).arg(&LEN);
        for _ in 0..2 {
            // SAFETY: the kernel takes two pointers and a length, which fit.
            let error = unsafe { launch.launch(config()) }.unwrap_err();
            assert_eq!(error, DeviceAllocError::Streams);
        }
        assert_eq!(control.calls(Some("cuLaunchKernel")), 0);
        launch_add(&more[200], &add, &mut to, &from).unwrap();
    });
}
