//! Two kernels: as PTX for a device, as host functions for the stand-in.

use std::ffi::CStr;

use larder_cuda::driver::HostLaunch;
use larder_cuda_abi::stand_in::KernelCall;

/// The text of the kernels.
pub(crate) const PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../words.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a zero byte within"),
    };

/// `fill_u32` for the whole grid.
///
/// # Safety
/// Called by the stand-in with a launch of that kernel.
pub(crate) unsafe extern "C" fn fill_body(call: *const KernelCall) {
    // SAFETY: the caller promises a launch with the parameters of the PTX.
    let launch = unsafe { HostLaunch::of(call) };
    let count = launch.count(1).min(launch.threads());
    if let Some(out) = launch.write::<u32>(0, count) {
        out.fill(launch.parameter(2));
    }
}

/// `add_words` for the whole grid.
///
/// # Safety
/// Called by the stand-in with a launch of that kernel.
pub(crate) unsafe extern "C" fn add_body(call: *const KernelCall) {
    // SAFETY: the caller promises a launch with the parameters of the PTX; all is read before it is written.
    let launch = unsafe { HostLaunch::of(call) };
    let count = launch.count(3).min(launch.threads());
    let words = |index| launch.read::<u32>(index, count).map(<[u32]>::to_vec);
    let (Some(left), Some(right)) = (words(1), words(2)) else {
        return;
    };
    if let Some(out) = launch.write::<u32>(0, count) {
        for (out, (left, right)) in out.iter_mut().zip(left.iter().zip(&right)) {
            *out = left.wrapping_add(*right);
        }
    }
}
