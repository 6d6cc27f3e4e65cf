//! If the schedule waits for host functions, one thread and one seed give one order.

use std::ffi::c_void;
use std::sync::Mutex;

use super::api::*;

static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

extern "C" fn note(data: *mut c_void) {
    SEEN.lock().unwrap().push(data.addr());
}

/// Runs a program. Returns the order in which its host functions ran, and its memory at the end.
fn order(program: u64, seed: u64) -> (Vec<usize>, Vec<u8>) {
    larder_stand_in_reset(1, 1 << 30);
    ok(cuCtxSetCurrent(0));
    made(|context| cuCtxCreate_v2(context, 0, 0));
    SEEN.lock().unwrap().clear();
    let mut draw = Draw::new(program);
    let streams: Vec<usize> = (0..5).map(|_| stream()).collect();
    let events: Vec<usize> = (0..4).map(|_| event()).collect();
    let at = memory(64);
    larder_stand_in_schedule(2, seed);
    for index in 1..80 {
        let stream = draw.one(&streams);
        let event = draw.one(&events);
        match draw.below(9) {
            0..=2 => {
                ok(cuLaunchHostFunc(stream, Some(note), index));
            }
            3 | 4 => ok(cuMemsetD8Async(
                at + draw.below(32) as u64,
                index as u8,
                32,
                stream,
            )),
            5 => ok(cuEventRecord(event, stream)),
            6 => ok(cuStreamWaitEvent(stream, event, 0)),
            7 => {
                let _ = cuStreamQuery(stream);
            }
            _ => {
                let block = made(|at| cuMemAllocAsync(at, 512, stream));
                ok(cuMemFreeAsync(block, stream));
            }
        }
    }
    ok(cuCtxSynchronize());
    let bytes = read(at, 64);
    (SEEN.lock().unwrap().clone(), bytes)
}

#[test]
fn the_same_program_and_seed_give_the_same_order() {
    let _gpu = gpu();
    let mut differ = 0;
    for program in 0..40 {
        let first = order(program, 7);
        assert_eq!(first, order(program, 7), "program {program}");
        differ += usize::from(first != order(program, 8));
    }
    assert!(differ > 30, "the seed hardly matters: {differ}");
}
