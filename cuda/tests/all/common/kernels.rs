//! A kernel for tests over the stand-in.

use cudarc::driver::{CudaFunction, DriverError};
use cudarc::nvrtc::Ptx;
use larder_cuda::Context;
use larder_cuda::driver::abi::stand_in::KernelCall;
use larder_cuda::driver::{HostLaunch, StandIn};

const NAME: &str = "tests_add";

const PTX: &str = "
.version 7.0
.target sm_52
.address_size 64
.visible .entry tests_add(.param .u64 to, .param .u64 from, .param .u32 count) { ret; }
";

/// For each index, `to[i] += from[i]`.
unsafe extern "C" fn add(call: *const KernelCall) {
    // SAFETY: the stand-in calls this with a launch that has these three parameters.
    let launch = unsafe { HostLaunch::of(call) };
    let count = launch.count(2);
    // `from` and `to` may be the same memory, so `from` is copied first.
    let Some(from) = launch.read::<u32>(1, count).map(<[u32]>::to_vec) else {
        return;
    };
    let Some(to) = launch.write::<u32>(0, count) else {
        return;
    };
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

pub(crate) fn register_add(control: &StandIn) {
    // SAFETY: no other kernel in the program has this name.
    unsafe { control.register_kernel(NAME, add) }.unwrap();
}

pub(crate) fn load_add(context: &Context) -> Result<CudaFunction, DriverError> {
    let module = context.cudarc().load_module(Ptx::from_src(PTX))?;
    module.load_function(NAME)
}

pub(crate) fn add_kernel(control: &StandIn, context: &Context) -> CudaFunction {
    register_add(control);
    load_add(context).unwrap()
}
