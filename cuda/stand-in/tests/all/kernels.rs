//! Modules and kernels.

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::MutexGuard;

use larder_cuda_abi::Code;
use larder_cuda_abi::stand_in::KernelCall;

use crate::common::{alive, alone, findings, ok};
use crate::driver::*;

const PTX: &std::ffi::CStr = c".version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .entry fill(.param .u64 fill_0, .param .u8 fill_1, .param .u32 fill_2) { ret; }
.visible .entry nobody() { ret; }
";

/// Fills `count` words with a byte's value.
unsafe extern "C" fn fill(call: *const KernelCall) {
    let call = unsafe { &*call };
    assert_eq!(call.parameter_count, 3);
    let parameter = |index: usize| unsafe { *call.parameters.add(index) };
    let at: u64 = unsafe { *parameter(0).cast() };
    let value: u8 = unsafe { *parameter(1).cast() };
    let count: u32 = unsafe { *parameter(2).cast() };
    let host = unsafe { (call.access)(call, at, u64::from(count) * 4, 1) };
    if host.is_null() {
        return;
    }
    let words = unsafe { std::slice::from_raw_parts_mut(host.cast::<u32>(), count as usize) };
    words.fill(u32::from(value));
}

fn begin() -> (MutexGuard<'static, ()>, usize) {
    let guard = alone();
    let mut context = 0;
    larder_stand_in_reset(2, 1 << 30);
    ok(cuInit(0));
    ok(cuCtxSetCurrent(0));
    ok(cuCtxCreate_v2(&mut context, 0, 0));
    ok(larder_stand_in_kernel(c"fill".as_ptr(), Some(fill)));
    (guard, context)
}

fn load() -> usize {
    let mut module = 0;
    let code = cuModuleLoadData(&mut module, PTX.as_ptr() as usize);
    assert_eq!(code, Code::SUCCESS);
    module
}

fn function(module: usize, name: &str) -> Result<usize, Code> {
    let name = CString::new(name).unwrap();
    let mut function = 0;
    cuModuleGetFunction(&mut function, module, name.as_ptr()).check()?;
    Ok(function)
}

fn alloc(bytes: usize) -> u64 {
    let mut at = 0;
    ok(cuMemAlloc_v2(&mut at, bytes));
    at
}

fn launch(function: usize, block: u32, shared: u32, stream: usize, at: u64, value: u8) -> Code {
    let count = 16_u32;
    let mut parameters = [
        &raw const at as usize,
        &raw const value as usize,
        &raw const count as usize,
    ];
    let parameters = parameters.as_mut_ptr();
    let none = null_mut();
    cuLaunchKernel(
        function, 1, 1, 1, block, 1, 1, shared, stream, parameters, none,
    )
}

fn read(at: u64) -> [u32; 16] {
    let mut words = [0; 16];
    let code = cuMemcpyDtoH_v2(words.as_mut_ptr() as usize, at, 64);
    assert_eq!(code, Code::SUCCESS);
    words
}

#[test]
fn a_launch_runs_the_registered_body() {
    let _guard = begin();
    let fill = function(load(), "fill").unwrap();
    let at = alloc(64);
    for deferred in [0, 1] {
        larder_stand_in_schedule(deferred, 3);
        let value = 5 + deferred as u8;
        ok(launch(fill, 32, 0, 0, at, value));
        assert_eq!(read(at), [u32::from(value); 16]);
    }
    assert_eq!(findings(), "");
}

#[test]
fn the_hosts_address_of_write_combined_memory_is_not_for_kernels() {
    let _guard = begin();
    let fill = function(load(), "fill").unwrap();
    let combined = larder_cuda_abi::constants::HOST_ALLOC_WRITECOMBINED;
    let (mut host, mut device) = (0, 0);
    ok(cuMemHostAlloc(&mut host, 64, combined));
    ok(cuMemHostGetDevicePointer_v2(&mut device, host, 0));
    ok(launch(fill, 32, 0, 0, device, 5));
    assert_eq!(read(device), [5; 16]);
    assert_eq!(findings(), "");
    let _ = launch(fill, 32, 0, 0, host as u64, 6);
    assert!(findings().contains("memory that the device has no access to"));
}

#[test]
fn parameters_may_come_in_one_buffer() {
    let _guard = begin();
    let fill = function(load(), "fill").unwrap();
    let at = alloc(64);
    let mut buffer = [0_u8; 16];
    buffer[..8].copy_from_slice(&at.to_ne_bytes());
    buffer[8] = 9;
    buffer[12..].copy_from_slice(&16_u32.to_ne_bytes());
    for (bytes, expected) in [(16_usize, Code::SUCCESS), (15, Code::INVALID_VALUE)] {
        let (at, length) = (buffer.as_ptr() as usize, &raw const bytes as usize);
        let mut extra = [1, at, 2, length, 0];
        let extra = extra.as_mut_ptr();
        let code = cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, 0, null_mut(), extra);
        assert_eq!(code, expected);
    }
    assert_eq!(read(at), [9; 16]);
}

#[test]
fn launches_that_no_device_can_run_are_refused() {
    let (_guard, first) = begin();
    let fill = function(load(), "fill").unwrap();
    let at = alloc(64);
    assert_eq!(launch(fill, 0, 0, 0, at, 1), Code::INVALID_VALUE);
    ok(launch(fill, 1024, 0, 0, at, 1));
    assert_eq!(launch(fill, 1025, 0, 0, at, 1), Code::INVALID_VALUE);
    assert_eq!(launch(fill, 1, 49_153, 0, at, 1), Code::INVALID_VALUE);
    assert_eq!(cuFuncSetAttribute(fill, 8, 100_000), Code::SUCCESS);
    ok(launch(fill, 1, 49_153, 0, at, 1));
    let code = cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, 0, null_mut(), null_mut());
    assert_eq!(code, Code::INVALID_VALUE);
    let (mut other, mut stream) = (0, 0);
    ok(cuCtxCreate_v2(&mut other, 0, 0));
    ok(cuStreamCreate(&mut stream, 0));
    ok(cuCtxSetCurrent(first));
    assert_eq!(launch(fill, 1, 0, stream, at, 1), Code::INVALID_HANDLE);
    assert_eq!(launch(stream, 1, 0, 0, at, 1), Code::INVALID_HANDLE);
}

#[test]
fn a_kernel_without_a_body_says_which_name_is_missing() {
    let _guard = begin();
    let nobody = function(load(), "nobody").unwrap();
    let code = cuLaunchKernel(nobody, 1, 1, 1, 1, 1, 1, 0, 0, null_mut(), null_mut());
    assert_eq!(code, Code::NOT_SUPPORTED);
    assert!(findings().contains("kernel nobody has no body"));
    assert_eq!(function(load(), "missing"), Err(Code::NOT_FOUND));
}

#[test]
fn an_access_beyond_the_memory_fails_the_context() {
    let _guard = begin();
    let fill = function(load(), "fill").unwrap();
    let at = alloc(60);
    ok(launch(fill, 1, 0, 0, at, 1));
    assert_eq!(cuCtxSynchronize(), Code::ILLEGAL_ADDRESS);
    assert_eq!(launch(fill, 1, 0, 0, at, 1), Code::ILLEGAL_ADDRESS);
    assert!(findings().contains("kernel fill"));
}

#[test]
fn a_kernel_does_not_use_memory_of_another_device() {
    let (_guard, first) = begin();
    let fill = function(load(), "fill").unwrap();
    let at = {
        ok(cuCtxCreate_v2(&mut 0, 0, 1));
        let at = alloc(64);
        ok(cuCtxSetCurrent(first));
        at
    };
    ok(launch(fill, 1, 0, 0, at, 1));
    assert_eq!(cuCtxSynchronize(), Code::ILLEGAL_ADDRESS);
}

#[test]
fn unordered_kernels_race() {
    let _guard = begin();
    let fill = function(load(), "fill").unwrap();
    let at = alloc(64);
    let mut streams = [0; 2];
    for stream in &mut streams {
        ok(cuStreamCreate(stream, 1));
        ok(launch(fill, 1, 0, *stream, at, 1));
    }
    for stream in streams {
        ok(cuStreamSynchronize(stream));
    }
    assert!(findings().starts_with("race: kernel fill"));
}

#[test]
fn variables_of_a_module_are_device_memory_until_it_is_unloaded() {
    let _guard = begin();
    let module = load();
    assert!(alive().contains("module 1 0\n"));
    let (mut at, mut bytes, mut value) = (0, 0, 0_u32);
    let code = cuModuleGetGlobal_v2(&mut at, &mut bytes, module, c"counter".as_ptr());
    assert_eq!((code, bytes), (Code::SUCCESS, 4));
    ok(cuMemcpyDtoH_v2(&raw mut value as usize, at, 4));
    assert_eq!(value, 7);
    ok(cuMemcpyHtoD_v2(at, &raw const value as usize, 4));
    let code = cuModuleGetGlobal_v2(&mut at, null_mut(), module, c"missing".as_ptr());
    assert_eq!(code, Code::NOT_FOUND);
    ok(cuModuleUnload(module));
    assert_eq!(
        cuMemcpyHtoD_v2(at, &raw const value as usize, 4),
        Code::INVALID_VALUE
    );
    assert_eq!(cuModuleUnload(module), Code::INVALID_HANDLE);
    assert!(!alive().contains("module"));
}

#[test]
fn images_that_are_no_ptx_are_refused() {
    let _guard = begin();
    let load = |image: &[u8]| {
        let mut module = 0;
        cuModuleLoadData(&mut module, image.as_ptr() as usize)
    };
    assert_eq!(load(b"\x7fELF\0"), Code::NO_BINARY_FOR_GPU);
    assert_eq!(load(b"nothing\0"), Code::INVALID_IMAGE);
    assert_eq!(load(b".version 8.0 .entry x(\0"), Code::INVALID_PTX);
    let code = cuModuleLoadData(&mut 0, 0);
    assert_eq!(code, Code::INVALID_VALUE);
}

#[test]
fn a_block_size_is_found() {
    let _guard = begin();
    let fill = function(load(), "fill").unwrap();
    let (mut blocks, mut threads) = (0, 0);
    let code = cuOccupancyMaxPotentialBlockSize(&mut blocks, &mut threads, fill, None, 0, 0);
    assert_eq!((code, blocks, threads), (Code::SUCCESS, 16, 1024));
}

#[test]
fn kernels_take_the_time_that_was_said_and_run_when_it_has_passed() {
    let _guard = begin();
    let fill = function(load(), "fill").unwrap();
    let places = [alloc(64), alloc(64)];
    let (mut streams, mut events) = ([0; 2], [0; 2]);
    for event in &mut events {
        ok(cuEventCreate(event, 0));
    }
    for stream in &mut streams {
        ok(cuStreamCreate(stream, 1));
    }
    let now = || larder_stand_in_advance(0);
    let busy = || larder_stand_in_busy(0);
    let done = || cuEventQuery(events[1]);
    ok(larder_stand_in_kernel_time(c"fill".as_ptr(), 2_000_000));
    ok(cuEventRecord(events[0], streams[0]));
    for value in 1..=3 {
        ok(launch(fill, 1, 0, streams[0], places[0], value));
    }
    ok(cuEventRecord(events[1], streams[0]));
    // Beside them in another stream, half of the time later.
    assert_eq!(larder_stand_in_advance(1_000_000), 1_000_000);
    ok(launch(fill, 1, 0, streams[1], places[1], 4));
    assert_eq!(
        (now(), busy(), done()),
        (1_000_000, 1_000_000, Code::NOT_READY)
    );
    assert_eq!(larder_stand_in_advance(4_999_999), 5_999_999);
    assert_eq!((busy(), done()), (5_999_999, Code::NOT_READY));
    // A wait lets the rest pass, and no more.
    ok(cuEventSynchronize(events[1]));
    assert_eq!(
        (now(), busy(), done()),
        (6_000_000, 6_000_000, Code::SUCCESS)
    );
    let mut ms = 0.0;
    ok(cuEventElapsedTime(&mut ms, events[0], events[1]));
    assert_eq!(ms, 6.0);
    // Idle.
    assert_eq!(larder_stand_in_advance(500_000), 6_500_000);
    ok(launch(fill, 1, 0, streams[1], places[1], 5));
    ok(cuCtxSynchronize());
    assert_eq!((now(), busy()), (8_500_000, 8_000_000));
    assert_eq!((read(places[0]), read(places[1])), ([3; 16], [5; 16]));
    assert_eq!(findings(), "");
}
