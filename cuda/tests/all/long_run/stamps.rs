//! Two kernels on whole blocks: one stamps a value into them, the other checks it. For the stand-in's race
//! detection both access every byte; in fact they access a word at intervals.

use std::ffi::{CStr, c_void};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::{CudaStream, result, sys};
use larder_cuda::Context;
use larder_cuda::driver::{HostLaunch, StandIn};
use larder_cuda_abi::stand_in::KernelCall;

/// Bytes from one stamp to the next; the last word of a block has one too.
const EVERY: u64 = 128 << 10;

/// The parameters of both. What they do is written for the stand-in only.
const PTX: &CStr = c"
.version 7.0
.target sm_50
.address_size 64

.visible .entry stamp_block(
    .param .u64 at,
    .param .u64 bytes,
    .param .u64 value
)
{
    ret;
}

.visible .entry check_block(
    .param .u64 at,
    .param .u64 bytes,
    .param .u64 value
)
{
    ret;
}
";

/// Faults that `check_block` found.
static WRONG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Takes the faults found since the last call.
pub(super) fn take_wrong() -> Vec<String> {
    std::mem::take(&mut *WRONG.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The module, loaded into a context.
pub(super) struct Stamps {
    context: Context,
    module: sys::CUmodule,
    stamp: sys::CUfunction,
    check: sys::CUfunction,
}

// SAFETY: handles, which threads may share.
unsafe impl Send for Stamps {}
// SAFETY: handles, which threads may share.
unsafe impl Sync for Stamps {}

impl Stamps {
    pub(super) fn load(control: &StandIn, context: &Context) -> Self {
        // SAFETY: every `stamp_block` here has these parameters.
        unsafe { control.register_kernel("stamp_block", stamp) }.unwrap();
        // SAFETY: every `check_block` here has these parameters.
        unsafe { control.register_kernel("check_block", check) }.unwrap();
        context.cudarc().bind_to_thread().unwrap();
        // SAFETY: a text that ends with zero.
        let module = unsafe { result::module::load_data(PTX.as_ptr().cast()) }.unwrap();
        let function = |name: &CStr| {
            // SAFETY: the module was loaded just now.
            unsafe { result::module::get_function(module, name.to_owned()) }.unwrap()
        };
        Self {
            context: context.clone(),
            module,
            stamp: function(c"stamp_block"),
            check: function(c"check_block"),
        }
    }

    /// Queues a kernel that writes the value.
    pub(super) fn stamp(
        &self,
        stream: &CudaStream,
        at: u64,
        bytes: u64,
        value: u64,
    ) -> Result<(), result::DriverError> {
        launch(self.stamp, stream, [at, bytes, value])
    }

    /// Queues a kernel that compares with the value.
    pub(super) fn check(
        &self,
        stream: &CudaStream,
        at: u64,
        bytes: u64,
        value: u64,
    ) -> Result<(), result::DriverError> {
        launch(self.check, stream, [at, bytes, value])
    }
}

impl Drop for Stamps {
    fn drop(&mut self) {
        let _ = self.context.cudarc().bind_to_thread();
        // SAFETY: it was loaded once, and nothing launches from it any more.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

fn launch(
    function: sys::CUfunction,
    stream: &CudaStream,
    mut values: [u64; 3],
) -> Result<(), result::DriverError> {
    let [at, bytes, value] = &mut values;
    let parameters: [*mut u64; 3] = [at, bytes, value];
    let mut parameters = parameters.map(<*mut u64>::cast::<c_void>);
    let (one, stream) = ((1, 1, 1), stream.cu_stream());
    // SAFETY: the parameters are those of the text, and outlive the call, which copies them; the program
    // holds the block and orders its uses.
    unsafe { result::launch_kernel(function, one, one, 0, stream, &mut parameters) }
}

/// Returns the addresses of a block's stamps.
fn places(bytes: u64) -> impl Iterator<Item = u64> {
    (0..bytes / EVERY)
        .map(|index| index * EVERY)
        .chain([0, bytes - 8])
}

/// # Safety
/// The stand-in calls it with a launch of `stamp_block`.
unsafe extern "C" fn stamp(call: *const KernelCall) {
    // SAFETY: the caller promises a launch with these parameters.
    let launch = unsafe { HostLaunch::of(call) };
    let [at, bytes, value] = [0, 1, 2].map(|index| launch.parameter::<u64>(index));
    let Some(memory) = launch.write::<u8>(0, bytes as usize) else {
        return;
    };
    for place in places(bytes) {
        let stamp = (value ^ (at + place)).to_ne_bytes();
        memory[place as usize..][..8].copy_from_slice(&stamp);
    }
}

/// # Safety
/// The stand-in calls it with a launch of `check_block`.
unsafe extern "C" fn check(call: *const KernelCall) {
    // SAFETY: the caller promises a launch with these parameters.
    let launch = unsafe { HostLaunch::of(call) };
    let [at, bytes, value] = [0, 1, 2].map(|index| launch.parameter::<u64>(index));
    let Some(memory) = launch.read::<u8>(0, bytes as usize) else {
        return;
    };
    for place in places(bytes) {
        let found = memory[place as usize..].first_chunk().unwrap();
        let found = u64::from_ne_bytes(*found);
        let wanted = value ^ (at + place);
        if found != wanted {
            let wrong = format!(
                "block of {bytes} bytes at {at:#x}: {found:#x} at {place:#x}, and not {wanted:#x}"
            );
            let mut all = WRONG.lock().unwrap_or_else(PoisonError::into_inner);
            return all.push(wrong);
        }
    }
}
