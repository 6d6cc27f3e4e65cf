//! Copies and fills.

use larder_cuda_abi::{Code, ContextHandle, DevicePtr, StreamHandle};

use crate::driver::Session;
use crate::entry::call;
use crate::queue::{CopyEnd, Work};

/// One end of a copy, by the kind of memory in the function's name.
#[derive(Clone, Copy)]
enum NamedEnd {
    Device(DevicePtr),
    /// Device memory, accessed by the device that owns it.
    Peer(DevicePtr),
    Host(usize),
    /// Any memory, distinguished by its address because all memory shares one address space.
    Any(DevicePtr),
}

/// Whether a call waits for the work it queued.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The call returns immediately, unless it writes pageable memory.
    No,
    /// The call returns when the host's side of the copy is done.
    Yes,
}

impl NamedEnd {
    /// Returns the end, and whether it is device memory. Memory that the driver does not know is
    /// pageable host memory.
    fn resolve(self, driver: &Session, bytes: u64) -> Result<(CopyEnd, bool), Code> {
        let at = match self {
            Self::Device(at) | Self::Peer(at) => {
                driver.space.check_range(at, bytes)?;
                at
            }
            Self::Any(at) => at,
            Self::Host(at) => at as u64,
        };
        // In the window, a program may access only allocated memory.
        if driver.space.window.meets(at, bytes) {
            driver.space.check_range(at, bytes)?;
        }
        if at == 0 && bytes > 0 {
            return Err(Code::INVALID_VALUE);
        }
        if bytes > 0 && driver.space.covers(at, bytes) {
            let peer = matches!(self, Self::Peer(_));
            let place = if peer {
                CopyEnd::Peer(at)
            } else {
                CopyEnd::Known(at)
            };
            return Ok((place, driver.space.is_device(at)));
        }
        Ok((CopyEnd::Host(at as usize), false))
    }
}

/// Copies in the legacy default stream and waits for completion.
fn copy_now(name: &'static str, to: NamedEnd, from: NamedEnd, bytes: usize) -> Code {
    call(name, |driver| {
        copy(driver, to, from, bytes, StreamHandle::NULL, Wait::Yes)
    })
}

/// Copies in a stream.
fn copy_in(
    name: &'static str,
    to: NamedEnd,
    from: NamedEnd,
    bytes: usize,
    stream: StreamHandle,
) -> Code {
    call(name, |driver| {
        copy(driver, to, from, bytes, stream, Wait::No)
    })
}

/// Queues a copy. Bytes from pageable memory are staged now, since the program may change them
/// after the call returns. Bytes to pageable memory are written before the call returns.
fn copy(
    driver: &mut Session,
    to: NamedEnd,
    from: NamedEnd,
    bytes: usize,
    stream: StreamHandle,
    wait: Wait,
) -> Result<(), Code> {
    driver.current()?;
    if wait == Wait::Yes {
        driver.unsafe_call()?;
    }
    let stream = driver.stream(stream)?;
    let length = bytes as u64;
    let (to, to_device) = to.resolve(driver, length)?;
    let (mut from, from_device) = from.resolve(driver, length)?;
    if bytes == 0 {
        return Ok(());
    }
    // A graph accesses pageable memory when it runs.
    let capturing = driver.is_capturing(stream);
    let fills_pageable = matches!(to, CopyEnd::Host(_));
    let reads_pageable = matches!(from, CopyEnd::Host(_));
    if let CopyEnd::Host(at) = from
        && !fills_pageable
        && !capturing
    {
        let mut staged = vec![0; bytes];
        let source: *const u8 = std::ptr::with_exposed_provenance(at);
        // SAFETY: FFI1: the source is `bytes` bytes of host memory, and `staged` has room for them.
        unsafe { std::ptr::copy_nonoverlapping(source, staged.as_mut_ptr(), bytes) };
        from = CopyEnd::Staged(staged);
    }
    let work = Work::Copy {
        to,
        from,
        bytes: length,
    };
    let op = driver.submit(stream, work)?;
    if capturing {
        return Ok(());
    }
    let host_is_done = to_device && (from_device || reads_pageable);
    if fills_pageable || (wait == Wait::Yes && !host_is_done) {
        return driver.sync_op(op, stream);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoD_v2(to: DevicePtr, from: usize, bytes: usize) -> Code {
    copy_now(
        "cuMemcpyHtoD_v2",
        NamedEnd::Device(to),
        NamedEnd::Host(from),
        bytes,
    )
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoDAsync_v2(
    to: DevicePtr,
    from: usize,
    bytes: usize,
    stream: StreamHandle,
) -> Code {
    copy_in(
        "cuMemcpyHtoDAsync_v2",
        NamedEnd::Device(to),
        NamedEnd::Host(from),
        bytes,
        stream,
    )
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoH_v2(to: usize, from: DevicePtr, bytes: usize) -> Code {
    copy_now(
        "cuMemcpyDtoH_v2",
        NamedEnd::Host(to),
        NamedEnd::Device(from),
        bytes,
    )
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoHAsync_v2(
    to: usize,
    from: DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> Code {
    copy_in(
        "cuMemcpyDtoHAsync_v2",
        NamedEnd::Host(to),
        NamedEnd::Device(from),
        bytes,
        stream,
    )
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoD_v2(to: DevicePtr, from: DevicePtr, bytes: usize) -> Code {
    copy_now(
        "cuMemcpyDtoD_v2",
        NamedEnd::Device(to),
        NamedEnd::Device(from),
        bytes,
    )
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoDAsync_v2(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> Code {
    copy_in(
        "cuMemcpyDtoDAsync_v2",
        NamedEnd::Device(to),
        NamedEnd::Device(from),
        bytes,
        stream,
    )
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAsync(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> Code {
    copy_in(
        "cuMemcpyAsync",
        NamedEnd::Any(to),
        NamedEnd::Any(from),
        bytes,
        stream,
    )
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyPeerAsync(
    to: DevicePtr,
    to_context: ContextHandle,
    from: DevicePtr,
    from_context: ContextHandle,
    bytes: usize,
    stream: StreamHandle,
) -> Code {
    call("cuMemcpyPeerAsync", |driver| {
        driver.contexts.get(to_context.0)?;
        driver.contexts.get(from_context.0)?;
        let (to, from) = (NamedEnd::Peer(to), NamedEnd::Peer(from));
        copy(driver, to, from, bytes, stream, Wait::No)
    })
}

/// Queues a fill. A synchronous fill waits only if the host can access the memory.
fn set(
    driver: &mut Session,
    to: DevicePtr,
    pattern: &[u8],
    count: usize,
    stream: StreamHandle,
    wait: Wait,
) -> Result<(), Code> {
    driver.current()?;
    if wait == Wait::Yes {
        driver.unsafe_call()?;
    }
    let stream = driver.stream(stream)?;
    let bytes = (count as u64)
        .checked_mul(pattern.len() as u64)
        .ok_or(Code::INVALID_VALUE)?;
    if !to.is_multiple_of(pattern.len() as u64) {
        return Err(Code::INVALID_VALUE);
    }
    driver.space.check_range(to, bytes)?;
    if count == 0 {
        return Ok(());
    }
    let seen_by_host = !driver.space.is_device(to);
    let work = Work::Set {
        to,
        pattern: pattern.to_vec(),
        count: count as u64,
    };
    let op = driver.submit(stream, work)?;
    if wait == Wait::Yes && seen_by_host {
        return driver.sync_op(op, stream);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD8_v2(to: DevicePtr, value: u8, count: usize) -> Code {
    call("cuMemsetD8_v2", |driver| {
        set(driver, to, &[value], count, StreamHandle::NULL, Wait::Yes)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD8Async(
    to: DevicePtr,
    value: u8,
    count: usize,
    stream: StreamHandle,
) -> Code {
    call("cuMemsetD8Async", |driver| {
        set(driver, to, &[value], count, stream, Wait::No)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD16Async(
    to: DevicePtr,
    value: u16,
    count: usize,
    stream: StreamHandle,
) -> Code {
    call("cuMemsetD16Async", |driver| {
        set(driver, to, &value.to_ne_bytes(), count, stream, Wait::No)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD32Async(
    to: DevicePtr,
    value: u32,
    count: usize,
    stream: StreamHandle,
) -> Code {
    call("cuMemsetD32Async", |driver| {
        set(driver, to, &value.to_ne_bytes(), count, stream, Wait::No)
    })
}
