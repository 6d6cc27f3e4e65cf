//! Copies and fills.

use larder_cuda_abi::{ContextHandle, DevicePtr, StreamHandle};

use super::{Answer, host};

/// cuMemcpyHtoD_v2.
pub(crate) fn to_device(to: DevicePtr, from: &[u8]) -> Answer {
    // SAFETY: the source is read before the call returns.
    unsafe { function!(cuMemcpyHtoD_v2)(to, from.as_ptr().cast(), from.len()) }.check()
}

/// cuMemcpyDtoH_v2.
pub(crate) fn to_host(to: &mut [u8], from: DevicePtr) -> Answer {
    // SAFETY: the target is written before the call returns.
    unsafe { function!(cuMemcpyDtoH_v2)(to.as_mut_ptr().cast(), from, to.len()) }.check()
}

/// cuMemcpyDtoD_v2.
pub(crate) fn between(to: DevicePtr, from: DevicePtr, bytes: usize) -> Answer {
    // SAFETY: the driver looks the addresses up.
    unsafe { function!(cuMemcpyDtoD_v2)(to, from, bytes) }.check()
}

/// cuMemcpyPeerAsync.
pub(crate) fn peer_async(
    to: (DevicePtr, ContextHandle),
    from: (DevicePtr, ContextHandle),
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C2; the driver looks the addresses up.
    unsafe { function!(cuMemcpyPeerAsync)(to.0, to.1, from.0, from.1, bytes, stream) }.check()
}

/// cuMemcpyHtoDAsync_v2, from a host address.
pub(crate) fn to_device_async(
    to: DevicePtr,
    from: usize,
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C1, C2: the host memory stays until the copy is done, the handles are the driver's.
    unsafe { function!(cuMemcpyHtoDAsync_v2)(to, host(from), bytes, stream) }.check()
}

/// cuMemcpyDtoHAsync_v2, to a host address.
pub(crate) fn to_host_async(
    to: usize,
    from: DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C1, C2: the host memory stays until the copy is done, the handles are the driver's.
    unsafe { function!(cuMemcpyDtoHAsync_v2)(host(to), from, bytes, stream) }.check()
}

/// cuMemcpyDtoDAsync_v2.
pub(crate) fn between_async(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C2; the driver looks the addresses up.
    unsafe { function!(cuMemcpyDtoDAsync_v2)(to, from, bytes, stream) }.check()
}

/// cuMemcpyAsync.
pub(crate) fn any_async(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C1, C2: the host memory stays until the copy is done, the handles are the driver's.
    unsafe { function!(cuMemcpyAsync)(to, from, bytes, stream) }.check()
}

/// cuMemsetD8_v2.
pub(crate) fn fill8(to: DevicePtr, value: u8, count: usize) -> Answer {
    // SAFETY: the driver looks the address up.
    unsafe { function!(cuMemsetD8_v2)(to, value, count) }.check()
}

/// cuMemsetD8Async.
pub(crate) fn fill8_async(to: DevicePtr, value: u8, count: usize, stream: StreamHandle) -> Answer {
    // SAFETY: C2; the driver looks the address up.
    unsafe { function!(cuMemsetD8Async)(to, value, count, stream) }.check()
}

/// cuMemsetD16Async.
pub(crate) fn fill16_async(
    to: DevicePtr,
    value: u16,
    count: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C2; the driver looks the address up.
    unsafe { function!(cuMemsetD16Async)(to, value, count, stream) }.check()
}

/// cuMemsetD32Async.
pub(crate) fn fill32_async(
    to: DevicePtr,
    value: u32,
    count: usize,
    stream: StreamHandle,
) -> Answer {
    // SAFETY: C2; the driver looks the address up.
    unsafe { function!(cuMemsetD32Async)(to, value, count, stream) }.check()
}
