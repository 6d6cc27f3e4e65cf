//! Two devices.

use larder_cuda_abi::{ContextHandle, StreamHandle};

use crate::{
    api::{basic, context, copy, memory},
    gpu::{self, Gpu, portable},
    own::{Device, Stream, read},
    refused::refusals,
};

/// The primary context of a second device, released on drop.
#[derive(Debug)]
struct Second {
    context: ContextHandle,
    device: i32,
}

impl Second {
    fn of(gpu: &Gpu) -> Option<Self> {
        let device = gpu.second_device()?;
        let context = context::retain_primary(device).expect("a context");
        Some(Self { context, device })
    }

    /// Allocates and fills memory of the second device, with its context current.
    fn filled(&self, bytes: usize, value: u8) -> Device {
        context::push(self.context).expect("a context");
        let memory = Device::filled(bytes, value);
        context::pop().expect("a context");
        memory
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = context::release_primary(self.device);
    }
}

refusals! {
    /// Rule: whether a device can access another is queried by device number; for a device that does not exist the call
    /// returns CUDA_ERROR_INVALID_DEVICE (source: CUDA Driver API, Peer Context Memory Access, cuDeviceCanAccessPeer).
    fn peers_are_devices_that_are_there(absent = gpu::absent_device()) {
        basic::can_access_peer(0, absent), basic::can_access_peer(absent, 0)
    } => INVALID_DEVICE;
}

/// Rule: cuMemcpyPeerAsync copies between devices even without peer access (source: CUDA Driver API, Memory Management,
/// cuMemcpyPeerAsync).
#[test]
fn devices_copy_to_each_other() {
    let gpu = portable();
    let Some(second) = Second::of(&gpu) else {
        return;
    };
    let (here, there) = (Device::filled(4096, 1), second.filled(4096, 2));
    let stream = Stream::blocking();
    let (to, from) = ((there.at, second.context), (here.at, gpu.context()));
    copy::peer_async(to, from, 2048, stream.0).expect("a copy");
    let (to, from) = ((here.at, gpu.context()), (there.plus(1024), second.context));
    copy::peer_async(to, from, 2048, stream.0).expect("a copy");
    stream.finish();
    assert_eq!(
        here.read(),
        [vec![1; 1024], vec![2; 1024], vec![1; 2048]].concat()
    );
}

/// Rule: with unified addressing, cuMemcpyAsync finds the devices of both addresses (source: CUDA Driver API, Unified
/// Addressing, Overview).
#[test]
fn a_copy_finds_the_devices_of_its_sides() {
    let gpu = portable();
    let Some(second) = Second::of(&gpu) else {
        return;
    };
    let (here, there) = (Device::filled(4096, 1), second.filled(4096, 2));
    copy::any_async(here.at, there.at, 1024, StreamHandle::NULL).expect("a copy");
    context::synchronize().expect("work that ends well");
    assert_eq!(read(here.at, 2048), [[2; 1024], [1; 1024]].concat());
}

/// Rule: memory is allocated on the device of the current context (source: CUDA Driver API, Memory Management,
/// cuMemAlloc, cuMemGetInfo).
#[test]
fn each_device_has_memory_of_its_own() {
    const BYTES: usize = 256 << 20;
    let gpu = portable();
    let Some(second) = Second::of(&gpu) else {
        return;
    };
    let (here, _) = memory::info().expect("sizes");
    context::push(second.context).expect("a context");
    let (there, _) = memory::info().expect("sizes");
    let memory = Device::new(BYTES);
    let (there_after, _) = memory::info().expect("sizes");
    context::pop().expect("a context");
    let (here_after, _) = memory::info().expect("sizes");
    drop(memory);
    assert!(there_after + BYTES <= there, "{there} then {there_after}");
    assert!(here_after + BYTES / 2 > here, "{here} then {here_after}");
}
