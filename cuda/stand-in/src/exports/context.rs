//! Exported functions of contexts.

use core::ffi::c_void;

use larder_cuda_abi::constants::CTX_SCHED_MASK;
use larder_cuda_abi::{Code, ContextHandle};

use crate::driver::Session;
use crate::entry::{answer, call};
use crate::ffi::Out;
use crate::thread;

/// Number of limits in the interface.
const LIMITS: u32 = 11;

/// Refuses invalid flags. Valid flags are one of four ways to wait, and any of the five bits above.
fn check_flags(flags: u32) -> Result<(), Code> {
    if !matches!(flags & CTX_SCHED_MASK, 0 | 1 | 2 | 4) || flags >> 8 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    Ok(())
}

fn create(driver: &mut Session, flags: u32, device: i32) -> Result<ContextHandle, Code> {
    let ordinal = driver.device(device)?.ordinal;
    check_flags(flags)?;
    let handle = driver.new_context(ordinal, None);
    thread::push(handle);
    Ok(ContextHandle(handle))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxCreate_v2(
    context: Out<ContextHandle>,
    flags: u32,
    device: i32,
) -> Code {
    answer("cuCtxCreate_v2", context, |driver| {
        create(driver, flags, device)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxCreate_v3(
    context: Out<ContextHandle>,
    _affinity: Out<c_void>,
    affinities: i32,
    flags: u32,
    device: i32,
) -> Code {
    answer("cuCtxCreate_v3", context, |driver| {
        if affinities != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        create(driver, flags, device)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxCreate_v4(
    context: Out<ContextHandle>,
    params: Out<c_void>,
    flags: u32,
    device: i32,
) -> Code {
    answer("cuCtxCreate_v4", context, |driver| {
        if !params.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        create(driver, flags, device)
    })
}

fn destroy(driver: &mut Session, context: ContextHandle) -> Result<(), Code> {
    if driver.contexts.get(context.0)?.primary {
        return Err(Code::INVALID_CONTEXT);
    }
    driver.destroy_context(context.0)?;
    if thread::current() == Some(context.0) {
        thread::pop();
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxDestroy(context: ContextHandle) -> Code {
    call("cuCtxDestroy", |driver| destroy(driver, context))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxDestroy_v2(context: ContextHandle) -> Code {
    call("cuCtxDestroy_v2", |driver| destroy(driver, context))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSetCurrent(context: ContextHandle) -> Code {
    call("cuCtxSetCurrent", |driver| {
        if context == ContextHandle::NULL {
            thread::set_current(None);
            return Ok(());
        }
        driver.contexts.get(context.0)?;
        thread::set_current(Some(context.0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetCurrent(context: Out<ContextHandle>) -> Code {
    answer("cuCtxGetCurrent", context, |_| {
        Ok(ContextHandle(thread::current().unwrap_or(0)))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetDevice(device: Out<i32>) -> Code {
    answer("cuCtxGetDevice", device, |driver| {
        let (_, ordinal) = driver.current_device()?;
        Ok(ordinal as i32)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxPushCurrent_v2(context: ContextHandle) -> Code {
    call("cuCtxPushCurrent_v2", |driver| {
        driver.contexts.get(context.0)?;
        thread::push(context.0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxPopCurrent_v2(context: Out<ContextHandle>) -> Code {
    call("cuCtxPopCurrent_v2", |_| {
        let popped = thread::pop().ok_or(Code::INVALID_CONTEXT)?;
        context.give_if_asked(ContextHandle(popped));
        Ok(())
    })
}

/// Only checks the flags. They select how the host waits, and here it always waits in the same way.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSetFlags(flags: u32) -> Code {
    call("cuCtxSetFlags", |driver| {
        driver.current()?;
        check_flags(flags)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSynchronize() -> Code {
    call("cuCtxSynchronize", |driver| {
        let context = driver.current()?;
        driver.check_context(context)?;
        driver.sync_context(context)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetLimit(value: Out<usize>, limit: u32) -> Code {
    answer("cuCtxGetLimit", value, |driver| {
        let context = driver.current()?;
        if limit >= LIMITS {
            return Err(Code::UNSUPPORTED_LIMIT);
        }
        let set = driver.contexts.get(context)?.limits.get(&limit).copied();
        Ok(set.unwrap_or(1024))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSetLimit(limit: u32, value: usize) -> Code {
    call("cuCtxSetLimit", |driver| {
        let context = driver.current()?;
        if limit >= LIMITS {
            return Err(Code::UNSUPPORTED_LIMIT);
        }
        let context = driver.contexts.get_mut(context)?;
        context.limits.insert(limit, value);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetCacheConfig(config: Out<u32>) -> Code {
    answer("cuCtxGetCacheConfig", config, |driver| {
        let context = driver.current()?;
        Ok(driver.contexts.get(context)?.cache_config)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSetCacheConfig(config: u32) -> Code {
    call("cuCtxSetCacheConfig", |driver| {
        let context = driver.current()?;
        driver.contexts.get_mut(context)?.cache_config = config;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> Code {
    call("cuCtxGetStreamPriorityRange", |driver| {
        driver.current()?;
        least.give_if_asked(0);
        greatest.give_if_asked(super::stream::GREATEST_PRIORITY);
        Ok(())
    })
}
