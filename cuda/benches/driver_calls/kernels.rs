//! Kernels that take time, that write numbers to words, and that compare these words. Their text is in
//! `kernels.ptx`.
//!
//! TEXT1 A kernel is launched with the parameters that its text declares, and its memory has the number of
//!    words that it is passed.

use std::error::Error;
use std::ffi::{CStr, CString, c_void};
use std::time::Duration;

use cudarc::driver::{result, sys};
use larder_cuda::driver::StandIn;
use larder_cuda::driver::abi::DevicePtr;

use crate::host;

const TEXT: &str = include_str!("kernels.ptx");

/// The number of blocks in a launch over words, and of threads in a block: more threads than a device runs at
/// once.
const GRID: u32 = 1024;
const BLOCK: u32 = 256;

/// The kernels of a context, which must be current. They are never unloaded.
pub(crate) struct Kernels {
    is_stand_in: bool,
    spin: sys::CUfunction,
    touch: sys::CUfunction,
    number: sys::CUfunction,
    differ: sys::CUfunction,
}

// SAFETY: the fields are handles, which any thread may use while their context is current.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads the kernels, and registers their bodies with the stand-in.
    pub(crate) fn load(stand_in: Option<&StandIn>) -> Result<Self, Box<dyn Error>> {
        if let Some(stand_in) = stand_in {
            host::register(stand_in)?;
        }
        let text = CString::new(TEXT)?;
        // SAFETY: the text is NUL-terminated.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        Ok(Self {
            is_stand_in: stand_in.is_some(),
            spin: function(module, c"spin")?,
            touch: function(module, c"touch")?,
            number: function(module, c"number")?,
            differ: function(module, c"differ")?,
        })
    }

    /// Keeps the stream busy for a while.
    pub(crate) fn spin(
        &self,
        stream: sys::CUstream,
        time: Duration,
    ) -> Result<(), result::DriverError> {
        let mut nanoseconds = self.nanoseconds(stream, time)?;
        let mut parameters = [(&raw mut nanoseconds).cast()];
        // SAFETY: TEXT1.
        unsafe { launch(self.spin, [1, 1], stream, &mut parameters) }
    }

    /// Writes the word at `at` for a while.
    ///
    /// # Safety
    /// The caller accepts what happens if the memory is unmapped meanwhile.
    pub(crate) unsafe fn touch(
        &self,
        stream: sys::CUstream,
        at: DevicePtr,
        time: Duration,
    ) -> Result<(), result::DriverError> {
        let (mut at, mut nanoseconds) = (at, self.nanoseconds(stream, time)?);
        let mut parameters = [(&raw mut at).cast(), (&raw mut nanoseconds).cast()];
        // SAFETY: TEXT1; the kernel's memory may be unmapped while it runs, by the condition of `touch`.
        unsafe { launch(self.touch, [1, 1], stream, &mut parameters) }
    }

    /// Returns how long a kernel must run to keep the stream busy for a time. On the stand-in, where all other
    /// calls wait while a kernel runs, queues a host function that sleeps instead, and returns 0.
    fn nanoseconds(
        &self,
        stream: sys::CUstream,
        time: Duration,
    ) -> Result<u64, result::DriverError> {
        unsafe extern "C" fn sleep(nanoseconds: *mut c_void) {
            std::thread::sleep(Duration::from_nanos(nanoseconds.addr() as u64));
        }
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if !self.is_stand_in || nanoseconds == 0 {
            return Ok(nanoseconds);
        }
        let word = std::ptr::without_provenance_mut(nanoseconds as usize);
        // SAFETY: the function takes a number, and calls no driver.
        unsafe { sys::cuLaunchHostFunc(stream, Some(sleep), word) }.result()?;
        Ok(0)
    }

    /// Writes `seed` plus its index to each of `count` words.
    ///
    /// # Safety
    /// The words exist and belong to the caller.
    pub(crate) unsafe fn number(
        &self,
        stream: sys::CUstream,
        at: DevicePtr,
        count: u32,
        seed: u32,
    ) -> Result<(), result::DriverError> {
        let (mut at, mut count, mut seed) = (at, count, seed);
        let mut parameters = [
            (&raw mut at).cast(),
            (&raw mut count).cast(),
            (&raw mut seed).cast(),
        ];
        // SAFETY: TEXT1; the words exist and only the caller uses them, by the condition of `number`.
        unsafe { launch(self.number, [GRID, BLOCK], stream, &mut parameters) }
    }

    /// Adds to the word at `to` how many of `count` words differ from the values that `number` wrote.
    ///
    /// # Safety
    /// The words, and the word at `to`, exist and belong to the caller.
    pub(crate) unsafe fn differ(
        &self,
        stream: sys::CUstream,
        at: DevicePtr,
        count: u32,
        seed: u32,
        to: DevicePtr,
    ) -> Result<(), result::DriverError> {
        let (mut at, mut count, mut seed, mut to) = (at, count, seed, to);
        let mut parameters = [
            (&raw mut at).cast(),
            (&raw mut count).cast(),
            (&raw mut seed).cast(),
            (&raw mut to).cast(),
        ];
        // SAFETY: TEXT1; the words and the word at `to` exist and only the caller uses them, by the condition of
        // `differ`.
        unsafe { launch(self.differ, [GRID, BLOCK], stream, &mut parameters) }
    }
}

/// # Safety
/// TEXT1; the context is current.
unsafe fn launch(
    kernel: sys::CUfunction,
    [grid, block]: [u32; 2],
    stream: sys::CUstream,
    parameters: &mut [*mut c_void],
) -> Result<(), result::DriverError> {
    // SAFETY: the parameters are the kernel's (TEXT1), and the context is current, by the conditions above.
    unsafe { result::launch_kernel(kernel, (grid, 1, 1), (block, 1, 1), 0, stream, parameters) }
}

fn function(module: sys::CUmodule, name: &CStr) -> Result<sys::CUfunction, result::DriverError> {
    // SAFETY: the module was loaded just now, and is never unloaded.
    unsafe { result::module::get_function(module, name.to_owned()) }
}
