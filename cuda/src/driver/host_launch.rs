//! A launch as a kernel's body on the host sees it: its parameters, and the memory behind them.
//!
//! BODY1 A body asks for the parameters that its kernel's text declares, as the types they have there.
//! BODY2 Until the body returns nothing else uses the memory that it asks for, what it writes overlaps
//!    nothing else that it still holds, and the bytes are values of the type it names, aligned for it.

use super::abi::stand_in::KernelCall;

/// A launch of a kernel whose body runs on the host, over the stand-in.
///
/// Memory is asked for piece by piece. Where the kernel may not use it the answer is `None`: the body
/// returns, and the launch fails as on a device.
#[derive(Clone, Copy, Debug)]
pub struct HostLaunch<'a>(&'a KernelCall);

impl<'a> HostLaunch<'a> {
    /// The launch that a body is called with.
    ///
    /// # Safety
    /// The stand-in lends the call until the body returns. The body asks for parameters that the kernel has,
    /// as the types they have. Nothing else uses the memory that it asks for until it returns, what it writes
    /// overlaps nothing else that it still holds, and the bytes are values of the type it names, aligned for it.
    pub unsafe fn of(call: *const KernelCall) -> Self {
        // SAFETY: the stand-in lends it for the call.
        Self(unsafe { &*call })
    }

    /// The threads of the whole grid, in x.
    pub fn threads(&self) -> usize {
        self.0.grid[0] as usize * self.0.block[0] as usize
    }

    /// The parameter of that number, from 0.
    pub fn parameter<T: Copy>(&self, index: usize) -> T {
        // SAFETY: BODY1: there are so many.
        let place = unsafe { *self.0.parameters.wrapping_add(index) };
        // SAFETY: BODY1: it is of that type.
        unsafe { place.cast::<T>().read_unaligned() }
    }

    /// The parameter of that number, which is a count of 32 bits.
    pub fn count(&self, index: usize) -> usize {
        self.parameter::<u32>(index) as usize
    }

    /// The first `count` values at the address that parameter `index` is, to be read.
    pub fn read<T: Copy>(&self, index: usize, count: usize) -> Option<&'a [T]> {
        let memory = self.memory(index, count, false)?;
        // SAFETY: the stand-in gave access to so many bytes; BODY2.
        Some(unsafe { std::slice::from_raw_parts(memory, count) })
    }

    /// The first `count` values at the address that parameter `index` is, to be written.
    pub fn write<T: Copy>(&self, index: usize, count: usize) -> Option<&'a mut [T]> {
        let memory = self.memory(index, count, true)?;
        // SAFETY: the stand-in gave access to so many bytes; BODY2.
        Some(unsafe { std::slice::from_raw_parts_mut(memory, count) })
    }

    fn memory<T>(&self, index: usize, count: usize, write: bool) -> Option<*mut T> {
        let at = self.parameter(index);
        let bytes = size_of::<T>().checked_mul(count)?;
        // SAFETY: the function is the launch's own.
        let memory = unsafe { (self.0.access)(self.0, at, bytes as u64, u32::from(write)) };
        (!memory.is_null()).then_some(memory.cast())
    }
}
