//! Defects that were found, each with what it needed to show.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use larder_cuda_abi::Code;
use larder_cuda_abi::constants as c;

use super::api::*;

/// Set by a test to let [`gate`] return.
static OPEN: AtomicBool = AtomicBool::new(false);
static PASSED: AtomicU32 = AtomicU32::new(0);

/// A host function that returns when `OPEN` is set.
extern "C" fn gate(_: *mut c_void) {
    while !OPEN.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
    PASSED.fetch_add(1, Ordering::SeqCst);
}

/// A host function that returns 40 ms after `OPEN` is set.
extern "C" fn slow_gate(data: *mut c_void) {
    gate(data);
    thread::sleep(Duration::from_millis(40));
}

fn close() {
    OPEN.store(false, Ordering::SeqCst);
    PASSED.store(0, Ordering::SeqCst);
}

fn open() {
    OPEN.store(true, Ordering::SeqCst);
}

#[test]
fn a_stream_that_is_gone_counts_for_who_waits_for_its_context() {
    let _gpu = gpu();
    let at = memory(64);
    let (first, second) = (stream(), stream());
    ok(cuMemsetD8Async(at, 1, 64, first));
    ok(cuStreamDestroy_v2(first));
    ok(cuCtxSynchronize());
    ok(cuMemsetD8Async(at, 2, 64, second));
    assert_eq!(findings(), "");
}

#[test]
fn a_stream_that_is_gone_counts_for_the_legacy_stream() {
    let _gpu = gpu();
    let at = memory(64);
    let blocking = made(|stream| cuStreamCreate(stream, 0));
    ok(cuMemsetD8Async(at, 1, 64, blocking));
    ok(cuStreamDestroy_v2(blocking));
    ok(cuMemsetD8Async(at, 2, 64, 0));
    assert_eq!(findings(), "");
    // One that does not block does not count.
    let other = stream();
    ok(cuStreamSynchronize(0));
    ok(cuMemsetD8Async(at, 1, 64, other));
    ok(cuStreamDestroy_v2(other));
    ok(cuMemsetD8Async(at, 2, 64, 0));
    assert!(findings().contains("race"));
}

#[test]
fn what_the_host_knows_is_kept_for_work_queued_before() {
    let _gpu = gpu();
    let (at, blocked, writer) = (memory(64), stream(), stream());
    close();
    ok(cuLaunchHostFunc(blocked, Some(gate), 0));
    ok(cuMemsetD8Async(at, 1, 64, blocked));
    ok(cuMemsetD8Async(at, 2, 64, writer));
    ok(cuStreamSynchronize(writer));
    // So many that clocks are gone through.
    for _ in 0..1000 {
        ok(cuStreamDestroy_v2(stream()));
    }
    open();
    ok(cuCtxSynchronize());
    assert!(findings().contains("race"));
}

#[test]
fn a_wait_that_is_refused_orders_nothing() {
    let _gpu = gpu();
    let at = memory(64);
    let (writer, event) = (stream(), event());
    let capturing = made(|stream| cuStreamCreate(stream, 0));
    ok(cuMemsetD8Async(at, 1, 64, writer));
    ok(cuEventRecord(event, writer));
    ok(cuStreamBeginCapture_v2(capturing, c::CAPTURE_MODE_RELAXED));
    assert_ne!(cuStreamWaitEvent(0, event, 0), Code::SUCCESS);
    assert_ne!(cuStreamEndCapture(capturing, &mut 0), Code::SUCCESS);
    ok(cuMemsetD8Async(at, 2, 64, 0));
    assert!(findings().contains("race"));
}

#[test]
fn a_record_that_is_refused_leaves_the_one_before() {
    let _gpu = gpu();
    let (start, end) = (event(), event());
    let capturing = made(|stream| cuStreamCreate(stream, 0));
    ok(cuStreamBeginCapture_v2(capturing, c::CAPTURE_MODE_RELAXED));
    close();
    let recorded = stream();
    ok(cuLaunchHostFunc(recorded, Some(gate), 0));
    ok(cuEventRecord(start, recorded));
    ok(cuEventRecord(end, recorded));
    assert_ne!(cuEventRecord(end, 0), Code::SUCCESS);
    assert_ne!(cuStreamEndCapture(capturing, &mut 0), Code::SUCCESS);
    open();
    ok(cuCtxSynchronize());
    ok(cuEventElapsedTime(&mut 0.0, start, end));
}

#[test]
fn work_submitted_while_a_context_ends_is_done_too() {
    let gpu = gpu();
    for seed in 0..6 {
        larder_stand_in_schedule(1, seed);
        let context = made(|context| cuCtxCreate_v2(context, 0, 0));
        let (blocked, other) = (stream(), stream());
        close();
        ok(cuLaunchHostFunc(blocked, Some(gate), 0));
        let ending = thread::spawn(move || cuCtxDestroy_v2(context));
        thread::sleep(Duration::from_millis(100));
        // The second is not called before the first is over, and that is after the wait's end.
        ok(cuLaunchHostFunc(other, Some(slow_gate), 0));
        ok(cuLaunchHostFunc(other, Some(gate), 0));
        let from = Instant::now();
        open();
        ok(ending.join().unwrap());
        while PASSED.load(Ordering::SeqCst) < 3 {
            assert!(from.elapsed() < Duration::from_secs(60), "it never ran");
            thread::sleep(Duration::from_millis(1));
        }
        ok(cuCtxSetCurrent(gpu.context));
    }
    assert_eq!(alive(), "context 1 0\n");
}

#[test]
fn a_host_function_of_before_a_reset_ends_no_work_of_after_it() {
    let gpu = gpu();
    let first = stream();
    close();
    ok(cuLaunchHostFunc(first, Some(gate), 0));
    larder_stand_in_reset(1, 1 << 20);
    ok(cuCtxSetCurrent(0));
    made(|context| cuCtxCreate_v2(context, 0, 0));
    larder_stand_in_schedule(1, 3);
    let at = memory(64);
    let stream = stream();
    // As many as the old one's number and more.
    ok(cuMemsetD8Async(at, 7, 64, stream));
    open();
    while PASSED.load(Ordering::SeqCst) == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(20));
    ok(cuStreamSynchronize(stream));
    assert_eq!(read(at, 64), [7; 64]);
    drop(gpu);
}

#[test]
fn a_host_pointer_that_is_device_memory_that_is_gone_is_refused() {
    let _gpu = gpu();
    let (at, dead) = (memory(4096), memory(4096));
    ok(cuMemFree_v2(dead));
    assert_eq!(cuMemcpyHtoD_v2(at, dead as usize, 64), Code::INVALID_VALUE);
    assert_eq!(cuMemcpyDtoH_v2(dead as usize, at, 64), Code::INVALID_VALUE);
    let end = at + 4096 - 8;
    assert_eq!(cuMemcpyHtoD_v2(at, end as usize, 64), Code::INVALID_VALUE);
}

#[test]
fn a_reset_gives_all_addresses_back() {
    let _gpu = gpu();
    let reserved = || {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let bytes = text.lines().filter_map(|line| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            number(to)?.checked_sub(number(from)?)
        });
        bytes.sum::<u64>()
    };
    for _ in 0..8 {
        larder_stand_in_reset(1, 1 << 20);
    }
    let before = reserved();
    for _ in 0..64 {
        larder_stand_in_reset(1, 1 << 20);
    }
    assert!(reserved() <= before.max(64 << 40) + (1 << 30), "{before}");
}

#[test]
fn a_range_beyond_all_memory_is_not_registered() {
    let _gpu = gpu();
    for bytes in [usize::MAX - 1, usize::MAX - 4095, usize::MAX / 2] {
        assert_eq!(cuMemHostRegister_v2(1, bytes, 0), Code::INVALID_VALUE);
    }
    let at = memory(64) as usize;
    // Addresses that the driver keeps for itself are no memory of the program's.
    assert_eq!(cuMemHostRegister_v2(at, 64, 0), Code::INVALID_VALUE);
    assert_eq!(
        cuMemHostRegister_v2(at - 4096, 8192, 0),
        Code::INVALID_VALUE
    );
    assert_eq!(
        cuMemHostRegister_v2(at + (1 << 32), 64, 0),
        Code::INVALID_VALUE
    );
}

#[test]
fn a_free_that_comes_before_its_allocation_fails_as_on_a_device() {
    let _gpu = gpu();
    for seed in 0..50 {
        larder_stand_in_reset(1, 1 << 20);
        ok(cuCtxSetCurrent(0));
        let context = made(|context| cuCtxCreate_v2(context, 0, 0));
        larder_stand_in_schedule(1, seed);
        let (first, second) = (stream(), stream());
        let at = made(|at| cuMemAllocAsync(at, 512, first));
        ok(cuMemFreeAsync(at, second));
        ok(cuStreamSynchronize(second));
        assert_eq!(cuCtxSynchronize(), Code::SUCCESS, "seed {seed}");
        ok(cuCtxDestroy_v2(context));
        assert_eq!(larder_stand_in_used(0), 0, "seed {seed}");
        assert!(findings().contains("race"), "seed {seed}");
    }
}

#[test]
fn an_allocation_may_run_when_its_block_is_long_gone() {
    let _gpu = gpu();
    let (first, second) = (stream(), stream());
    close();
    ok(cuLaunchHostFunc(first, Some(gate), 0));
    // The program forgets to order the free, and the next allocation gets the block.
    let at = made(|at| cuMemAllocAsync(at, 512, first));
    ok(cuMemFreeAsync(at, second));
    assert_eq!(made(|at| cuMemAllocAsync(at, 512, second)), at);
    ok(cuMemFreeAsync(at, second));
    ok(cuStreamSynchronize(second));
    assert_eq!(larder_stand_in_used(0), 0);
    open();
    ok(cuStreamSynchronize(first));
    assert!(findings().contains("runs before its allocation"));
}

#[test]
fn a_module_with_a_name_twice_is_invalid_and_leaves_nothing() {
    let gpu = gpu();
    for text in [
        c".version 7.0\n.global .u32 a;\n.global .u32 a;\n",
        c".version 7.0\n.entry a() { ret; }\n.entry a() { ret; }\n",
        c".version 7.0\n.global .u32 a;\n.entry a() { ret; }\n",
    ] {
        let mut module = 0;
        assert_eq!(
            cuModuleLoadData(&mut module, text.as_ptr() as usize),
            Code::INVALID_PTX
        );
    }
    ok(cuCtxDestroy_v2(gpu.context));
    assert_eq!(larder_stand_in_used(0), 0);
}
