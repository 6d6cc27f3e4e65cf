//! The hardened heap and the checking one: each misuse ends the program with a line that names it and its place, and
//! programs without misuse print the same as on the C library's heap.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::program::Heap::{Linked, Preloaded, System};
use crate::program::{End, Heap, command, compile, contract_arguments, run, times};

const MODES: [&str; 2] = ["hardened", "checking"];

const NO_BLOCK: &str = "larder: freed an address where no block of this heap starts: 0x";
const TWICE: &str = "larder: freed a block twice: 0x";
const OTHER_LAYOUT: &str =
    "larder: freed a block with another layout than it was allocated with: 0x";
const PAST: &str = "larder: wrote past the end of a block: 0x";
const BEFORE: &str = "larder: wrote before the start of a block: 0x";
const BENT: &str = "larder: wrote to free memory, which would be allocated twice: 0x";
const AFTER: &str = "larder: wrote to a block that was freed: 0x";

/// Each misuse with what is said of it, and whether the address is the block's own.
const MISUSES: [(&str, &str, bool); 24] = [
    ("twice", TWICE, true),
    ("twice-others-between", TWICE, true),
    ("twice-in-threads", TWICE, true),
    // What starts there now may be another block, freed in its turn.
    ("twice-later", "larder: freed a", true),
    (
        "realloc-freed",
        "larder: resized a block that was freed: 0x",
        true,
    ),
    ("inside-8", NO_BLOCK, false),
    ("inside-1", NO_BLOCK, false),
    ("inside-page", NO_BLOCK, false),
    ("stack", NO_BLOCK, false),
    ("static", NO_BLOCK, false),
    ("number", NO_BLOCK, false),
    (
        "realloc-inside",
        "larder: resized an address where no block of this heap starts: 0x",
        false,
    ),
    ("free_sized", OTHER_LAYOUT, true),
    ("free_aligned_sized-bytes", OTHER_LAYOUT, false),
    ("free_aligned_sized-align", OTHER_LAYOUT, false),
    ("past-zero", PAST, true),
    ("past-last", PAST, true),
    ("past-realloc", PAST, true),
    ("past-realloc-away", PAST, true),
    ("past-not-freed", PAST, true),
    ("past-by-another-allocation", PAST, true),
    ("freed-soon", AFTER, true),
    ("freed-later", AFTER, true),
    ("freed-in-slack", AFTER, true),
];

/// Lengths from the shortest class to blocks without one; all but the first are whole classes of the plain heap.
const LENGTHS: [&str; 6] = ["8", "16", "1024", "4096", "131072", "262144"];

/// Found by the checking heap only.
const MORE_MISUSES: [(&str, &str, bool); 5] = [
    ("before-1", BEFORE, true),
    ("before-16", BEFORE, true),
    ("before-realloc", BEFORE, true),
    ("before-not-freed", BEFORE, true),
    ("freed-zero", AFTER, true),
];

/// Returns the misuse that a mode finds.
fn misuses(mode: &str) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    let is_checking = mode == "checking";
    let more = MORE_MISUSES.into_iter().filter(move |_| is_checking);
    // Where the next block has a front, the program cannot tell where the last byte is.
    let all = MISUSES
        .into_iter()
        .filter(move |(misuse, ..)| !(is_checking && *misuse == "past-last"));
    all.chain(more)
}

pub(crate) fn in_mode(mode: &str, program: &Path, heap: Heap, arguments: &[&str]) -> End {
    run(command(program, heap)
        .args(arguments)
        .env("LARDER_MODE", mode))
}

#[test]
fn each_misuse_is_found_whatever_the_length_of_the_block() {
    let program = compile("misuse_hardened.c", Linked);
    for mode in MODES {
        for (misuse, words, is_block) in misuses(mode) {
            for length in LENGTHS {
                let end = in_mode(mode, &program, Linked, &[misuse, length]);
                let (said, complaints) = (end.text(), end.complaints());
                let what = format!("{misuse} of {length}, {mode}: {said}{complaints}");
                assert_eq!(end.status.signal(), Some(libc::SIGABRT), "{what}");
                assert!(complaints.starts_with(words), "{what}");
                assert_eq!(complaints.lines().count() > 1, mode == "checking", "{what}");
                assert_eq!(said.lines().count(), 1, "{what}");
                if is_block {
                    let first = complaints.lines().next();
                    assert!(first.unwrap().ends_with(said.trim()), "{what}");
                }
            }
        }
    }
}

#[test]
fn a_link_that_was_changed_ends_the_program_when_it_is_read() {
    let program = compile("misuse_hardened.c", Linked);
    for mode in MODES {
        for length in ["20", "1000"] {
            for change in ["bent", "first-byte", "last-byte", "overwritten"] {
                let change = &format!("list-{change}");
                let end = in_mode(mode, &program, Linked, &[change, length]);
                let (said, complaints) = (end.text(), end.complaints());
                let what = format!("{change} {length} {mode}: {said}{complaints}");
                assert_eq!(end.status.signal(), Some(libc::SIGABRT), "{what}");
                assert!(complaints.starts_with(AFTER), "{what}");
                assert!(!said.contains("went on"), "{what}");
            }
        }
    }
}

#[test]
fn a_block_in_use_is_not_given_again_by_a_list_that_was_bent() {
    let program = compile("misuse_hardened.c", Linked);
    for mode in MODES {
        for length in ["20", "1000"] {
            let end = in_mode(mode, &program, Linked, &["early-bent", length]);
            let complaints = end.complaints();
            let what = format!("{length} {mode}: {}{complaints}", end.text());
            assert_eq!(end.status.signal(), Some(libc::SIGABRT), "{what}");
            assert!(complaints.starts_with(BENT), "{what}");
        }
    }
}

#[test]
fn a_block_of_nothing_can_be_neither_read_nor_written() {
    let program = compile("misuse_hardened.c", Linked);
    for mode in MODES {
        for (misuse, signal) in [
            ("nothing-read", libc::SIGSEGV),
            ("nothing-write", libc::SIGSEGV),
            ("nothing-twice", libc::SIGABRT),
        ] {
            let end = in_mode(mode, &program, Linked, &[misuse, "16"]);
            assert_eq!(end.status.signal(), Some(signal), "{misuse} {mode}");
        }
    }
}

#[test]
fn longer_blocks_are_looked_at_but_for_writes_after_their_free() {
    let program = compile("misuse_hardened.c", Linked);
    for (mode, (misuse, words, _)) in MODES
        .into_iter()
        .flat_map(|mode| misuses(mode).map(move |misuse| (mode, misuse)))
    {
        // Their memory is the system's by then.
        if words == AFTER {
            continue;
        }
        // In an arena, and in a mapping of its own.
        for length in ["1048576", "5000000", "1200000000"] {
            let end = in_mode(mode, &program, Linked, &[misuse, length]);
            let complaints = end.complaints();
            assert_eq!(
                end.status.signal(),
                Some(libc::SIGABRT),
                "{misuse} {length} {mode}"
            );
            // It is no block any more.
            let expected = match misuse {
                "twice" | "twice-others-between" | "twice-in-threads" => NO_BLOCK,
                "realloc-freed" => "larder: resized an address",
                _ => words,
            };
            assert!(
                complaints.starts_with(expected),
                "{misuse} {mode}: {complaints}"
            );
        }
    }
}

#[test]
fn a_delete_that_knows_another_length_or_alignment_is_found() {
    let program = compile("misuse_hardened.cpp", System);
    for (number, words) in [
        (0, OTHER_LAYOUT),
        (1, OTHER_LAYOUT),
        (2, OTHER_LAYOUT),
        (3, OTHER_LAYOUT),
        (4, NO_BLOCK),
    ] {
        let end = in_mode("hardened", &program, Preloaded, &[&number.to_string()]);
        let complaints = end.complaints();
        assert_eq!(end.status.signal(), Some(libc::SIGABRT), "{number}");
        assert!(complaints.starts_with(words), "{number}: {complaints}");
    }
    // A length that a `new` of the program's own never told the heap is none of its business.
    for name in ["misuse_hardened.cpp", "longer_new.cpp"] {
        let end = in_mode("hardened", &compile(name, System), Preloaded, &["5"]);
        let (said, complaints) = (end.text(), end.complaints());
        assert_eq!(
            (said.as_str(), complaints.as_str()),
            ("went on\n", ""),
            "{name}"
        );
    }
}

#[test]
fn blocks_are_zero_exact_and_apart() {
    let program = compile("hardened.c", Linked);
    for mode in MODES {
        let end = in_mode(mode, &program, Linked, &[]);
        let (said, complaints) = (end.text(), end.complaints());
        assert!(end.status.success(), "{mode}: {said}{complaints}");
        assert_eq!(said, "all were as they should be\n");
    }
}

#[test]
fn programs_without_a_misuse_say_what_they_always_say() {
    let rounds = times().to_string();
    for (name, arguments) in [
        ("contract.c", contract_arguments().to_vec()),
        ("limits.c", vec![]),
        ("data_limit.c", vec![]),
        ("early.c", vec![]),
        ("shuffle.c", vec![rounds.as_str()]),
        ("forks.c", vec!["5"]),
        ("thread_ends.cpp", vec!["5"]),
        ("keys.c", vec!["5", "40"]),
        ("spawns.c", vec!["5"]),
        ("cancel.c", vec!["5"]),
        ("signals.c", vec![rounds.as_str()]),
        ("library.c", vec!["5"]),
        ("operators.cpp", vec!["5"]),
        ("replaced.cpp", vec![]),
    ] {
        let program = compile(name, System);
        let expected = run(command(&program, System).args(&arguments));
        assert!(expected.status.success(), "{name}");
        for mode in MODES {
            let end = in_mode(mode, &program, Preloaded, &arguments);
            let (said, complaints) = (end.text(), end.complaints());
            let what = format!("{name} {mode}: {}{said}{complaints}", end.status);
            assert!(end == expected, "{what}");
        }
    }
}

#[test]
fn what_was_allocated_before_the_environment_was_there_may_be_freed() {
    let program = compile("no_environment.c", Linked);
    for mode in MODES {
        for count in ["1", "90", "5000"] {
            let end = in_mode(mode, &program, Linked, &[count]);
            let complaints = end.complaints();
            assert!(end.status.success(), "{count} {mode}: {complaints}");
            assert_eq!(end.text(), "all were freed\n");
        }
        let end = in_mode(mode, &program, Linked, &["90", "twice"]);
        assert!(end.complaints().starts_with(TWICE), "{}", end.text());
    }
}
