//! A kernel launch as its body on the host sees it: parameters, and the memory they point to.
//!
//! BODY1 A body reads the parameters that its kernel's text declares, as the types they have there.
//! BODY2 Until the body returns nothing else uses the memory that it reads or writes, memory it writes does
//! not overlap other memory that it still holds, and the bytes are values of the type it names, aligned for
//! it.

use super::abi::stand_in::KernelCall;

/// A launch of a kernel whose body runs on the host, over the stand-in.
///
/// Memory is requested range by range. If the kernel may not use a range the answer is `None`: the body
/// returns, and the launch fails as on a device.
#[derive(Clone, Copy, Debug)]
pub struct HostLaunch<'a>(&'a KernelCall);

impl<'a> HostLaunch<'a> {
    /// Wraps the call that a body receives.
    ///
    /// # Safety
    /// The stand-in lends the call until the body returns. The body reads parameters that the kernel has, as
    /// the types they have. Nothing else uses the memory that it requests until it returns, memory it writes
    /// does not overlap other memory that it still holds, and the bytes are values of the type it names,
    /// aligned for it.
    pub unsafe fn of(call: *const KernelCall) -> Self {
        // SAFETY: the stand-in lends the call until the body returns, as the caller promises.
        Self(unsafe { &*call })
    }

    /// Returns the number of threads of the whole grid in x.
    pub fn threads(&self) -> usize {
        self.0.grid[0] as usize * self.0.block[0] as usize
    }

    /// Returns the parameter with that number, counted from 0.
    pub fn parameter<T: Copy>(&self, index: usize) -> T {
        // SAFETY: BODY1: the kernel has a parameter of this number.
        let place = unsafe { *self.0.parameters.wrapping_add(index) };
        // SAFETY: BODY1: the parameter is of type `T`.
        unsafe { place.cast::<T>().read_unaligned() }
    }

    /// Returns the parameter with that number, a 32-bit count.
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
        // SAFETY: the function is the launch's own, called with that launch.
        let memory = unsafe { (self.0.access)(self.0, at, bytes as u64, u32::from(write)) };
        (!memory.is_null()).then_some(memory.cast())
    }
}
