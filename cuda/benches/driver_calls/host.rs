//! The kernels of `kernels.ptx` as functions of the host, for the stand-in driver. PROBE1 holds for each.

use std::thread;
use std::time::Duration;

use larder_cuda::driver::abi::stand_in::{KernelBody, KernelCall};
use larder_cuda::driver::{DriverError, StandIn};

/// Gives the stand-in the bodies.
pub(crate) fn register(stand_in: &StandIn) -> Result<(), DriverError> {
    let bodies: [(&str, KernelBody); 4] =
        [("spin", spin), ("touch", touch), ("add", add), ("sum", sum)];
    for (name, body) in bodies {
        // SAFETY: PROBE1: the only kernels of these names; the bodies call no driver.
        unsafe { stand_in.register_kernel(name, body) }?;
    }
    Ok(())
}

/// A launch, whose memory is asked for piece by piece; `None` ends the body, and the launch fails as on a
/// device.
struct Launch<'a>(&'a KernelCall);

impl<'a> Launch<'a> {
    /// # Safety
    /// A launch of a kernel of ours, whose parameters are asked for as the types they have.
    unsafe fn of(call: *const KernelCall) -> Self {
        // SAFETY: the stand-in lends it for the call.
        Self(unsafe { &*call })
    }

    fn parameter<T: Copy>(&self, index: usize) -> T {
        // SAFETY: PROBE1: there are so many.
        let place = unsafe { *self.0.parameters.wrapping_add(index) };
        // SAFETY: PROBE1: it is of that type.
        unsafe { place.cast::<T>().read_unaligned() }
    }

    fn memory(&self, index: usize, count: usize, write: bool) -> Option<*mut u32> {
        let (at, bytes) = (self.parameter::<u64>(index), 4 * count as u64);
        // SAFETY: the function is the launch's own.
        let memory = unsafe { (self.0.access)(self.0, at, bytes, u32::from(write)) };
        (!memory.is_null()).then_some(memory.cast())
    }

    fn read(&self, index: usize, count: usize) -> Option<&'a [u32]> {
        let memory = self.memory(index, count, false)?;
        // SAFETY: the driver gave access to so many bytes; nobody else uses them meanwhile.
        Some(unsafe { std::slice::from_raw_parts(memory, count) })
    }

    /// Memory that overlaps nothing else that the body asks for.
    fn write(&self, index: usize, count: usize) -> Option<&'a mut [u32]> {
        let memory = self.memory(index, count, true)?;
        // SAFETY: the driver gave access to so many bytes; nobody else uses them meanwhile.
        Some(unsafe { std::slice::from_raw_parts_mut(memory, count) })
    }
}

unsafe extern "C" fn spin(call: *const KernelCall) {
    // SAFETY: PROBE1.
    let launch = unsafe { Launch::of(call) };
    thread::sleep(Duration::from_nanos(launch.parameter(0)));
}

unsafe extern "C" fn touch(call: *const KernelCall) {
    // SAFETY: PROBE1.
    let launch = unsafe { Launch::of(call) };
    let Some(word) = launch.write(0, 2) else {
        return;
    };
    word.fill(1);
    thread::sleep(Duration::from_nanos(launch.parameter(1)));
}

unsafe extern "C" fn add(call: *const KernelCall) {
    // SAFETY: PROBE1.
    let launch = unsafe { Launch::of(call) };
    let Some(words) = launch.write(0, launch.parameter::<u32>(1) as usize) else {
        return;
    };
    for word in words {
        *word = word.wrapping_add(1);
    }
}

unsafe extern "C" fn sum(call: *const KernelCall) {
    // SAFETY: PROBE1.
    let launch = unsafe { Launch::of(call) };
    let Some(words) = launch.read(0, launch.parameter::<u32>(1) as usize) else {
        return;
    };
    let sum = words
        .iter()
        .fold(0_u32, |sum, word| sum.wrapping_add(*word));
    if let Some([word]) = launch.write(2, 1) {
        *word = word.wrapping_add(sum);
    }
}
