//! Many threads: results are right, no thread waits forever, and none stays asleep after the work for which it waits is
//! done.

use std::ffi::c_void;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use larder_cuda_abi::Code;

use super::api::*;

extern "C" fn three(_: *mut c_void) {
    thread::sleep(Duration::from_millis(3));
}

/// Fills, copies and reads back on streams of its own. Other threads free its memory.
fn worker(context: usize, seed: u64, dead: &mpsc::Sender<u64>) {
    ok(cuCtxPushCurrent_v2(context));
    let mut draw = Draw::new(seed);
    let (first, second, event) = (stream(), stream(), event());
    let pinned = made(|at| cuMemHostAlloc(at, 4096, 0));
    for round in 0..60_u8 {
        let (a, b) = (memory(4096), made(|at| cuMemAllocAsync(at, 4096, second)));
        ok(cuMemsetD8Async(a, round, 4096, first));
        if draw.rarely(3) {
            ok(cuLaunchHostFunc(first, Some(three), 0));
        }
        ok(cuEventRecord(event, first));
        ok(cuStreamWaitEvent(second, event, 0));
        ok(cuMemcpyDtoDAsync_v2(b, a, 4096, second));
        ok(cuMemcpyDtoHAsync_v2(pinned, b, 4096, second));
        ok(cuMemFreeAsync(b, second));
        match draw.below(4) {
            0 => ok(cuCtxSynchronize()),
            1 => while cuStreamQuery(second) == Code::NOT_READY {},
            _ => ok(cuStreamSynchronize(second)),
        }
        let bytes = unsafe { std::slice::from_raw_parts(pinned as *const u8, 4096) };
        assert!(bytes.iter().all(|byte| *byte == round), "seed {seed}");
        dead.send(a).unwrap();
        if draw.rarely(10) {
            let other = made(|context| cuCtxCreate_v2(context, 0, 1));
            ok(cuMemsetD8Async(memory(64), 1, 64, 2));
            ok(cuCtxDestroy_v2(other));
        }
    }
    ok(cuMemFreeHost(pinned));
    ok(cuStreamDestroy_v2(first));
    ok(cuStreamDestroy_v2(second));
    ok(cuCtxPopCurrent_v2(&mut 0));
}

#[test]
fn many_threads_get_right_results() {
    let gpu = gpu();
    for deferred in [0, 1] {
        larder_stand_in_schedule(deferred, 3);
        thread::scope(|scope| {
            let (sender, dead) = mpsc::channel();
            for seed in 0..8 {
                let (sender, context) = (sender.clone(), gpu.context);
                scope.spawn(move || worker(context, seed, &sender));
            }
            drop(sender);
            let context = gpu.context;
            scope.spawn(move || {
                ok(cuCtxPushCurrent_v2(context));
                dead.iter().for_each(|at| ok(cuMemFree_v2(at)));
                ok(cuCtxPopCurrent_v2(&mut 0));
            });
        });
        assert_eq!(findings(), "");
    }
    ok(cuCtxSynchronize());
    assert_eq!(larder_stand_in_used(0), 0);
    assert_eq!(larder_stand_in_used(1), 0);
}

#[test]
fn waits_of_many_threads_for_host_functions_end() {
    let gpu = gpu();
    let mut slow = 0;
    for deferred in [0, 1] {
        larder_stand_in_schedule(deferred, 9);
        let longest = |seed: u64| {
            ok(cuCtxPushCurrent_v2(gpu.context));
            let mut draw = Draw::new(seed);
            let (stream, event) = (stream(), event());
            let late = |_| {
                ok(cuLaunchHostFunc(stream, Some(three), 0));
                ok(cuEventRecord(event, stream));
                let start = Instant::now();
                match draw.below(3) {
                    0 => ok(cuStreamSynchronize(stream)),
                    1 => ok(cuEventSynchronize(event)),
                    _ => ok(cuCtxSynchronize()),
                }
                start.elapsed() > Duration::from_millis(80)
            };
            let late = (0..60).map(late).filter(|late| *late).count();
            ok(cuCtxPopCurrent_v2(&mut 0));
            late
        };
        thread::scope(|scope| {
            let all: Vec<_> = (0..4)
                .map(|seed| scope.spawn(move || longest(seed)))
                .collect();
            slow += all
                .into_iter()
                .map(|one| one.join().unwrap())
                .sum::<usize>();
        });
    }
    // Printed and not checked (`--nocapture`): a lost wake-up only delays a wait by up to 100 ms.
    println!("{slow} of 480 waits for 3 ms took more than 80 ms");
    assert_eq!(findings(), "");
}
