//! A recording and its file: paths, other processes, descriptors, and exhausted resources.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use larder::Recorder;
use larder_trace::Trace;

use crate::blocks::{Bump, alloc, free};
use crate::scene::{Scene, Sums, player};
use crate::{HEAP, MANY, allocate_many};

pub(crate) const PARTS: &[(&str, fn())] = &[
    ("many", || {
        allocate_many();
        HEAP.step();
        HEAP.flush();
    }),
    ("another", || {
        alloc(&HEAP, 4321);
    }),
    ("starts another", || {
        allocate_many();
        let other = player("another").output().unwrap();
        assert!(other.status.success());
        eprint!("{}", String::from_utf8(other.stderr).unwrap());
    }),
    ("closes all files", closes_all_files),
    ("fills the disk", fills_the_disk),
    ("runs out of addresses", runs_out_of_addresses),
    ("fails a call", fails_a_call),
];

#[test]
fn a_path_that_cannot_be_written_is_one_line_and_the_program_runs_on() {
    let scene = Scene::new("many").with("LARDER_RECORD", "no/such\nfolder/program.trace");
    let words = scene.run_with_complaint();
    let expected = "larder: not recording: no/such?folder/program.trace cannot be opened for writing (os error 2);";
    assert!(words.starts_with(expected), "{words}");
}

#[test]
fn a_size_that_is_none_is_one_line_and_no_trace() {
    let scene = Scene::new("many").with("LARDER_RECORD_FROM", "64 kilobytes");
    let words = scene.run_with_complaint();
    let expected = "larder: not recording: LARDER_RECORD_FROM is not a byte count";
    assert!(words.starts_with(expected), "{words}");
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn a_program_started_by_a_recorded_one_leaves_its_trace_alone() {
    let scene = Scene::new("starts another");
    let words = scene.run_with_complaint();
    let expected = "program.trace is being written by another process; put %p";
    assert!(words.contains(expected), "{words}");
    let sums = Sums::of(&scene.trace());
    assert_eq!(
        (sums.allocs as usize, sums.bytes as usize),
        (MANY, MANY * 24)
    );
}

#[test]
fn percent_p_gives_each_process_a_trace() {
    let scene = Scene::new("starts another").with("LARDER_RECORD", "program-%p.trace");
    scene.run_well();
    let bytes = |file: String| Sums::of(&Trace::load(&scene.path(&file)).unwrap()).bytes;
    let mut sizes: Vec<u64> = scene.files().into_iter().map(bytes).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [4321, MANY as u64 * 24]);
}

fn closes_all_files() {
    alloc(&HEAP, 100);
    for number in 3..64 {
        // SAFETY: only the trace is in use here, and closing it is the point of the test.
        unsafe { libc::close(number) };
    }
    let files: Vec<_> = (0..8).map(|_| File::create("own").unwrap()).collect();
    allocate_many();
    HEAP.flush();
    (&files[0]).write_all(b"mine").unwrap();
    for file in files {
        // SAFETY: queries a descriptor; the recorder must have closed only its own.
        assert_ne!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) }, -1);
    }
}

#[test]
fn a_program_that_closes_all_its_files_finds_no_trace_in_its_own() {
    let scene = Scene::new("closes all files");
    let words = scene.run_with_complaint();
    let expected = "recording ended: the program closed the trace's file";
    assert!(words.contains(expected), "{words}");
    assert_eq!(fs::read_to_string(scene.path("own")).unwrap(), "mine");
}

/// Limits a resource for the rest of the process.
fn limit(resource: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: reads one `rlimit`.
    let refused = unsafe { libc::setrlimit(resource, &raw const limit) };
    assert_eq!(refused, 0);
}

fn fills_the_disk() {
    alloc(&HEAP, 100);
    // SAFETY: makes a refused write an error instead of a signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    limit(libc::RLIMIT_FSIZE, 100_003);
    allocate_many();
}

#[test]
fn a_full_disk_ends_the_trace_at_a_whole_line_and_the_program_runs_on() {
    let scene = Scene::new("fills the disk");
    let words = scene.run_with_complaint();
    let expected = "larder: recording ended: the trace cannot be written (os error 27)";
    assert!(words.starts_with(expected), "{words}");
    scene.trace();
    // The file ends less than one line before the limit.
    let bytes = scene.text().len();
    assert!((100_003 - 40..=100_003).contains(&bytes), "{bytes}");
}

fn runs_out_of_addresses() {
    let heap = Recorder::new(Bump::new());
    heap.step();
    alloc(&heap, 100);
    // Existing mappings stay; new ones are refused.
    limit(libc::RLIMIT_AS, 1);
    for _ in 0..MANY {
        alloc(&heap, 24);
    }
}

// Other systems do not enforce this limit.
#[cfg(target_os = "linux")]
#[test]
fn a_table_that_cannot_grow_ends_the_trace_and_the_program_runs_on() {
    let scene = Scene::new("runs out of addresses");
    let words = scene.run_with_complaint();
    let reason = "no memory for the table of live blocks";
    let expected = format!("larder: recording ended: {reason}; the program goes on\n");
    assert_eq!((words, scene.end()), (expected, reason.to_owned()));
    // The first table is full when half of its places are used.
    let allocations = scene.trace().allocations() as usize;
    assert!((100..MANY).contains(&allocations), "{allocations}");
    // The step is closed; otherwise the reader would refuse the trace.
    assert!(scene.events().ends_with(", s 1"));
}

fn fails_a_call() {
    // SAFETY: no file has this descriptor.
    unsafe { libc::close(-1) };
    let block = alloc(&HEAP, 100);
    let reason = io::Error::last_os_error().raw_os_error();
    assert_eq!(reason, Some(libc::EBADF));
    free(&HEAP, block);
}

#[test]
fn the_reason_of_a_failed_call_survives_a_recording_that_fails_too() {
    let scene = Scene::new("fails a call").with("LARDER_RECORD", "/no/such/folder/program.trace");
    scene.run_with_complaint();
}
