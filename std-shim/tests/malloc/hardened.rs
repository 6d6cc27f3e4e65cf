//! The hardened heap and the checking one: each misuse ends the program with a line that names the
//! misuse and the address. Programs without misuse are in `life`.

use std::path::Path;

use crate::program::Heap::{Linked, Preloaded, System};
use crate::program::{End, Heap, command, compile, run};

const MODES: [&str; 2] = ["hardened", "checking"];

const NO_BLOCK: &str = "larder: freed an address where no block of this heap starts: 0x";
const TWICE: &str = "larder: freed a block twice: 0x";
const OTHER_LAYOUT: &str =
    "larder: freed a block with another layout than it was allocated with: 0x";
const PAST: &str = "larder: wrote past the end of a block: 0x";
const BEFORE: &str = "larder: wrote before the start of a block: 0x";
const BENT: &str = "larder: wrote to free memory, which would be allocated twice: 0x";
const AFTER: &str = "larder: wrote to a block that was freed: 0x";

/// Each misuse, the beginning of its report, and whether the report names the block's own address.
const MISUSES: [(&str, &str, bool); 24] = [
    ("twice", TWICE, true),
    ("twice-others-between", TWICE, true),
    ("twice-in-threads", TWICE, true),
    // By then another block may have been allocated there and freed.
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

/// Lengths up to large blocks; all but the first fill a block of the plain heap.
const LENGTHS: [&str; 6] = ["8", "16", "1024", "4096", "131072", "262144"];

/// Misuse that only the checking heap detects.
const MORE_MISUSES: [(&str, &str, bool); 5] = [
    ("before-1", BEFORE, true),
    ("before-16", BEFORE, true),
    ("before-realloc", BEFORE, true),
    ("before-not-freed", BEFORE, true),
    ("freed-zero", AFTER, true),
];

fn misuses(mode: &str) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    let is_checking = mode == "checking";
    let more = MORE_MISUSES.into_iter().filter(move |_| is_checking);
    // Where the next block has a front, the program cannot find the last byte of its block.
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
                end.assert_ended_by(libc::SIGABRT, words, &what);
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

/// Other misuse: its lengths, the signal that ends the program, and the beginning of the report.
const OTHERS: [(&str, &[&str], libc::c_int, &str); 8] = [
    // A changed link ends the program when it is read.
    ("list-bent", &["20", "1000"], libc::SIGABRT, AFTER),
    ("list-first-byte", &["20", "1000"], libc::SIGABRT, AFTER),
    ("list-last-byte", &["20", "1000"], libc::SIGABRT, AFTER),
    ("list-overwritten", &["20", "1000"], libc::SIGABRT, AFTER),
    // A changed list does not allocate a block that is in use.
    ("early-bent", &["20", "1000"], libc::SIGABRT, BENT),
    // A block of zero bytes can be neither read nor written.
    ("nothing-read", &["16"], libc::SIGSEGV, ""),
    ("nothing-write", &["16"], libc::SIGSEGV, ""),
    ("nothing-twice", &["16"], libc::SIGABRT, NO_BLOCK),
];

#[test]
fn links_that_were_changed_and_blocks_of_nothing_are_looked_at_too() {
    let program = compile("misuse_hardened.c", Linked);
    for mode in MODES {
        for (misuse, lengths, signal, words) in OTHERS {
            for length in lengths {
                let end = in_mode(mode, &program, Linked, &[misuse, length]);
                end.assert_ended_by(signal, words, &format!("{misuse} {length} {mode}"));
            }
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
        // Their memory has been returned to the system by then.
        if words == AFTER {
            continue;
        }
        // The first two in an arena, the last in a mapping of its own.
        for length in ["1048576", "5000000", "1200000000"] {
            let end = in_mode(mode, &program, Linked, &[misuse, length]);
            // The block no longer exists.
            let expected = match misuse {
                "twice" | "twice-others-between" | "twice-in-threads" => NO_BLOCK,
                "realloc-freed" => "larder: resized an address",
                _ => words,
            };
            let what = format!("{misuse} {length} {mode}");
            end.assert_ended_by(libc::SIGABRT, expected, &what);
        }
    }
}

#[test]
fn a_delete_that_knows_another_length_or_alignment_is_found() {
    let program = compile("misuse_hardened.cpp", System);
    let words = [
        OTHER_LAYOUT,
        OTHER_LAYOUT,
        OTHER_LAYOUT,
        OTHER_LAYOUT,
        NO_BLOCK,
    ];
    for (number, words) in words.into_iter().enumerate() {
        let number = number.to_string();
        let end = in_mode("hardened", &program, Preloaded, &[&number]);
        end.assert_ended_by(libc::SIGABRT, words, &number);
    }
    // The heap does not check a length that the program's own `new` did not pass to it.
    for name in ["misuse_hardened.cpp", "longer_new.cpp"] {
        let end = in_mode("hardened", &compile(name, System), Preloaded, &["5"]);
        end.assert_says("went on\n", name);
    }
}

#[test]
fn blocks_are_zero_exact_and_apart() {
    let program = compile("hardened.c", Linked);
    for mode in MODES {
        let end = in_mode(mode, &program, Linked, &[]);
        end.assert_says("all were as they should be\n", mode);
    }
}

#[test]
fn what_was_allocated_before_the_environment_was_there_may_be_freed() {
    let program = compile("no_environment.c", Linked);
    for mode in MODES {
        for count in ["1", "90", "5000"] {
            let end = in_mode(mode, &program, Linked, &[count]);
            end.assert_says("all were freed\n", &format!("{count} {mode}"));
        }
        let end = in_mode(mode, &program, Linked, &["90", "twice"]);
        end.assert_ended_by(libc::SIGABRT, TWICE, mode);
    }
}
