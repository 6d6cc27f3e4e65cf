//! Contexts.

use cudarc::driver::sys;
use larder_cuda_abi::ContextHandle;

use super::{Answer, ctx, done, done_raw, out, symbol};

/// cuDevicePrimaryCtxRetain.
pub(crate) fn retain_primary(device: i32) -> Answer<ContextHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuDevicePrimaryCtxRetain(at.cast(), device) })
        .map(ContextHandle)
}

/// cuDevicePrimaryCtxRelease_v2.
pub(crate) fn release_primary(device: i32) -> Answer {
    // SAFETY: the call takes a number and reads no memory.
    done(unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) })
}

/// cuDevicePrimaryCtxGetState: flags, and whether it is active.
pub(crate) fn primary_state(device: i32) -> Answer<(u32, bool)> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both out arguments are locals.
    done(unsafe { sys::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) })?;
    Ok((flags, active != 0))
}

/// cuCtxCreate_v2: a further context, current in this thread.
pub(crate) fn create(flags: u32, device: i32) -> Answer<ContextHandle> {
    type Create = unsafe extern "C" fn(*mut usize, u32, i32) -> u32;
    // SAFETY: the type is the function's C prototype.
    let call = unsafe { symbol::<Create>("cuCtxCreate_v2") };
    let mut handle = 0;
    // SAFETY: the out argument is a local's.
    done_raw(unsafe { call(&raw mut handle, flags, device) })?;
    Ok(ContextHandle(handle))
}

/// cuCtxGetDevice.
pub(crate) fn device() -> Answer<i32> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { sys::cuCtxGetDevice(at) })
}

/// cuCtxDestroy_v2.
pub(crate) fn destroy(context: ContextHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuCtxDestroy_v2(ctx(context)) })
}

/// cuCtxPushCurrent_v2.
pub(crate) fn push(context: ContextHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuCtxPushCurrent_v2(ctx(context)) })
}

/// cuCtxPopCurrent_v2.
pub(crate) fn pop() -> Answer<ContextHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuCtxPopCurrent_v2(at.cast()) }).map(ContextHandle)
}

/// cuCtxSetCurrent.
pub(crate) fn set(context: ContextHandle) -> Answer {
    // SAFETY: C2: the handle is the driver's, and null is documented.
    done(unsafe { sys::cuCtxSetCurrent(ctx(context)) })
}

/// cuCtxGetCurrent.
pub(crate) fn current() -> Answer<ContextHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuCtxGetCurrent(at.cast()) }).map(ContextHandle)
}

/// cuCtxSynchronize.
pub(crate) fn synchronize() -> Answer {
    // SAFETY: the call takes no arguments.
    done(unsafe { sys::cuCtxSynchronize() })
}

/// cuCtxGetStreamPriorityRange: the number of the least priority, then of the greatest.
pub(crate) fn priorities() -> Answer<(i32, i32)> {
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: both out arguments are locals.
    done(unsafe { sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) })?;
    Ok((least, greatest))
}

/// cuDevicePrimaryCtxReset_v2.
pub(crate) fn reset_primary(device: i32) -> Answer {
    // SAFETY: takes a number; what goes with the context is looked up afterwards.
    done(unsafe { sys::cuDevicePrimaryCtxReset_v2(device) })
}
