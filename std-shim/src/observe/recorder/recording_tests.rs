//! What no program brings about: numbers that run out, a system that takes no handlers. What programs leave is in
//! `tests/recorder`.

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
    /// Begins a recording over a file with old contents; the system takes the exit handler or not.
    fn new(watches: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("larder-recording-{}-{number}.trace", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, "kept").unwrap();
        let mut recording = Box::new(Recording::new());
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let order = RecorderOrder::Program {
            path: Box::leak(name.into_boxed_c_str()),
            from_bytes: 1,
        };
        recording.begin(order, || watches);
        Self { recording, path }
    }

    fn assert_ends_with(&self, lines: &str) {
        assert_eq!(self.recording.threshold(), NEVER);
        let text = fs::read_to_string(&self.path).unwrap();
        let end = "# recording ended: the format has no more numbers\n";
        assert!(text.ends_with(&format!("{lines}{end}")), "{text}");
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[test]
fn the_last_id_is_given_and_the_one_behind_it_ends_the_recording_with_its_step_closed() {
    let mut trial = Trial::new(true);
    trial.recording.step();
    trial.recording.next_id = u32::MAX - 1;
    trial.recording.alloc(0x10, 1);
    trial.recording.alloc(0x20, 2);
    trial.recording.free(0x10);
    trial.assert_ends_with("\ns 0\na 4294967294 1\ns 1\n");
}

#[test]
fn the_last_step_can_still_be_closed_when_steps_run_out() {
    let mut trial = Trial::new(true);
    trial.recording.next_step = u32::MAX - 2;
    trial.recording.step();
    trial.recording.alloc(0x10, 1);
    trial.recording.step();
    trial.assert_ends_with("\ns 4294967293\na 0 1\ns 4294967294\n");
}

#[test]
fn a_file_is_kept_when_the_exit_cannot_be_watched() {
    let trial = Trial::new(false);
    assert_eq!(trial.recording.threshold(), NEVER);
    assert_eq!(fs::read_to_string(&trial.path).unwrap(), "kept");
}
