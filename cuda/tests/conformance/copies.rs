//! Copies and fills: when memory is read, and what the caller waits for.

use larder_cuda_abi::{Code, DevicePtr, StreamHandle};

use crate::{
    api::{Answer, context, copy, memory, stream},
    gpu::portable,
    hold::Hold,
    own::{Device, Host, Stream},
    refused::refusals,
};

const BYTES: usize = 4096;
/// An address below everything that a process maps.
const UNKNOWN: DevicePtr = 0x1000;

refusals! {
    /// Rule: an address that the driver does not know is not device memory: the call returns CUDA_ERROR_INVALID_VALUE
    /// (source: CUDA Driver API, Memory Management, cuMemcpyHtoD, list of errors).
    fn a_copy_to_an_unknown_address_is_refused() {
        copy::to_device(UNKNOWN, &[1; 64]),
        copy::to_host(&mut [0; 64], UNKNOWN),
        copy::fill8(UNKNOWN, 1, 64)
    } => INVALID_VALUE;

    /// Rule: a copy must lie within its allocation; otherwise the call returns CUDA_ERROR_INVALID_VALUE (source: CUDA
    /// Driver API, Memory Management, cuMemcpyHtoD, list of errors).
    ///
    /// Uncertain: the documentation does not promise that a driver knows the exact end, so this copy goes far past it.
    fn a_copy_past_the_end_is_refused(device = Device::new(4 << 20)) {
        copy::to_device(device.at, &[1; 64 << 20]),
        copy::fill8(device.at, 1, 64 << 20)
    } => INVALID_VALUE;

    /// Rule: the address of a 16-bit fill must be aligned to 2 bytes, and that of a 32-bit fill to 4 bytes (source:
    /// CUDA Driver API, Memory Management, cuMemsetD16, cuMemsetD32; of the listed errors, CUDA_ERROR_INVALID_VALUE
    /// fits best).
    fn fills_want_aligned_addresses(stream = Stream::blocking(), device = Device::filled(64, 0)) {
        copy::fill16_async(device.plus(1), 1, 1, stream.0),
        copy::fill32_async(device.plus(2), 1, 1, stream.0),
        copy::fill32_async(device.plus(1), 1, 1, stream.0)
    } => INVALID_VALUE, leaving device.read(), [0; 64];
}

/// Rule: cuMemcpyHtoD and cuMemcpyDtoH copy bytes to a device and back (source: CUDA Driver API, Memory Management).
#[test]
fn bytes_come_back_as_they_went() {
    let _gpu = portable();
    let memory = Device::new(1 << 20);
    let sent: Vec<u8> = (0..1_u32 << 20).map(|at| (at % 251) as u8).collect();
    copy::to_device(memory.at, &sent).expect("a copy");
    assert!(memory.read() == sent);
}

/// Rule: copies can read and write a part of an allocation, at an address inside it (source: CUDA Driver API, Memory
/// Management, cuMemcpyDtoD: device pointers may be offset).
#[test]
fn parts_are_copied() {
    let _gpu = portable();
    let (from, to) = (Device::filled(BYTES, 3), Device::filled(BYTES, 0));
    copy::between(to.plus(7), from.plus(9), 100).expect("a copy");
    let read = to.read();
    assert_eq!(read[..7], [0; 7]);
    assert_eq!(read[7..107], [3; 100]);
    assert_eq!(read[107..], [0; BYTES - 107]);
}

/// Rule: cuMemcpyAsync infers the kind of each side's memory from the addresses (source: CUDA Driver API, Memory
/// Management, cuMemcpyAsync).
#[test]
fn a_copy_finds_out_where_its_sides_are() {
    let _gpu = portable();
    let (pinned, pageable) = (Host::pinned(BYTES, 1), Host::pageable(BYTES, 2));
    let (device, other) = (Device::filled(BYTES, 0), Device::filled(BYTES, 9));
    let stream = Stream::blocking();
    let copy = |to, from, what| {
        copy::any_async(to, from, BYTES, stream.0).expect(what);
        stream.finish();
    };
    copy(device.at, pinned.at(), "pinned to device");
    assert_eq!(device.read(), [1; BYTES]);
    copy(device.at, pageable.at(), "pageable to device");
    assert_eq!(device.read(), [2; BYTES]);
    copy(other.at, device.at, "device to device");
    assert_eq!(other.read(), [2; BYTES]);
    copy(pinned.at(), other.at, "device to pinned");
    assert_eq!(pinned.read(), [2; BYTES]);
    pinned.fill(5);
    copy(pageable.at(), pinned.at(), "pinned to pageable");
    assert_eq!(pageable.read(), [5; BYTES]);
}

/// Rule: copies whose kinds of memory are inferred keep the order of their stream (source: CUDA Driver API, Memory
/// Management, cuMemcpyAsync).
#[test]
fn a_copy_in_a_stream_finds_out_where_its_sides_are() {
    let gpu = portable();
    gpu.defer(5);
    let (stream, device) = (Stream::blocking(), Device::filled(BYTES, 0));
    let (from, to) = (Host::pinned(BYTES, 1), Host::pinned(BYTES, 2));
    copy::any_async(device.at, from.at(), BYTES, stream.0).expect("a copy");
    copy::any_async(to.at(), device.at, BYTES, stream.0).expect("a copy");
    stream.finish();
    assert_eq!(to.read(), [1; BYTES]);
}

/// Rule: cuMemcpyPeerAsync copies between the memory of two contexts, which may be the same context (source: CUDA
/// Driver API, Memory Management, cuMemcpyPeerAsync).
#[test]
fn a_peer_copy_works_within_a_context() {
    let gpu = portable();
    let ours = gpu.context();
    let (from, to) = (Device::filled(BYTES, 3), Device::filled(BYTES, 0));
    let stream = Stream::blocking();
    copy::peer_async((to.at, ours), (from.at, ours), BYTES, stream.0).expect("a copy");
    stream.finish();
    assert_eq!(to.read(), [3; BYTES]);
}

/// Rule: a copy from pageable memory in a stream has staged its source when it returns, even if the source is larger
/// than a staging buffer; the source may change at once (source: CUDA Driver API, API synchronization behavior, Memcpy;
/// cuMemcpyAsync from pageable host memory).
#[test]
fn pageable_memory_may_change_once_its_copy_was_queued() {
    let gpu = portable();
    gpu.defer(6);
    for bytes in [BYTES, 32 << 20] {
        let (stream, device) = (Stream::blocking(), Device::new(bytes));
        let from = Host::pageable(bytes, 1);
        copy::to_device_async(device.at, from.address, bytes, stream.0).expect("a copy");
        from.fill(2);
        stream.finish();
        assert!(device.read().iter().all(|byte| *byte == 1), "{bytes}");
    }
}

/// Rule: a copy to pageable memory in a stream returns when the copy has ended (source: CUDA Driver API, API
/// synchronization behavior, Memcpy, asynchronous: "from device memory to pageable host memory, the function will
/// return only once the copy has completed").
#[test]
fn a_copy_to_pageable_memory_is_done_on_return() {
    let gpu = portable();
    gpu.defer(8);
    let (stream, device) = (Stream::blocking(), Device::filled(BYTES, 0));
    let to = Host::pageable(BYTES, 9);
    copy::fill8_async(device.at, 1, BYTES, stream.0).expect("a fill");
    copy::to_host_async(to.address, device.at, BYTES, stream.0).expect("a copy");
    assert_eq!(to.read(), [1; BYTES]);
}

/// Rule: a copy from pinned or registered memory in a stream reads its source when it runs, not when it is queued
/// (source: CUDA Driver API, API synchronization behavior, Memcpy, asynchronous: "fully asynchronous"; Memory
/// Management, cuMemHostRegister: "automatically accelerate calls", as for memory of cuMemHostAlloc).
#[test]
fn pinned_memory_is_read_when_the_copy_runs() {
    let gpu = portable();
    gpu.expect_findings();
    let (pinned, registered) = (Host::pinned(BYTES, 1), Host::pageable(BYTES, 1));
    memory::register(registered.address, BYTES, 0).expect("a registration");
    for from in [&pinned, &registered] {
        let (stream, device) = (Stream::blocking(), Device::filled(BYTES, 0));
        let hold = Hold::of(stream.0);
        copy::to_device_async(device.at, from.address, BYTES, stream.0).expect("a copy");
        from.fill(2);
        hold.end(stream.0);
        assert_eq!(device.read(), [2; BYTES]);
    }
    memory::unregister(registered.address).expect("a registration");
}

/// Rule: a copy to pinned memory in a stream returns before the copy has run (source: CUDA Driver API, API
/// synchronization behavior, Memcpy, asynchronous).
#[test]
fn a_copy_to_pinned_memory_returns_before_it_ran() {
    let gpu = portable();
    gpu.expect_findings();
    let (stream, device) = (Stream::blocking(), Device::filled(BYTES, 1));
    let to = Host::pinned(BYTES, 9);
    let hold = Hold::of(stream.0);
    copy::to_host_async(to.address, device.at, BYTES, stream.0).expect("a copy");
    assert_eq!(stream::query(stream.0), Err(Code::NOT_READY));
    assert_eq!(to.read(), [9; BYTES]);
    hold.end(stream.0);
    assert_eq!(to.read(), [1; BYTES]);
}

/// Rule: the source of a synchronous copy from pageable memory may change after the call (source: CUDA Driver API, API
/// synchronization behavior, Memcpy, synchronous).
#[test]
fn a_synchronous_copy_has_read_its_source() {
    let gpu = portable();
    gpu.defer(9);
    let device = Device::filled(BYTES, 0);
    let mut from = vec![1; BYTES];
    copy::to_device(device.at, &from).expect("a copy");
    from.fill(2);
    context::synchronize().expect("work that ends well");
    assert_eq!(device.read(), [1; BYTES]);
}

/// Rule: a synchronous copy waits for earlier work of blocking streams, because it is work of the legacy default stream
/// (source: CUDA Driver API, Stream synchronization behavior).
#[test]
fn a_synchronous_copy_sees_work_of_blocking_streams() {
    let gpu = portable();
    gpu.defer(10);
    let (stream, device) = (Stream::blocking(), Device::filled(BYTES, 0));
    copy::fill8_async(device.at, 1, BYTES, stream.0).expect("a fill");
    assert_eq!(device.read(), [1; BYTES]);
}

/// Rule: a "synchronous" copy between device memories or fill of device memory does not wait on the host (source: CUDA
/// Driver API, API synchronization behavior, Memcpy, synchronous: "from device memory to device memory, no host-side
/// synchronization is performed"; Memset).
#[test]
fn work_on_device_memory_alone_does_not_wait() {
    let _gpu = portable();
    let works: [fn(&Device, &Device) -> Answer; 2] = [
        |to, from| copy::between(to.at, from.at, BYTES),
        |to, _| copy::fill8(to.at, 1, BYTES),
    ];
    for work in works {
        let stream = Stream::blocking();
        let (from, to) = (Device::filled(BYTES, 1), Device::filled(BYTES, 0));
        let hold = Hold::of(stream.0);
        work(&to, &from).expect("work");
        assert_eq!(stream::query(StreamHandle::NULL), Err(Code::NOT_READY));
        hold.end(StreamHandle::NULL);
        assert_eq!(to.read(), [1; BYTES]);
    }
}

/// Rule: a copy of no bytes succeeds and changes nothing (source: CUDA Driver API, Memory Management: no error is
/// documented for a count of 0).
#[test]
fn a_copy_of_nothing_succeeds() {
    let _gpu = portable();
    let (device, pinned) = (Device::filled(256, 1), Host::pinned(256, 2));
    let stream = Stream::blocking();
    copy::to_device(device.at, &[]).expect("a copy");
    copy::to_host(&mut [], device.at).expect("a copy");
    copy::between(device.at, device.plus(128), 0).expect("a copy");
    copy::to_device_async(device.at, pinned.address, 0, stream.0).expect("a copy");
    copy::fill8_async(device.at, 9, 0, stream.0).expect("a fill");
    stream.finish();
    assert_eq!(device.read(), [1; 256]);
}

/// Rule: fills write `count` elements of 8, 16 or 32 bits, in a stream too (source: CUDA Driver API, Memory Management,
/// cuMemsetD8, cuMemsetD16, cuMemsetD32, cuMemsetD8Async and similar functions).
#[test]
fn fills_count_elements() {
    let gpu = portable();
    gpu.defer(11);
    let made = Stream::blocking();
    for stream in [StreamHandle::NULL, made.0] {
        let device = Device::filled(24, 0);
        copy::fill8_async(device.at, 0x11, 3, stream).expect("a fill");
        copy::fill16_async(device.plus(4), 0x2222, 3, stream).expect("a fill");
        copy::fill32_async(device.plus(12), 0x3333_3333, 2, stream).expect("a fill");
        copy::fill8(device.plus(22), 0x11, 1).expect("a fill");
        made.finish();
        let small = [
            0x11, 0x11, 0x11, 0, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0, 0,
        ];
        let large = [
            0x33, 0x33, 0x33, 0x33, 0x33, 0x33, 0x33, 0x33, 0, 0, 0x11, 0,
        ];
        assert_eq!(device.read(), [small, large].concat());
    }
}
