//! Reports with the stacks of a checking heap, reports at exit, and hooks that panic.

use std::alloc::{GlobalAlloc, Layout};
use std::env;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;

use larder::OnMisuse;

use crate::{HEAP, run};

const LAYOUT: Layout = Layout::new::<[u64; 20]>();

// The statement after each call below prevents a tail call.

#[inline(never)]
fn allocates_it() -> *mut u8 {
    // SAFETY: the layout is not empty.
    black_box(unsafe { HEAP.alloc(LAYOUT) })
}

#[inline(never)]
fn frees_it(block: *mut u8) {
    // SAFETY: the caller may break the contract, which is what is tested.
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

pub(crate) fn task(name: &str) {
    match name {
        "twice" => frees_it_twice(),
        "leaks" => leaks(),
        "panics" => {
            HEAP.on_misuse(OnMisuse::Call(|_| panic!("no")));
            let freed = std::panic::catch_unwind(frees_it_twice);
            println!("the allocator has unwound: {freed:?}");
        }
        "steps" => {
            for _ in 0..5 {
                let _step = larder::step();
                for bytes in [1 << 20, 100_000] {
                    // SAFETY: a block of the heap, freed once.
                    unsafe { HEAP.free(HEAP.malloc(bytes)) };
                }
            }
            assert_eq!(HEAP.stats().steps.steps, 0);
        }
        "block" => drop(black_box(allocates_it())),
        _ => panic!("no task is {name}"),
    }
}

/// Asserts that the frames below a heading are calls by these functions, in this order, down to the
/// last of them. Without names, asserts that there are that many places in the program.
fn assert_calls(report: &str, heading: &str, functions: &[&str]) {
    let lines = report
        .lines()
        .skip_while(|line| !line.contains(heading))
        .skip(1);
    let frames: Vec<&str> = lines.take_while(|line| line.starts_with("    ")).collect();
    if !cfg!(feature = "heap-profile") {
        let place = format!(" {}+0x", env::current_exe().unwrap().display());
        let ours = frames.iter().filter(|frame| frame.contains(&place)).count();
        assert!(ours >= functions.len(), "{heading}: {report}");
        return;
    }
    // Release builds have no lines.
    let file = if cfg!(debug_assertions) {
        "tests/misuse/"
    } else {
        "+0x"
    };
    for (frame, function) in frames.iter().zip(functions) {
        let is_right = frame.contains(function) && frame.contains(file);
        assert!(is_right, "{function}: {report}");
        assert!(frame.len() <= 100, "{report}");
    }
    let is_std = |frame: &&&str| frame.contains("std::") || frame.contains("core::");
    assert_eq!(frames.iter().find(is_std), None, "{report}");
}

#[test]
fn a_report_has_the_stacks_that_allocated_and_freed_the_block() {
    let end = run("checking", "twice", &[]);
    let report = end.report;
    assert_eq!(end.status.signal(), Some(libc::SIGABRT), "{report}");
    let first = "larder: freed a block twice: 0x";
    assert!(report.starts_with(first), "{report}");
    assert!(report.contains(": 160 bytes, "), "{report}");
    for (heading, function) in [
        ("found by", "frees_it"),
        ("freed by", "frees_it"),
        ("allocated by", "allocates_it"),
    ] {
        assert_calls(
            &report,
            heading,
            &[function, "frees_it_twice", "does_one_thing"],
        );
    }
}

#[test]
fn what_is_not_freed_is_said_at_the_end() {
    let end = run("checking", "leaks", &[("LARDER_LEAKS", "yes")]);
    let report = end.report;
    assert!(end.status.success(), "{report}");
    assert!(
        report.contains("larder: not freed at the end, by "),
        "{report}"
    );
    let functions = ["allocates_it", "leaks", "does_one_thing"];
    assert_calls(&report, "8000 bytes in 50 blocks", &functions);
}

#[test]
fn what_the_heap_holds_is_said_at_the_end() {
    let end = run("checking", "block", &[("LARDER_STATS", "yes")]);
    let report = end.report;
    assert!(end.status.success(), "{report}");
    let lines: Vec<&str> = report.lines().map(str::trim).collect();
    assert!(lines[0].starts_with("larder: the heap of process "));
    assert!(lines[1].starts_with("live_bytes "), "{report}");
    assert!(lines[11].starts_with("peak_bytes "), "{report}");
}

#[test]
fn a_hook_that_panics_ends_the_process_and_does_not_unwind_through_the_allocator() {
    let end = run("hardened", "panics", &[]);
    assert_eq!(end.status.signal(), Some(libc::SIGABRT), "{}", end.said);
    assert!(!end.said.contains("unwound"), "{}", end.said);
}

#[test]
fn steps_of_a_hardened_heap_are_not_planned_and_harm_nothing() {
    run("hardened", "steps", &[]).assert_well("steps");
}
