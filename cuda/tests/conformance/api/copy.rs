//! Copies and fills.

use cudarc::driver::sys;
use larder_cuda_abi::{ContextHandle, DevicePtr, StreamHandle};

use super::{Answer, ctx, done, host, stream_of};

/// cuMemcpyHtoD_v2.
pub(crate) fn to_device(to: DevicePtr, from: &[u8]) -> Answer {
    // SAFETY: the source is read before the call returns.
    done(unsafe { sys::cuMemcpyHtoD_v2(to, from.as_ptr().cast(), from.len()) })
}

/// cuMemcpyDtoH_v2.
pub(crate) fn to_host(to: &mut [u8], from: DevicePtr) -> Answer {
    // SAFETY: the target is written before the call returns.
    done(unsafe { sys::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len()) })
}

/// cuMemcpyDtoD_v2.
pub(crate) fn between(to: DevicePtr, from: DevicePtr, bytes: usize) -> Answer {
    // SAFETY: the driver looks the addresses up.
    done(unsafe { sys::cuMemcpyDtoD_v2(to, from, bytes) })
}

/// cuMemcpyPeerAsync.
pub(crate) fn peer_async(
    to: (DevicePtr, ContextHandle),
    from: (DevicePtr, ContextHandle),
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    let stream = stream_of(stream);
    // SAFETY: C2; the driver looks the addresses up.
    done(unsafe { sys::cuMemcpyPeerAsync(to.0, ctx(to.1), from.0, ctx(from.1), bytes, stream) })
}

/// cuMemcpyHtoDAsync_v2, from a host address.
pub(crate) fn to_device_async(
    to: DevicePtr,
    from: usize,
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C1, C2: the host memory stays until the copy is done, the handles are the driver's.
    done(unsafe { sys::cuMemcpyHtoDAsync_v2(to, host(from), bytes, stream_of(stream)) })
}

/// cuMemcpyDtoHAsync_v2, to a host address.
pub(crate) fn to_host_async(
    to: usize,
    from: DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C1, C2: the host memory stays until the copy is done, the handles are the driver's.
    done(unsafe { sys::cuMemcpyDtoHAsync_v2(host(to), from, bytes, stream_of(stream)) })
}

/// cuMemcpyDtoDAsync_v2.
pub(crate) fn between_async(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C2; the driver looks the addresses up.
    done(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream_of(stream)) })
}

/// cuMemcpyAsync.
pub(crate) fn any_async(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C1, C2: the host memory stays until the copy is done, the handles are the driver's.
    done(unsafe { sys::cuMemcpyAsync(to, from, bytes, stream_of(stream)) })
}

/// cuMemsetD8_v2.
pub(crate) fn fill8(to: DevicePtr, value: u8, count: usize) -> Answer {
    // SAFETY: the driver looks the address up.
    done(unsafe { sys::cuMemsetD8_v2(to, value, count) })
}

/// cuMemsetD8Async.
pub(crate) fn fill8_async(to: DevicePtr, value: u8, count: usize, stream: StreamHandle) -> Answer {
    // SAFETY: C2; the driver looks the address up.
    done(unsafe { sys::cuMemsetD8Async(to, value, count, stream_of(stream)) })
}

/// cuMemsetD16Async.
pub(crate) fn fill16_async(
    to: DevicePtr,
    value: u16,
    count: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C2; the driver looks the address up.
    done(unsafe { sys::cuMemsetD16Async(to, value, count, stream_of(stream)) })
}

/// cuMemsetD32Async.
pub(crate) fn fill32_async(
    to: DevicePtr,
    value: u32,
    count: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C2; the driver looks the address up.
    done(unsafe { sys::cuMemsetD32Async(to, value, count, stream_of(stream)) })
}
