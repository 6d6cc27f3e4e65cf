//! A kernel launch as the kernel's body on the host sees it: parameters, and the memory they point to.
//!
//! BODY1 A body reads only parameters that its kernel's text declares, with the types declared there.
//! BODY2 Until the body returns, nothing else uses the memory that it reads or writes, the memory that it
//! writes does not overlap other memory that it still holds, and the bytes are aligned values of the type that
//! it names.

use super::abi::stand_in::KernelCall;

/// A launch of a kernel whose body runs on the host, under the stand-in.
///
/// The body requests memory range by range. If the kernel may not use a range, the answer is `None`. The body
/// should then return, and the launch fails as it would on a device.
#[derive(Clone, Copy, Debug)]
pub struct HostLaunch<'a>(&'a KernelCall);

impl<'a> HostLaunch<'a> {
    /// Wraps the call that a body receives.
    ///
    /// # Safety
    /// The stand-in lends the call until the body returns. The body reads only parameters that the kernel has,
    /// with their types. Until the body returns, nothing else uses the memory that it requests, the memory
    /// that it writes does not overlap other memory that it still holds, and the bytes are aligned values of
    /// the type that it names.
    pub unsafe fn of(call: *const KernelCall) -> Self {
        // SAFETY: the stand-in lends the call until the body returns, as the caller promises.
        Self(unsafe { &*call })
    }

    /// Returns the number of threads in the x dimension of the whole grid.
    pub fn threads(&self) -> usize {
        self.0.grid[0] as usize * self.0.block[0] as usize
    }

    /// Returns the parameter with number `index`, counted from 0.
    pub fn parameter<T: Copy>(&self, index: usize) -> T {
        // SAFETY: BODY1: the kernel has a parameter of this number.
        let place = unsafe { *self.0.parameters.wrapping_add(index) };
        // SAFETY: BODY1: the parameter is of type `T`.
        unsafe { place.cast::<T>().read_unaligned() }
    }

    /// Returns the parameter with number `index`, which is a 32-bit count.
    pub fn count(&self, index: usize) -> usize {
        self.parameter::<u32>(index) as usize
    }

    /// Returns the first `count` values at the address in parameter `index`, for reading.
    pub fn read<T: Copy>(&self, index: usize, count: usize) -> Option<&'a [T]> {
        let memory = self.memory(index, count, false)?;
        // SAFETY: the stand-in gave access to `count` values; BODY2: nothing writes them until the body
        // returns.
        Some(unsafe { std::slice::from_raw_parts(memory, count) })
    }

    /// Returns the first `count` values at the address in parameter `index`, for writing.
    pub fn write<T: Copy>(&self, index: usize, count: usize) -> Option<&'a mut [T]> {
        let memory = self.memory(index, count, true)?;
        // SAFETY: the stand-in gave access to `count` values; BODY2: nothing else uses them until the body
        // returns.
        Some(unsafe { std::slice::from_raw_parts_mut(memory, count) })
    }

    fn memory<T>(&self, index: usize, count: usize, write: bool) -> Option<*mut T> {
        let at = self.parameter(index);
        let bytes = size_of::<T>().checked_mul(count)?;
        // SAFETY: the function belongs to this launch and is called with it.
        let memory = unsafe { (self.0.access)(self.0, at, bytes as u64, u32::from(write)) };
        (!memory.is_null()).then_some(memory.cast())
    }
}
