//! The checking heap as global allocator: its report has stacks, and reaches the function that the program sets.
//! Programs in C are tested in `malloc`.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(all(target_os = "linux", not(miri)))]

use std::alloc::{GlobalAlloc, Layout};
use std::env;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Mutex;

use larder::{Larder, OnMisuse};

#[global_allocator]
static HEAP: Larder = Larder::checking().with_environment();

const LAYOUT: Layout = Layout::new::<[u64; 20]>();

// What follows each call below keeps it from being the last thing that its function does.

#[inline(never)]
fn allocates_it() -> *mut u8 {
    // SAFETY: the layout is not empty.
    black_box(unsafe { HEAP.alloc(LAYOUT) })
}

#[inline(never)]
fn frees_it(block: *mut u8) {
    // SAFETY: as the caller likes, which is what is tested.
    unsafe { HEAP.dealloc(block, LAYOUT) };
    black_box(block);
}

#[inline(never)]
fn frees_it_twice() {
    let block = allocates_it();
    frees_it(block);
    frees_it(block);
    black_box(block);
}

#[inline(never)]
fn leaks() {
    for _ in 0..black_box(50) {
        allocates_it();
    }
}

#[inline(never)]
fn tells_a_hook() {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    HEAP.on_misuse(OnMisuse::Call(|report| {
        TOLD.lock().unwrap().push(report.to_owned());
    }));
    let kept = vec![1_u8; 1000];
    frees_it_twice();
    frees_it(std::ptr::without_provenance_mut(1 << 20));
    HEAP.on_misuse(OnMisuse::Abort);
    let told = TOLD.lock().unwrap();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("larder: freed a block twice: 0x"));
    assert!(told[0].contains("\n  allocated by thread "), "{}", told[0]);
    assert!(
        told[1]
            .starts_with("larder: freed an address where no block of this heap starts: 0x100000\n")
    );
    assert!(kept.iter().all(|&byte| byte == 1));
}

/// The variable that selects a process's task.
const TASK: &str = "HEAP_TEST_TASK";

#[test]
#[ignore = "others start it"]
fn does_one_thing() {
    match env::var(TASK).as_deref() {
        Ok("twice") => frees_it_twice(),
        Ok("leaks") => leaks(),
        Ok("hook") => tells_a_hook(),
        _ => println!("nobody asks for anything"),
    }
}

fn process(task: &str) -> (Output, String) {
    let asked = |of| if task == of { "yes" } else { "no" };
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "does_one_thing", "--nocapture", "--ignored"])
        .env(TASK, task)
        .env("LARDER_LEAKS", asked("leaks"))
        .env("LARDER_STATS", asked("stats"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

/// Each function that is named is called by a frame of the report below the heading, in this order.
fn assert_calls(report: &str, heading: &str, functions: &[&str]) {
    let program = env::current_exe().unwrap();
    let lines = report
        .lines()
        .skip_while(|line| !line.contains(heading))
        .skip(1);
    let frames: Vec<&str> = lines.take_while(|line| line.starts_with("    ")).collect();
    let place = format!(" {}+0x", program.display());
    let ours = frames.iter().filter(|frame| frame.contains(&place)).count();
    assert!(ours >= functions.len(), "{heading}: {report}");
    if cfg!(feature = "heap-profile") {
        // The allocator's caller comes first.
        assert!(frames[0].contains(functions[0]), "{report}");
        let mut rest = frames.iter();
        for function in functions {
            assert!(
                rest.any(|frame| frame.contains(function)),
                "{function}: {report}"
            );
        }
    }
}

#[test]
fn a_report_has_the_stacks_that_allocated_and_freed_the_block() {
    let (output, report) = process("twice");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{report}");
    assert!(
        report.starts_with("larder: freed a block twice: 0x"),
        "{report}"
    );
    assert!(report.contains(": 160 bytes, "), "{report}");
    assert_calls(
        &report,
        "found by",
        &["frees_it", "frees_it_twice", "does_one_thing"],
    );
    assert_calls(
        &report,
        "freed by",
        &["frees_it", "frees_it_twice", "does_one_thing"],
    );
    assert_calls(
        &report,
        "allocated by",
        &["allocates_it", "frees_it_twice", "does_one_thing"],
    );
}

#[test]
fn what_is_not_freed_is_said_at_the_end() {
    let (output, report) = process("leaks");
    assert!(output.status.success(), "{report}");
    assert!(
        report.contains("larder: not freed at the end, by "),
        "{report}"
    );
    assert_calls(
        &report,
        "8000 bytes in 50 blocks",
        &["allocates_it", "leaks", "does_one_thing"],
    );
}

#[test]
fn a_hook_that_allocates_is_told_and_the_program_goes_on() {
    let (output, report) = process("hook");
    assert!(output.status.success(), "{report}");
    assert!(!report.contains("larder: freed"), "{report}");
}

#[test]
fn what_the_heap_holds_is_said_at_the_end() {
    let (output, report) = process("stats");
    assert!(output.status.success(), "{report}");
    let lines: Vec<&str> = report.lines().collect();
    assert!(lines[0].starts_with("larder: the heap of process "));
    assert!(lines[1].trim().starts_with("live_bytes "), "{report}");
    assert!(lines[11].trim().starts_with("peak_bytes "), "{report}");
}
