//! PyTorch's sequence of calls from recorded training runs, on three streams and two devices. The reserved bytes must
//! equal those that `larder replay --allocator device` reports for the run, and those that the allocator itself
//! reserves for the same sequence.

use std::process::Command;
use std::sync::{Arc, PoisonError};

use larder_core::Block;
use larder_cuda::driver::{Choice, load};
use larder_cuda::{Context, CudaStream, DeviceAllocator, DeviceConfig};
use larder_trace::{Event, Trace};
use serde_json::Value;

use crate::common::{Recorded, STAND_IN, built, compiled, on_stand_in, package, python, said};

const RUNS: [&str; 2] = ["gpt2s_train", "resnet50_train"];

/// Returns the peaks of reserved bytes: that of the first stream and of the other device's stream, and that of the
/// second stream.
fn expected(recorded: &Recorded) -> (u64, u64) {
    let mut replay = Command::new(built().join("larder"));
    replay.args(["replay", "--allocator", "device", "--driver", "stand-in"]);
    let replayed = said(replay.arg("--json").arg(&recorded.packed));
    let replayed = replayed["peak_reserved_bytes"].as_u64().unwrap();
    (replayed, again(&recorded.trace))
}

/// Plays the run on the first stream and then on the second one with the allocator itself. Returns the second peak.
fn again(trace: &Trace) -> u64 {
    let _turn = STAND_IN.lock().unwrap_or_else(PoisonError::into_inner);
    let stand_in = load(Choice::StandIn).unwrap().stand_in().unwrap();
    stand_in.reset(2, 64 << 30);
    let context = Context::new(0).unwrap();
    let config = DeviceConfig {
        check_captures: true,
        ..DeviceConfig::new()
    };
    let memory = DeviceAllocator::with_config(&context, config).unwrap();
    let [first, second] = [(); 2].map(|()| context.cudarc().new_stream().unwrap());
    play(&memory, &first, trace);
    memory.release(u64::MAX);
    memory.clear_stats();
    play(&memory, &second, trace);
    memory.stats().peak_reserved_bytes
}

fn play(memory: &DeviceAllocator, stream: &Arc<CudaStream>, trace: &Trace) {
    let mut blocks: Vec<Option<Block>> = Vec::new();
    for event in trace.events() {
        match *event {
            Event::Alloc { bytes, .. } => {
                blocks.push(Some(memory.alloc(stream, bytes).unwrap()));
            }
            Event::Free { id } => {
                let block = blocks[id as usize].take().unwrap();
                memory.free(stream, block).unwrap();
            }
            Event::Step { .. } => {}
        }
    }
    for block in blocks.into_iter().flatten() {
        memory.free(stream, block).unwrap();
    }
}

#[track_caller]
fn assert_equal(played: &Value, recorded: &Recorded) {
    let (replayed, again) = expected(recorded);
    let allocations = 2 * u64::from(recorded.trace.allocations());
    assert_eq!(played["first"], replayed);
    assert_eq!(played["other"], replayed);
    assert_eq!(played["again"], again);
    assert_eq!(played["live"], 0);
    assert_eq!(
        (&played["allocations"], &played["frees"]),
        (&allocations.into(), &allocations.into())
    );
    assert_eq!(played["findings"], 0);
}

#[test]
fn a_program_of_c_reserves_what_the_replay_reserves() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path(), "train.c") else {
        return;
    };
    for name in RUNS {
        let recorded = Recorded::new(&folder, name);
        let played = said(on_stand_in(&program).arg(&recorded.plain));
        assert_equal(&played, &recorded);
    }
}

#[test]
fn a_program_of_python_reserves_what_the_replay_reserves() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut python) = python() else { return };
    let recorded = Recorded::new(&folder, RUNS[0]);
    python.arg(package().join("tests/programs/train.py"));
    let played = said(python.arg(&recorded.plain));
    assert_equal(&played, &recorded);
}
