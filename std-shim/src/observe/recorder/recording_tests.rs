//! One recording by itself, without an allocator: its lines, its numbers, its end.

use std::ffi::CString;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::observe::recorder::target::RecorderOrder;

/// A recording to a file of its own, deleted at the end of the test.
struct Trial {
    recording: Box<Recording>,
    path: PathBuf,
}

impl Trial {
    fn new(from_bytes: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("larder-recording-{}-{number}.trace", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut recording = Box::new(Recording::new());
        recording.begin(order(&path, from_bytes), || true);
        Self { recording, path }
    }

    /// Ends the recording. Returns the lines behind the header.
    fn lines(mut self) -> Vec<String> {
        self.recording.end(EndReason::Exit);
        let text = fs::read_to_string(&self.path).unwrap();
        assert!(text.ends_with('\n'));
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        assert_eq!(
            lines.remove(0),
            "# alloc-trace v1: a <id> <bytes> | f <id> | s <step>"
        );
        lines.retain(|line| {
            !["# name: ", "# from_bytes: ", "# recorded: "]
                .iter()
                .any(|key| line.starts_with(key))
        });
        lines
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn order(path: &std::path::Path, from_bytes: u64) -> RecorderOrder {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let path = Box::leak(path.into_boxed_c_str());
    RecorderOrder::Program { path, from_bytes }
}

const EXIT: &str = "# recording ended: the program exits";

#[test]
fn a_trace_without_steps_has_no_step_line() {
    let mut trial = Trial::new(1);
    trial.recording.alloc(0x10, 100);
    trial.recording.free(0x10);
    assert_eq!(trial.lines(), ["a 0 100", "f 0", EXIT]);
}

#[test]
fn the_exit_closes_a_step_with_events_and_leaves_a_closed_one() {
    let mut trial = Trial::new(1);
    trial.recording.step();
    trial.recording.alloc(0x10, 100);
    assert_eq!(trial.lines(), ["s 0", "a 0 100", "s 1", EXIT]);

    let mut trial = Trial::new(1);
    trial.recording.step();
    trial.recording.alloc(0x10, 100);
    trial.recording.step();
    assert_eq!(trial.lines(), ["s 0", "a 0 100", "s 1", EXIT]);
}

const ONE: StepThread = StepThread::numbered(1);
const OTHER: StepThread = StepThread::numbered(2);

impl Trial {
    /// Records a step of a thread with a block of `bytes` bytes, or with none.
    fn step_of(&mut self, thread: StepThread, bytes: usize) {
        self.recording.heard(thread, StepMoment::Begins);
        self.recording.alloc(0x10, bytes);
        self.recording.free(0x10);
        self.recording.heard(thread, StepMoment::Ends);
    }
}

#[test]
fn steps_without_anything_between_share_their_marks() {
    let mut trial = Trial::new(10);
    trial.step_of(ONE, 100);
    trial.step_of(ONE, 1);
    trial.step_of(ONE, 200);
    let steps = ["s 0", "a 0 100", "f 0", "s 1", "s 2", "a 1 200", "f 1"];
    assert_eq!(trial.lines(), [&steps[..], &["s 3", EXIT]].concat());
}

#[test]
fn what_comes_between_two_steps_and_behind_the_last_is_said_to() {
    let mut trial = Trial::new(1);
    trial.recording.alloc(0x20, 7);
    trial.step_of(ONE, 100);
    trial.recording.alloc(0x30, 8);
    trial.recording.free(0x30);
    trial.step_of(ONE, 200);
    trial.recording.free(0x20);
    let between = "# between steps";
    let set_up = ["a 0 7"];
    let first = ["s 0", "a 1 100", "f 1", "s 1", between, "a 2 8", "f 2"];
    let second = ["s 2", "a 3 200", "f 3", "s 3", between, "f 0"];
    let end = ["s 4", EXIT];
    let expected = [&set_up[..], &first, &second, &end].concat();
    assert_eq!(trial.lines(), expected);
}

#[test]
fn steps_of_other_threads_are_not_marked_until_the_first_one_has_ended() {
    let mut trial = Trial::new(1);
    trial.recording.heard(ONE, StepMoment::Begins);
    trial.step_of(OTHER, 100);
    trial.recording.heard(ONE, StepMoment::Ends);
    trial.step_of(OTHER, 200);
    trial.recording.heard(OTHER, StepMoment::ThreadEnds);
    trial.step_of(OTHER, 300);
    trial.recording.heard(ONE, StepMoment::ThreadEnds);
    trial.recording.heard(OTHER, StepMoment::Ends);
    trial.step_of(OTHER, 400);
    let between = "# between steps";
    let first = ["s 0", "a 0 100", "f 0", "s 1", between];
    let others = ["a 1 200", "f 1", "a 2 300", "f 2"];
    let second = ["s 2", "a 3 400", "f 3", "s 3", EXIT];
    assert_eq!(trial.lines(), [&first[..], &others, &second].concat());
}

#[test]
fn a_mark_of_the_program_and_a_step_that_begins_there_are_one() {
    for called_first in [true, false] {
        let mut trial = Trial::new(1);
        for bytes in [100, 200] {
            if called_first {
                trial.recording.step();
            }
            trial.recording.heard(ONE, StepMoment::Begins);
            if !called_first {
                trial.recording.step();
            }
            trial.recording.alloc(0x10, bytes);
            trial.recording.free(0x10);
            trial.recording.heard(ONE, StepMoment::Ends);
        }
        let first = ["s 0", "a 0 100", "f 0", "s 1"];
        let second = ["a 1 200", "f 1", "s 2", EXIT];
        assert_eq!(trial.lines(), [first, second].concat());
    }
}

#[test]
fn marks_of_the_program_count_each() {
    let mut trial = Trial::new(1);
    trial.recording.step();
    trial.recording.step();
    trial.recording.alloc(0x10, 100);
    assert_eq!(trial.lines(), ["s 0", "s 1", "a 0 100", "s 2", EXIT]);
}

#[test]
fn a_step_that_ends_after_its_recording_is_not_recorded() {
    let mut trial = Trial::new(1);
    trial.recording.heard(ONE, StepMoment::Begins);
    trial.recording.alloc(0x10, 100);
    trial.recording.end(EndReason::Exit);
    trial.recording.heard(ONE, StepMoment::Ends);
    assert_eq!(trial.lines(), ["s 0", "a 0 100", "s 1", EXIT]);
}

#[test]
fn blocks_below_the_threshold_are_left_out_and_one_of_its_size_is_not() {
    let mut trial = Trial::new(100);
    trial.recording.alloc(0x10, 99);
    trial.recording.alloc(0x20, 100);
    trial.recording.alloc(0x30, 101);
    trial.recording.free(0x10);
    trial.recording.free(0x20);
    assert_eq!(trial.lines(), ["a 0 100", "a 1 101", "f 0", EXIT]);
}

#[test]
fn a_block_that_moves_is_allocated_before_the_old_one_is_freed_and_one_that_stays_after() {
    for (moved, lines) in [
        (true, ["a 0 100", "a 1 300", "f 0", EXIT]),
        (false, ["a 0 100", "f 0", "a 1 300", EXIT]),
    ] {
        let mut trial = Trial::new(1);
        trial.recording.alloc(0x10, 100);
        let old = trial.recording.resizing(0x10);
        let addr = if moved { 0x20 } else { 0x10 };
        let bytes = 300;
        trial.recording.resized(Resized {
            old,
            moved,
            addr,
            bytes,
        });
        assert_eq!(trial.lines(), lines);
    }
}

#[test]
fn a_realloc_across_the_threshold_is_an_alloc_or_a_free_alone() {
    let mut trial = Trial::new(100);
    assert_eq!(trial.recording.resizing(0x10), None);
    let grown = Resized {
        old: None,
        moved: false,
        addr: 0x10,
        bytes: 200,
    };
    trial.recording.resized(grown);
    let old = trial.recording.resizing(0x10);
    let shrunk = Resized {
        old,
        moved: true,
        addr: 0x20,
        bytes: 50,
    };
    trial.recording.resized(shrunk);
    trial.recording.free(0x20);
    assert_eq!(trial.lines(), ["a 0 200", "f 0", EXIT]);
}

#[test]
fn a_block_whose_realloc_failed_keeps_its_id() {
    let mut trial = Trial::new(1);
    trial.recording.alloc(0x10, 100);
    let id = trial.recording.resizing(0x10).unwrap();
    trial.recording.stayed(0x10, id);
    trial.recording.free(0x10);
    assert_eq!(trial.lines(), ["a 0 100", "f 0", EXIT]);
}

#[test]
fn a_block_where_another_was_noted_ends_the_other_first() {
    let mut trial = Trial::new(1);
    trial.recording.alloc(0x10, 100);
    trial.recording.alloc(0x10, 200);
    trial.recording.free(0x10);
    assert_eq!(trial.lines(), ["a 0 100", "f 0", "a 1 200", "f 1", EXIT]);
}

#[test]
fn the_last_id_is_given_and_the_one_behind_it_ends_the_recording_with_its_step_closed() {
    let mut trial = Trial::new(1);
    trial.recording.step();
    trial.recording.next_id = u32::MAX - 1;
    trial.recording.alloc(0x10, 1);
    trial.recording.alloc(0x20, 2);
    trial.recording.free(0x10);
    assert_eq!(trial.recording.threshold(), NEVER);
    let ended = "# recording ended: the format has no more numbers";
    assert_eq!(trial.lines(), ["s 0", "a 4294967294 1", "s 1", ended]);
}

#[test]
fn the_last_step_can_still_be_closed_when_steps_run_out() {
    let mut trial = Trial::new(1);
    trial.recording.next_step = u32::MAX - 2;
    trial.recording.step();
    trial.recording.alloc(0x10, 1);
    trial.recording.step();
    assert_eq!(trial.recording.threshold(), NEVER);
    let ended = "# recording ended: the format has no more numbers";
    assert_eq!(
        trial.lines(),
        ["s 4294967293", "a 0 1", "s 4294967294", ended]
    );
}

#[test]
fn many_lines_reach_the_file_whole_and_in_order() {
    let mut trial = Trial::new(1);
    let mut expected = Vec::new();
    for id in 0..20_000 {
        trial.recording.alloc((id + 1) * 16, id + 1);
        expected.push(format!("a {id} {}", id + 1));
    }
    expected.push(EXIT.to_owned());
    assert_eq!(trial.lines(), expected);
}

#[test]
fn what_waits_is_in_the_file_after_a_flush_and_not_before() {
    let mut trial = Trial::new(1);
    trial.recording.alloc(0x10, 100);
    assert_eq!(fs::read_to_string(&trial.path).unwrap(), "");
    trial.recording.flush();
    assert!(
        fs::read_to_string(&trial.path)
            .unwrap()
            .ends_with("a 0 100\n")
    );
    assert_eq!(trial.lines(), ["a 0 100", EXIT]);
}

#[test]
fn a_second_order_changes_nothing() {
    let mut trial = Trial::new(1);
    let other = trial.path.with_extension("other");
    trial.recording.begin(order(&other, 1000), || true);
    trial.recording.alloc(0x10, 100);
    assert!(!other.exists());
    assert_eq!(trial.lines(), ["a 0 100", EXIT]);
}

#[test]
fn a_file_is_kept_when_the_exit_cannot_be_watched() {
    let trial = Trial::new(1);
    let path = trial.path.with_extension("kept");
    fs::write(&path, "kept").unwrap();
    let mut recording = Box::new(Recording::new());
    recording.begin(order(&path, 1), || false);
    assert_eq!(recording.threshold(), NEVER);
    assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
    fs::remove_file(&path).unwrap();
}
