//! A recording and its file: paths, other processes, descriptors, and full resources.
//!
//! Each child calls a recorder itself, as in `recorder_calls`, so every event is known.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "recorder_support/blocks.rs"]
mod blocks;
mod recorder_support;

use std::alloc::System;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;

use blocks::alloc;
use larder::Recorder;
use recorder_support::{Child, Scene, Sums, is_child};

static HEAP: Recorder<System> = Recorder::new(System);

/// Events enough for several writes.
const MANY: usize = 20_000;

fn allocate_many() {
    for _ in 0..MANY {
        alloc(&HEAP, 24);
    }
}

/// A child that goes on to its end with one complaint, which is given.
fn complaint(child: &Child) -> String {
    assert!(child.0.status.success(), "{child:?}");
    let stderr = child.stderr();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.ends_with('\n'));
    stderr
}

#[test]
fn a_path_that_cannot_be_written_is_one_line_and_the_program_runs_on() {
    let test = "a_path_that_cannot_be_written_is_one_line_and_the_program_runs_on";
    if is_child(test) {
        allocate_many();
        HEAP.step();
        return HEAP.flush();
    }
    let scene = Scene::new(test).with("LARDER_RECORD", "no/such\nfolder/program.trace");
    let words = complaint(&scene.run());
    let expected = "larder: not recording: no/such?folder/program.trace cannot be opened for writing (os error 2);";
    assert!(words.starts_with(expected), "{words}");
}

#[test]
fn a_size_that_is_none_is_one_line_and_no_trace() {
    let test = "a_size_that_is_none_is_one_line_and_no_trace";
    if is_child(test) {
        return allocate_many();
    }
    let scene = Scene::new(test).with("LARDER_RECORD_FROM", "64 kilobytes");
    let words = complaint(&scene.run());
    assert!(words.starts_with("larder: not recording: LARDER_RECORD_FROM is not a byte count"));
    assert!(!scene.path("program.trace").exists());
}

/// Starts this program once more in the same environment, as the part of another test.
fn start_another(test: &str) -> std::process::Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("RECORDER_TEST_CHILD", test)
        .output()
        .unwrap()
}

#[test]
fn plays_one_allocation() {
    if is_child("plays_one_allocation") {
        alloc(&HEAP, 4321);
    }
}

#[test]
fn a_program_started_by_a_recorded_one_leaves_its_trace_alone() {
    let test = "a_program_started_by_a_recorded_one_leaves_its_trace_alone";
    if is_child(test) {
        allocate_many();
        let other = start_another("plays_one_allocation");
        assert!(other.status.success());
        eprint!("{}", String::from_utf8(other.stderr).unwrap());
        return;
    }
    let scene = Scene::new(test);
    let words = complaint(&scene.run());
    assert!(words.contains("program.trace is being written by another process; put %p"));
    assert_eq!(scene.trace().allocations() as usize, MANY);
    assert_eq!(Sums::of(&scene.trace()).bytes as usize, MANY * 24);
}

#[test]
fn percent_p_gives_each_process_a_trace() {
    let test = "percent_p_gives_each_process_a_trace";
    if is_child(test) {
        alloc(&HEAP, 1234);
        assert!(start_another("plays_one_allocation").status.success());
        return;
    }
    let scene = Scene::new(test).with("LARDER_RECORD", "program-%p.trace");
    scene.run_well();
    let mut sizes = Vec::new();
    for file in fs::read_dir(scene.path("")).unwrap() {
        let path = file.unwrap().path();
        sizes.push(Sums::of(&larder_trace::Trace::load(&path).unwrap()).bytes);
    }
    sizes.sort_unstable();
    assert_eq!(sizes, [1234, 4321]);
}

#[test]
fn a_program_that_closes_all_its_files_finds_no_trace_in_its_own() {
    let test = "a_program_that_closes_all_its_files_finds_no_trace_in_its_own";
    if is_child(test) {
        alloc(&HEAP, 100);
        for number in 3..64 {
            // SAFETY: none of these files is used here, except the trace, which is the point.
            unsafe { libc::close(number) };
        }
        let files: Vec<_> = (0..8).map(|_| File::create("own").unwrap()).collect();
        allocate_many();
        HEAP.flush();
        (&files[0]).write_all(b"mine").unwrap();
        for file in files {
            // SAFETY: asks about a number; the recorder must not have closed what is not its own.
            assert_ne!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) }, -1);
        }
        return;
    }
    let scene = Scene::new(test);
    let words = complaint(&scene.run());
    assert!(words.contains("recording ended: the program closed the trace's file"));
    assert_eq!(fs::read_to_string(scene.path("own")).unwrap(), "mine");
}

/// A limit of so many bytes, for good.
fn limit(bytes: u64) -> libc::rlimit {
    libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    }
}

#[test]
fn a_full_disk_ends_the_trace_at_a_whole_line_and_the_program_runs_on() {
    let test = "a_full_disk_ends_the_trace_at_a_whole_line_and_the_program_runs_on";
    if is_child(test) {
        alloc(&HEAP, 100);
        // SAFETY: a refused write shall be an error here and no signal.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let limit = limit(100_003);
        // SAFETY: reads one `rlimit`.
        let refused = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
        assert_eq!(refused, 0);
        allocate_many();
        println!("survived");
        return;
    }
    let scene = Scene::new(test);
    let child = scene.run();
    let words = complaint(&child);
    assert!(
        words.starts_with("larder: recording ended: the trace cannot be written (os error 27)")
    );
    let text = scene.text();
    // What did not fit is less than the longest line.
    assert!(
        text.len() <= 100_003 && text.len() > 100_003 - 40,
        "{}",
        text.len()
    );
    assert!(scene.load().is_ok());
}

// Other systems do not keep the limit of addresses.
#[cfg(target_os = "linux")]
#[test]
fn a_table_that_cannot_grow_ends_the_trace_and_the_program_runs_on() {
    let test = "a_table_that_cannot_grow_ends_the_trace_and_the_program_runs_on";
    if is_child(test) {
        let heap = Recorder::new(blocks::Bump::new());
        heap.step();
        alloc(&heap, 100);
        // What is mapped stays; nothing comes any more.
        let limit = limit(1);
        // SAFETY: reads one `rlimit`.
        let refused = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
        assert_eq!(refused, 0);
        for _ in 0..MANY {
            alloc(&heap, 24);
        }
        return;
    }
    let scene = Scene::new(test);
    let words = complaint(&scene.run());
    assert_eq!(
        words,
        "larder: recording ended: no memory for the table of live blocks; the program goes on\n"
    );
    assert_eq!(
        scene.last_line(),
        "# recording ended: no memory for the table of live blocks"
    );
    // The step is closed, or the reader would refuse it.
    let trace = scene.trace();
    let allocations = trace.allocations() as usize;
    // The first table holds half as many as it has places.
    assert!((100..MANY).contains(&allocations), "{allocations}");
    assert_eq!(trace.events().last(), Some(&recorder_support::step(1)));
}
