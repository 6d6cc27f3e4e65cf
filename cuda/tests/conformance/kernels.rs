//! The kernels, as PTX for a device and as host functions for the stand-in.

use std::ffi::CStr;

use larder_cuda::driver::HostLaunch;
use larder_cuda_abi::stand_in::{KernelBody, KernelCall};

pub(crate) const PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../words.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a zero byte within"),
    };

/// Kernels that start before the previous one has ended, for devices of compute capability 9.0.
pub(crate) const DEPENDENT_PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../dependent.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a zero byte within"),
    };

/// The kernels of [`PTX`] that the tests launch, and the host function that does the work of each for the whole grid.
pub(crate) const BODIES: [(&str, KernelBody); 5] = [
    ("fill_u32", fill_body),
    ("add_words", add_body),
    ("scale_words", scale_body),
    ("sum_words", sum_body),
    ("sum_words_read_only", sum_body),
];

/// # Safety
///
/// Must be called by the stand-in, for a launch of `fill_u32`.
unsafe extern "C" fn fill_body(call: *const KernelCall) {
    // SAFETY: the caller promises a launch with the parameters of the PTX.
    let launch = unsafe { HostLaunch::of(call) };
    let count = launch.count(1).min(launch.threads());
    if let Some(out) = launch.write::<u32>(0, count) {
        out.fill(launch.parameter(2));
    }
}

/// # Safety
///
/// Must be called by the stand-in, for a launch of `add_words`.
unsafe extern "C" fn add_body(call: *const KernelCall) {
    // SAFETY: the caller promises a launch with the parameters of the PTX; all values are read before any is written.
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

/// # Safety
///
/// Must be called by the stand-in, for a launch of `scale_words`.
unsafe extern "C" fn scale_body(call: *const KernelCall) {
    // SAFETY: the caller promises a launch with the parameters of the PTX; all values are read before any is written.
    let launch = unsafe { HostLaunch::of(call) };
    let count = launch.count(2).min(launch.threads());
    let Some(from) = launch.read::<u32>(1, count).map(<[u32]>::to_vec) else {
        return;
    };
    if let Some(out) = launch.write::<u32>(0, count) {
        for (out, from) in out.iter_mut().zip(from) {
            *out = from.wrapping_mul(launch.parameter(3));
        }
    }
}

/// # Safety
///
/// Must be called by the stand-in, for a launch of `sum_words`.
unsafe extern "C" fn sum_body(call: *const KernelCall) {
    // SAFETY: the caller promises a launch with the parameters of the PTX; all values are read before any is written.
    let launch = unsafe { HostLaunch::of(call) };
    let Some(from) = launch.read::<u32>(0, launch.count(1)) else {
        return;
    };
    let sum = from.iter().fold(0_u32, |sum, word| sum.wrapping_add(*word));
    if let Some([to]) = launch.write::<u32>(2, 1) {
        *to = to.wrapping_add(sum);
    }
}
