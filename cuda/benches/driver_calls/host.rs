//! The kernels of `kernels.ptx` as host functions, for the stand-in driver. TEXT1 holds for each of them.

use std::thread;
use std::time::Duration;

use larder_cuda::driver::abi::stand_in::{KernelBody, KernelCall};
use larder_cuda::driver::{DriverError, HostLaunch, StandIn};

/// Registers the bodies with the stand-in.
pub(crate) fn register(stand_in: &StandIn) -> Result<(), DriverError> {
    let bodies: [(&str, KernelBody); 4] = [
        ("spin", spin),
        ("touch", touch),
        ("number", number),
        ("differ", differ),
    ];
    for (name, body) in bodies {
        // SAFETY: TEXT1; no other kernels have these names, and the bodies call no driver.
        unsafe { stand_in.register_kernel(name, body) }?;
    }
    Ok(())
}

unsafe extern "C" fn spin(call: *const KernelCall) {
    // SAFETY: TEXT1.
    let launch = unsafe { HostLaunch::of(call) };
    thread::sleep(Duration::from_nanos(launch.parameter(0)));
}

unsafe extern "C" fn touch(call: *const KernelCall) {
    // SAFETY: TEXT1.
    let launch = unsafe { HostLaunch::of(call) };
    let Some(word) = launch.write::<u32>(0, 2) else {
        return;
    };
    word.fill(1);
    thread::sleep(Duration::from_nanos(launch.parameter(1)));
}

unsafe extern "C" fn number(call: *const KernelCall) {
    // SAFETY: TEXT1.
    let launch = unsafe { HostLaunch::of(call) };
    let seed: u32 = launch.parameter(2);
    let Some(words) = launch.write::<u32>(0, launch.count(1)) else {
        return;
    };
    for (word, place) in words.iter_mut().zip(0_u32..) {
        *word = place.wrapping_add(seed);
    }
}

unsafe extern "C" fn differ(call: *const KernelCall) {
    // SAFETY: TEXT1.
    let launch = unsafe { HostLaunch::of(call) };
    let seed: u32 = launch.parameter(2);
    let Some(words) = launch.read::<u32>(0, launch.count(1)) else {
        return;
    };
    let words = words.iter().zip(0_u32..);
    let wrong = words.filter(|(word, place)| **word != place.wrapping_add(seed));
    let wrong = wrong.count() as u32;
    if let Some([word]) = launch.write::<u32>(3, 1) {
        *word = word.wrapping_add(wrong);
    }
}
