//! Buffers as arguments of kernels, on their own stream and on others.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use larder_core::StreamId;
use larder_cuda::driver::StandIn;
use larder_cuda::driver::abi::stand_in::KernelCall;
use larder_cuda::{BufferArg, BufferArgMut, BufferView, BufferViewMut, Context, DeviceAllocError};

use super::{Setup, under_all_schedules};
use crate::common::{alone, assert_clean};

const LEN: u32 = 300;

const PTX: &str = "
.version 7.0
.target sm_52
.address_size 64
.visible .entry buffers_add(.param .u64 to, .param .u64 from, .param .u32 count) { ret; }
";

/// `to[i] += from[i]`.
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "a kernel's body")]
unsafe extern "C" fn add(call: *const KernelCall) {
    // SAFETY: the stand-in gives a call with these three parameters, and memory of that size.
    unsafe {
        let call = &*call;
        let to = (*call.parameters).cast::<u64>().read();
        let from = (*call.parameters.add(1)).cast::<u64>().read();
        let count = (*call.parameters.add(2)).cast::<u32>().read();
        let bytes = 4 * u64::from(count);
        let from = (call.access)(call, from, bytes, 0).cast::<u32>();
        let to = (call.access)(call, to, bytes, 1).cast::<u32>();
        if from.is_null() || to.is_null() {
            return;
        }
        let from = std::slice::from_raw_parts(from, count as usize).to_vec();
        let to = std::slice::from_raw_parts_mut(to, count as usize);
        for (to, from) in to.iter_mut().zip(from) {
            *to += from;
        }
    }
}

fn kernel(control: &StandIn, context: &Context) -> CudaFunction {
    // SAFETY: the only `buffers_add` of this program.
    unsafe { control.register_kernel("buffers_add", add) }.unwrap();
    let module = context.cudarc().load_module(Ptx::from_src(PTX)).unwrap();
    module.load_function("buffers_add").unwrap()
}

fn config() -> LaunchConfig {
    LaunchConfig::for_num_elems(LEN)
}

#[test]
fn kernels_take_buffers_and_parts_on_their_own_stream() {
    let Some((control, _turn)) = alone("kernels_take_buffers_and_parts_on_their_own_stream") else {
        return;
    };
    {
        let setup = Setup::new(2);
        let add = kernel(control, &setup.context);
        let [a, b] = [0, 1].map(|index| &setup.streams[index]);
        let half = LEN / 2;
        under_all_schedules(control, || {
            let ones = setup.memory.upload(a, &[1u32; LEN as usize]).unwrap();
            let mut sum = setup.memory.zeros::<u32>(a, LEN as usize).unwrap();
            // Another stream writes last, so the kernel's has to wait for it.
            b.memcpy_dtod(&ones, &mut sum).unwrap();
            let mut launch = a.launch_builder(&add);
            launch.arg(&mut sum).arg(&ones).arg(&LEN);
            // SAFETY: the kernel takes two pointers and a length, which fit.
            unsafe { launch.launch(config()) }.unwrap();
            {
                let (mut low, mut high) = sum.split_at_mut(half as usize);
                let part: BufferView<'_, u32> = ones.slice(..half as usize);
                let mut launch = a.launch_builder(&add);
                launch.arg(&mut low).arg(&part).arg(&half);
                // SAFETY: the kernel takes two pointers and a length, which fit.
                unsafe { launch.launch(config()) }.unwrap();
                let high: &mut BufferViewMut<'_, u32> = &mut high;
                let mut launch = a.launch_builder(&add);
                launch.arg(high).arg(&part).arg(&half);
                // SAFETY: the kernel takes two pointers and a length, which fit.
                unsafe { launch.launch(config()) }.unwrap();
            }
            assert_eq!(b.clone_dtoh(&sum).unwrap(), [3; LEN as usize]);
        });
    }
    assert_clean(control);
}

fn launch_there(
    stream: &Arc<CudaStream>,
    add: &CudaFunction,
    to: &mut BufferArgMut<'_, u32>,
    from: &BufferArg<'_, u32>,
) {
    let mut launch = stream.launch_builder(add);
    launch.arg(to).arg(from).arg(&LEN);
    // SAFETY: the kernel takes two pointers and a length, which fit.
    unsafe { launch.launch(config()) }.unwrap();
}

#[test]
fn kernels_on_other_streams_wait_and_are_waited_for() {
    let Some((control, _turn)) = alone("kernels_on_other_streams_wait") else {
        return;
    };
    {
        let setup = Setup::new(1);
        let add = kernel(control, &setup.context);
        let a = &setup.streams[0];
        // The allocator knows it from the first argument on.
        let b = &setup.context.cudarc().new_stream().unwrap();
        under_all_schedules(control, || {
            let ones = setup.memory.upload(a, &[1u32; LEN as usize]).unwrap();
            let mut sum = setup.memory.zeros::<u32>(a, LEN as usize).unwrap();
            for _ in 0..3 {
                let mut to = sum.arg_mut_on(b).unwrap();
                let from = ones.arg_on(b).unwrap();
                launch_there(b, &add, &mut to, &from);
                let mut launch = a.launch_builder(&add);
                launch.arg(&mut sum).arg(&ones).arg(&LEN);
                // SAFETY: the kernel takes two pointers and a length, which fit.
                unsafe { launch.launch(config()) }.unwrap();
            }
            assert_eq!(a.clone_dtoh(&sum).unwrap(), [6; LEN as usize]);
            // Freed while the other stream still uses it.
            let whole = sum.as_view();
            let mut copy = setup.memory.zeros::<u32>(b, LEN as usize).unwrap();
            let mut to = copy.as_view_mut();
            let mut to = to.arg_mut_on(b).unwrap();
            launch_there(b, &add, &mut to, &whole.arg_on(b).unwrap());
            drop((sum, ones));
            let mut next = setup.memory.upload(a, &[9u32; LEN as usize]).unwrap();
            a.memset_zeros(&mut next).unwrap();
            assert_eq!(b.clone_dtoh(&copy).unwrap(), [6; LEN as usize]);
        });
    }
    assert_clean(control);
}

#[test]
fn a_stream_that_cannot_be_known_is_an_error() {
    let Some((control, _turn)) = alone("a_stream_that_cannot_be_known_is_an_error") else {
        return;
    };
    {
        let setup = Setup::new(1);
        let mut buffer = setup.memory.zeros::<u32>(&setup.streams[0], 10).unwrap();
        let elsewhere = Context::new(1).unwrap();
        let other = elsewhere.cudarc().new_stream().unwrap();
        let per_thread = setup.context.cudarc().per_thread_stream();
        for stranger in [&other, &per_thread] {
            let error = buffer.arg_on(stranger).unwrap_err();
            assert_eq!(error, DeviceAllocError::Stream);
            let error = buffer.arg_mut_on(stranger).unwrap_err();
            assert_eq!(error, DeviceAllocError::Stream);
        }
        let more: Vec<_> = (1..StreamId::COUNT)
            .map(|_| setup.context.cudarc().new_stream().unwrap())
            .collect();
        for stream in &more {
            setup.memory.add_stream(stream).unwrap();
        }
        let one_more = setup.context.cudarc().new_stream().unwrap();
        let error = buffer.arg_on(&one_more).unwrap_err();
        assert_eq!(error, DeviceAllocError::Streams);
        buffer.arg_mut_on(&more[200]).unwrap();
    }
    assert_clean(control);
}
