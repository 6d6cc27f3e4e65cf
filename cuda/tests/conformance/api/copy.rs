//! Copies and fills. Asynchronous calls take host memory by address.

use larder_cuda_abi::{ContextHandle, DevicePtr, StreamHandle};

use super::host;

type Of = (DevicePtr, ContextHandle);

bindings! {
    fn to_device(to: DevicePtr, from: &[u8]) { cuMemcpyHtoD_v2(to, from.as_ptr().cast(), from.len()) }
    fn to_host(to: &mut [u8], from: DevicePtr) {
        cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len())
    }
    fn between(to: DevicePtr, from: DevicePtr, bytes: usize) { cuMemcpyDtoD_v2(to, from, bytes) }
    fn peer_async(to: Of, from: Of, bytes: usize, stream: StreamHandle) {
        cuMemcpyPeerAsync(to.0, to.1, from.0, from.1, bytes, stream)
    }
    fn to_device_async(to: DevicePtr, from: usize, bytes: usize, stream: StreamHandle) {
        cuMemcpyHtoDAsync_v2(to, host(from), bytes, stream)
    }
    fn to_host_async(to: usize, from: DevicePtr, bytes: usize, stream: StreamHandle) {
        cuMemcpyDtoHAsync_v2(host(to), from, bytes, stream)
    }
    fn between_async(to: DevicePtr, from: DevicePtr, bytes: usize, stream: StreamHandle) {
        cuMemcpyDtoDAsync_v2(to, from, bytes, stream)
    }
    fn any_async(to: DevicePtr, from: DevicePtr, bytes: usize, stream: StreamHandle) {
        cuMemcpyAsync(to, from, bytes, stream)
    }
    fn fill8(to: DevicePtr, value: u8, count: usize) { cuMemsetD8_v2(to, value, count) }
    fn fill8_async(to: DevicePtr, value: u8, count: usize, stream: StreamHandle) {
        cuMemsetD8Async(to, value, count, stream)
    }
    fn fill16_async(to: DevicePtr, value: u16, count: usize, stream: StreamHandle) {
        cuMemsetD16Async(to, value, count, stream)
    }
    fn fill32_async(to: DevicePtr, value: u32, count: usize, stream: StreamHandle) {
        cuMemsetD32Async(to, value, count, stream)
    }
}
