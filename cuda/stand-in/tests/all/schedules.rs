//! Random programs on several streams, under the deferred schedule: with all waits, the result is that of running
//! everything in program order; with one wait left out, the race is found. Programs written for one race each are in
//! the script `planted`.

use std::ffi::c_void;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::common::{alone, findings, made, ok, read};
use crate::driver::{
    cuCtxSetCurrent, cuCtxSynchronize, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRetain,
    cuEventCreate, cuEventRecord, cuInit, cuLaunchHostFunc, cuMemAlloc_v2, cuMemcpyDtoDAsync_v2,
    cuMemsetD8Async, cuStreamCreate, cuStreamWaitEvent, larder_stand_in_clear_findings,
    larder_stand_in_reset, larder_stand_in_schedule,
};
use crate::numbers::Random;

/// Length of each buffer.
const BYTES: usize = 64;
const STREAMS: usize = 4;
const BUFFERS: usize = 5;
const STEPS: usize = 24;

/// The device with a program's streams, buffers and events.
struct Gpu {
    streams: Vec<usize>,
    buffers: Vec<u64>,
    events: Vec<usize>,
    _one: MutexGuard<'static, ()>,
}

impl Gpu {
    /// Resets the device and creates streams that wait for no other.
    fn new() -> Self {
        let one = alone();
        larder_stand_in_reset(1, 1 << 30);
        ok(cuInit(0));
        let context = made(|context| cuDevicePrimaryCtxRetain(context, 0));
        ok(cuCtxSetCurrent(context));
        let stream = |_| made(|stream| cuStreamCreate(stream, 1));
        let buffer = |_| made(|at| cuMemAlloc_v2(at, BYTES));
        let event = |_| made(|event| cuEventCreate(event, 2));
        Self {
            streams: (0..STREAMS).map(stream).collect(),
            buffers: (0..BUFFERS).map(buffer).collect(),
            events: (0..STEPS).map(event).collect(),
            _one: one,
        }
    }

    /// Starts a run in a deferred order, with all buffers zero and nothing queued.
    fn start(&self, seed: u64) {
        larder_stand_in_schedule(0, 0);
        ok(cuCtxSynchronize());
        for buffer in &self.buffers {
            ok(cuMemsetD8Async(*buffer, 0, BYTES, 0));
        }
        ok(cuCtxSynchronize());
        larder_stand_in_clear_findings();
        larder_stand_in_schedule(1, seed);
    }

    /// Ends a run. Returns the contents of all buffers.
    fn finish(&self) -> Vec<Vec<u8>> {
        ok(cuCtxSynchronize());
        let buffers = self.buffers.iter();
        buffers.map(|buffer| read(*buffer, BYTES)).collect()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        larder_stand_in_schedule(0, 0);
        cuDevicePrimaryCtxRelease_v2(0);
    }
}

#[derive(Clone, Debug)]
struct Step {
    stream: usize,
    /// The buffer to copy from; `None` for a fill.
    from: Option<usize>,
    to: usize,
    at: usize,
    bytes: usize,
    value: u8,
    /// Earlier steps whose events this step waits for.
    waits: Vec<usize>,
}

impl Step {
    fn draw(draw: &mut Random, value: usize) -> Self {
        let to = draw.below(BUFFERS);
        let from = (draw.below(3) > 0).then(|| (to + 1 + draw.below(BUFFERS - 1)) % BUFFERS);
        let at = draw.below(BYTES);
        Self {
            stream: draw.below(STREAMS),
            from,
            to,
            at,
            bytes: 1 + draw.below(BYTES - at),
            value: value as u8,
            waits: Vec::new(),
        }
    }

    /// Returns whether the two steps must be ordered.
    fn meets(&self, other: &Self) -> bool {
        let overlap = self.at < other.at + other.bytes && other.at < self.at + self.bytes;
        let writes = self.to == other.to;
        let reads = self.from == Some(other.to) || other.from == Some(self.to);
        overlap && (writes || reads)
    }
}

/// Draws a program in which every two conflicting operations are ordered.
fn program(seed: u64) -> Vec<Step> {
    let mut draw = Random::new(seed);
    let mut steps: Vec<Step> = Vec::new();
    // The steps that are ordered before each step.
    let mut before: Vec<Vec<bool>> = Vec::new();
    for index in 0..STEPS {
        let mut step = Step::draw(&mut draw, index + 1);
        let mut known = vec![false; STEPS];
        if let Some(last) = (0..index).rev().find(|i| steps[*i].stream == step.stream) {
            learn(&mut known, &before[last], last);
        }
        for other in (0..index).rev() {
            if steps[other].meets(&step) && !known[other] {
                learn(&mut known, &before[other], other);
                step.waits.push(other);
            }
        }
        steps.push(step);
        before.push(known);
    }
    steps
}

fn learn(known: &mut [bool], before: &[bool], step: usize) {
    for (known, before) in known.iter_mut().zip(before) {
        *known |= before;
    }
    known[step] = true;
}

fn reference(steps: &[Step]) -> Vec<Vec<u8>> {
    let mut buffers = vec![vec![0; BYTES]; BUFFERS];
    for step in steps {
        let range = step.at..step.at + step.bytes;
        match step.from {
            Some(from) => {
                let source = buffers[from][range.clone()].to_vec();
                buffers[step.to][range].copy_from_slice(&source);
            }
            None => buffers[step.to][range].fill(step.value),
        }
    }
    buffers
}

fn run(gpu: &Gpu, steps: &[Step]) -> Vec<Vec<u8>> {
    for (index, step) in steps.iter().enumerate() {
        let stream = gpu.streams[step.stream];
        for wait in &step.waits {
            ok(cuStreamWaitEvent(stream, gpu.events[*wait], 0));
        }
        let place = |buffer: usize| gpu.buffers[buffer] + step.at as u64;
        let to = place(step.to);
        ok(match step.from {
            Some(from) => cuMemcpyDtoDAsync_v2(to, place(from), step.bytes, stream),
            None => cuMemsetD8Async(to, step.value, step.bytes, stream),
        });
        ok(cuEventRecord(gpu.events[index], stream));
    }
    gpu.finish()
}

#[test]
fn ten_thousand_ordered_programs_give_what_the_program_says() {
    let gpu = Gpu::new();
    for seed in 0..10_000 {
        let steps = program(seed);
        gpu.start(seed);
        assert_eq!(run(&gpu, &steps), reference(&steps), "seed {seed}");
        assert_eq!(findings(), "", "seed {seed}");
    }
}

#[test]
fn one_wait_left_out_is_found_and_often_shows() {
    let gpu = Gpu::new();
    let (mut tried, mut shown) = (0, 0);
    for seed in 0..500 {
        let mut steps = program(seed);
        let right = reference(&steps);
        // Nothing else implies the last wait of a program.
        let Some(step) = steps.iter_mut().rev().find(|step| !step.waits.is_empty()) else {
            continue;
        };
        step.waits.pop();
        tried += 1;
        gpu.start(seed);
        shown += u32::from(run(&gpu, &steps) != right);
        assert!(findings().contains("race"), "seed {seed}");
    }
    assert!(tried > 400 && shown > 20, "{shown} of {tried} showed");
}

static TURN: AtomicU8 = AtomicU8::new(0);

extern "C" fn first(_: *mut c_void) {
    TURN.store(1, Ordering::SeqCst);
}

extern "C" fn second(_: *mut c_void) {
    // Succeeds only if the first function has run already.
    let _ = TURN.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst);
}

/// The driver sees no memory here, so it cannot find the race; only the order shows it.
#[test]
fn host_functions_on_two_streams_run_in_order_with_a_wait_and_in_any_without() {
    let gpu = Gpu::new();
    let runs_in_order = |seed: u64, waits: bool| {
        gpu.start(seed);
        TURN.store(0, Ordering::SeqCst);
        ok(cuLaunchHostFunc(gpu.streams[0], Some(first), 0));
        ok(cuEventRecord(gpu.events[0], gpu.streams[0]));
        if waits {
            ok(cuStreamWaitEvent(gpu.streams[1], gpu.events[0], 0));
        }
        ok(cuLaunchHostFunc(gpu.streams[1], Some(second), 0));
        gpu.finish();
        assert_eq!(findings(), "", "seed {seed}");
        TURN.load(Ordering::SeqCst) == 2
    };
    assert!((0..1000).all(|seed| runs_in_order(seed, true)));
    let in_order = (0..100).filter(|seed| runs_in_order(*seed, false)).count();
    assert!((1..100).contains(&in_order), "the schedule has one order");
}
