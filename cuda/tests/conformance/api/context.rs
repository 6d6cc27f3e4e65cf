//! Contexts.

use larder_cuda_abi::ContextHandle;

use super::{Answer, out};

/// cuDevicePrimaryCtxRetain.
pub(crate) fn retain_primary(device: i32) -> Answer<ContextHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuDevicePrimaryCtxRetain)(at, device) })
}

/// cuDevicePrimaryCtxRelease_v2.
pub(crate) fn release_primary(device: i32) -> Answer {
    // SAFETY: the call takes a number and reads no memory.
    unsafe { function!(cuDevicePrimaryCtxRelease_v2)(device) }.check()
}

/// cuDevicePrimaryCtxGetState: flags, and whether it is active.
pub(crate) fn primary_state(device: i32) -> Answer<(u32, bool)> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both out arguments are locals.
    unsafe { function!(cuDevicePrimaryCtxGetState)(device, &raw mut flags, &raw mut active) }
        .check()?;
    Ok((flags, active != 0))
}

/// cuCtxCreate_v2: a further context, current in this thread.
pub(crate) fn create(flags: u32, device: i32) -> Answer<ContextHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuCtxCreate_v2)(at, flags, device) })
}

/// cuCtxGetDevice.
pub(crate) fn device() -> Answer<i32> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuCtxGetDevice)(at) })
}

/// cuCtxDestroy_v2.
pub(crate) fn destroy(context: ContextHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuCtxDestroy_v2)(context) }.check()
}

/// cuCtxPushCurrent_v2.
pub(crate) fn push(context: ContextHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuCtxPushCurrent_v2)(context) }.check()
}

/// cuCtxPopCurrent_v2.
pub(crate) fn pop() -> Answer<ContextHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuCtxPopCurrent_v2)(at) })
}

/// cuCtxSetCurrent.
pub(crate) fn set(context: ContextHandle) -> Answer {
    // SAFETY: C2: the handle is the driver's, and null is documented.
    unsafe { function!(cuCtxSetCurrent)(context) }.check()
}

/// cuCtxGetCurrent.
pub(crate) fn current() -> Answer<ContextHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuCtxGetCurrent)(at) })
}

/// cuCtxSynchronize.
pub(crate) fn synchronize() -> Answer {
    // SAFETY: the call takes no arguments.
    unsafe { function!(cuCtxSynchronize)() }.check()
}

/// cuCtxGetStreamPriorityRange: the number of the least priority, then of the greatest.
pub(crate) fn priorities() -> Answer<(i32, i32)> {
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: both out arguments are locals.
    unsafe { function!(cuCtxGetStreamPriorityRange)(&raw mut least, &raw mut greatest) }.check()?;
    Ok((least, greatest))
}

/// cuDevicePrimaryCtxReset_v2.
pub(crate) fn reset_primary(device: i32) -> Answer {
    // SAFETY: takes a number; what goes with the context is looked up afterwards.
    unsafe { function!(cuDevicePrimaryCtxReset_v2)(device) }.check()
}
