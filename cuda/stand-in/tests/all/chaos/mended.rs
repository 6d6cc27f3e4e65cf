//! Former defects that show only with threads or with the system's addresses. The others are in the script `mended`.

use std::ffi::c_void;
use std::thread;
use std::time::Duration;

use super::api::*;
use crate::common::gate;

/// A host function that returns 40 ms after the gate has opened.
extern "C" fn slow_gate(data: *mut c_void) {
    gate::wait(data);
    thread::sleep(Duration::from_millis(40));
}

#[test]
fn work_submitted_while_a_context_ends_is_done_too() {
    let gpu = gpu();
    for seed in 0..6 {
        larder_stand_in_schedule(1, seed);
        let context = made(|context| cuCtxCreate_v2(context, 0, 0));
        let (blocked, other) = (stream(), stream());
        gate::shut();
        ok(cuLaunchHostFunc(blocked, Some(gate::wait), 0));
        let ending = thread::spawn(move || cuCtxDestroy_v2(context));
        thread::sleep(Duration::from_millis(100));
        // The second function is not called before the first one ends, which is after the end of
        // the wait.
        ok(cuLaunchHostFunc(other, Some(slow_gate), 0));
        ok(cuLaunchHostFunc(other, Some(gate::wait), 0));
        gate::open();
        ok(ending.join().unwrap());
        gate::wait_for(3);
        ok(cuCtxSetCurrent(gpu.context));
    }
    assert_eq!(alive(), "context 1 0\n");
}

#[test]
fn a_host_function_of_before_a_reset_ends_no_work_of_after_it() {
    let gpu = gpu();
    let first = stream();
    gate::shut();
    ok(cuLaunchHostFunc(first, Some(gate::wait), 0));
    larder_stand_in_reset(1, 1 << 20);
    ok(cuCtxSetCurrent(0));
    made(|context| cuCtxCreate_v2(context, 0, 0));
    larder_stand_in_schedule(1, 3);
    let at = memory(64);
    let stream = stream();
    // Enough operations for one to get the old host function's number, if numbers restarted.
    ok(cuMemsetD8Async(at, 7, 64, stream));
    gate::open();
    gate::wait_for(1);
    thread::sleep(Duration::from_millis(20));
    ok(cuStreamSynchronize(stream));
    assert_eq!(read(at, 64), [7; 64]);
    drop(gpu);
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
