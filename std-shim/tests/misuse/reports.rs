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

/// Asserts that the frames below a heading contain calls by these functions, in this order.
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
            let is_there = rest.any(|frame| frame.contains(function));
            assert!(is_there, "{function}: {report}");
        }
    }
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
