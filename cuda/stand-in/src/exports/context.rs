//! Contexts.

use larder_cuda_abi::constants::{CTX_MAP_HOST, CTX_SCHED_MASK};
use larder_cuda_abi::{Code, ContextHandle};

use crate::driver::Session;
use crate::entry::call;
use crate::ffi::Out;
use crate::thread;

/// The number of limits in the interface.
const LIMITS: u32 = 11;

/// Refuses flags that do not exist: there are four ways to wait and five bits above.
pub(super) fn check_flags(flags: u32) -> Result<(), Code> {
    if !matches!(flags & CTX_SCHED_MASK, 0 | 1 | 2 | 4) || flags >> 8 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    Ok(())
}

fn create(
    driver: &mut Session,
    context: &Out<ContextHandle>,
    flags: u32,
    device: i32,
) -> Result<(), Code> {
    context.check()?;
    let ordinal = driver.device(device)?.ordinal;
    check_flags(flags)?;
    let handle = driver.new_context(ordinal, flags | CTX_MAP_HOST, None);
    thread::push(handle);
    context.give(ContextHandle(handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v2(context: Out<ContextHandle>, flags: u32, device: i32) -> Code {
    call("cuCtxCreate_v2", |driver| {
        create(driver, &context, flags, device)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v3(
    context: Out<ContextHandle>,
    _affinity: Out<u64>,
    affinities: i32,
    flags: u32,
    device: i32,
) -> Code {
    call("cuCtxCreate_v3", |driver| {
        if affinities != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        create(driver, &context, flags, device)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v4(
    context: Out<ContextHandle>,
    params: Out<u64>,
    flags: u32,
    device: i32,
) -> Code {
    call("cuCtxCreate_v4", |driver| {
        if !params.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        create(driver, &context, flags, device)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: ContextHandle) -> Code {
    call("cuCtxDestroy_v2", |driver| {
        let known = driver
            .contexts
            .get(context.0)
            .map_err(|_| Code::INVALID_CONTEXT)?;
        if known.primary {
            return Err(Code::INVALID_CONTEXT);
        }
        driver.destroy_context(context.0)?;
        if thread::current() == Some(context.0) {
            thread::pop();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: ContextHandle) -> Code {
    call("cuCtxSetCurrent", |driver| {
        if context == ContextHandle::NULL {
            thread::set_current(None);
            return Ok(());
        }
        driver
            .contexts
            .get(context.0)
            .map_err(|_| Code::INVALID_CONTEXT)?;
        thread::set_current(Some(context.0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<ContextHandle>) -> Code {
    call("cuCtxGetCurrent", |_| {
        context.give(ContextHandle(thread::current().unwrap_or(0)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: ContextHandle) -> Code {
    call("cuCtxPushCurrent_v2", |driver| {
        driver
            .contexts
            .get(context.0)
            .map_err(|_| Code::INVALID_CONTEXT)?;
        thread::push(context.0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: Out<ContextHandle>) -> Code {
    call("cuCtxPopCurrent_v2", |_| {
        let popped = thread::pop().ok_or(Code::INVALID_CONTEXT)?;
        context.give_if_asked(ContextHandle(popped));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<i32>) -> Code {
    call("cuCtxGetDevice", |driver| {
        device.check()?;
        let context = driver.current_even_failed()?;
        device.give(driver.contexts.get(context)?.device as i32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetFlags(flags: Out<u32>) -> Code {
    call("cuCtxGetFlags", |driver| {
        flags.check()?;
        let context = driver.current_even_failed()?;
        flags.give(driver.contexts.get(context)?.flags)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(flags: u32) -> Code {
    call("cuCtxSetFlags", |driver| {
        let context = driver.current()?;
        check_flags(flags)?;
        driver.contexts.get_mut(context)?.flags = flags;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetId(context: ContextHandle, id: Out<u64>) -> Code {
    call("cuCtxGetId", |driver| {
        id.check()?;
        let context = match context {
            ContextHandle::NULL => driver.current_even_failed()?,
            ContextHandle(handle) => handle,
        };
        driver
            .contexts
            .get(context)
            .map_err(|_| Code::INVALID_CONTEXT)?;
        id.give(context as u64)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetApiVersion(context: ContextHandle, version: Out<u32>) -> Code {
    call("cuCtxGetApiVersion", |driver| {
        version.check()?;
        if context != ContextHandle::NULL {
            driver
                .contexts
                .get(context.0)
                .map_err(|_| Code::INVALID_CONTEXT)?;
        }
        version.give(3020)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Code {
    call("cuCtxSynchronize", |driver| {
        let context = driver.current()?;
        driver.check_context(context)?;
        driver.sync_context(context)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetLimit(value: Out<usize>, limit: u32) -> Code {
    call("cuCtxGetLimit", |driver| {
        value.check()?;
        let context = driver.current()?;
        if limit >= LIMITS {
            return Err(Code::UNSUPPORTED_LIMIT);
        }
        let set = driver.contexts.get(context)?.limits.get(&limit).copied();
        value.give(set.unwrap_or(1024))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetLimit(limit: u32, value: usize) -> Code {
    call("cuCtxSetLimit", |driver| {
        let context = driver.current()?;
        if limit >= LIMITS {
            return Err(Code::UNSUPPORTED_LIMIT);
        }
        driver
            .contexts
            .get_mut(context)?
            .limits
            .insert(limit, value);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCacheConfig(config: Out<u32>) -> Code {
    call("cuCtxGetCacheConfig", |driver| {
        config.check()?;
        let context = driver.current()?;
        config.give(driver.contexts.get(context)?.cache_config)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCacheConfig(config: u32) -> Code {
    call("cuCtxSetCacheConfig", |driver| {
        let context = driver.current()?;
        driver.contexts.get_mut(context)?.cache_config = config;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> Code {
    call("cuCtxGetStreamPriorityRange", |driver| {
        driver.current()?;
        least.give_if_asked(0);
        greatest.give_if_asked(super::stream::GREATEST_PRIORITY);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: ContextHandle, flags: u32) -> Code {
    call("cuCtxEnablePeerAccess", |driver| {
        let context = driver.current()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let to = driver
            .contexts
            .get(peer.0)
            .map_err(|_| Code::INVALID_CONTEXT)?
            .device;
        let known = driver.contexts.get_mut(context)?;
        if known.device == to {
            return Err(Code::INVALID_CONTEXT);
        }
        if !known.peers.insert(to) {
            return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDisablePeerAccess(peer: ContextHandle) -> Code {
    call("cuCtxDisablePeerAccess", |driver| {
        let context = driver.current()?;
        let to = driver
            .contexts
            .get(peer.0)
            .map_err(|_| Code::INVALID_CONTEXT)?
            .device;
        if !driver.contexts.get_mut(context)?.peers.remove(&to) {
            return Err(Code::PEER_ACCESS_NOT_ENABLED);
        }
        Ok(())
    })
}
