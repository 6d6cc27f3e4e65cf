//! What the checking heap adds to the hardened one: stacks, threads, lengths and leaks. Also the
//! reactions to misuse that a program can choose.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::common::is_long;
use crate::hardened::in_mode;
use crate::program::Heap::{Alone, Inside, Linked, Preloaded, System};
use crate::program::{
    End, Heap, command, compile, compile_library_with, compile_with_names, run, times,
};

/// Returns the lines of a report below a heading, up to the next heading.
fn under<'a>(report: &'a str, heading: &str) -> Vec<&'a str> {
    let lines = report
        .lines()
        .skip_while(|line| !line.trim().starts_with(heading));
    let frames = lines.skip(1).take_while(|line| line.starts_with("    "));
    frames.collect()
}

/// Returns the number of the thread that a heading names.
fn thread<'a>(report: &'a str, heading: &str) -> &'a str {
    let mut lines = report.lines().map(str::trim);
    let line = lines.find(|line| line.starts_with(heading)).unwrap();
    line.rsplit(' ').next().unwrap()
}

fn assert_calls(report: &str, heading: &str, functions: &[&str]) {
    let frames = under(report, heading);
    // The allocator's caller comes first.
    let first = format!(" {}", functions[0]);
    assert!(frames[0].ends_with(&first), "{heading}: {report}");
    let mut rest = frames.iter();
    for function in functions {
        let name = format!(" {function}");
        assert!(
            rest.any(|frame| frame.ends_with(&name)),
            "{heading} {function}: {report}"
        );
    }
    for frame in frames {
        let place = frame.split_whitespace().nth(1).unwrap();
        assert!(place.starts_with('/') && place.contains("+0x"), "{report}");
    }
}

fn checking(program: &Path, heap: Heap, misuse: &str) -> End {
    in_mode("checking", program, heap, &[misuse])
}

#[test]
fn a_report_has_the_block_and_the_stacks_that_allocated_freed_and_misused_it() {
    for heap in [Linked, Preloaded, Inside] {
        let program = compile_with_names("stacks.c", heap);
        for (misuse, detail) in [
            ("twice", ": index 0"),
            ("past", ": index 103, 4 bytes past its last byte"),
            ("before", ": index -16, 16 bytes before its first byte"),
            ("inside", ": index 40"),
        ] {
            let end = checking(&program, heap, misuse);
            let (block, report) = (end.text(), end.complaints());
            let block = block.trim();
            assert_eq!(end.status.signal(), Some(libc::SIGABRT), "{report}");
            let second = report.lines().nth(1).unwrap();
            let start = format!("  block {block}: 100 bytes, ");
            assert!(second.starts_with(&start), "{report}");
            assert!(second.contains(" granted, aligned to 16, "), "{report}");
            assert!(report.lines().nth(2).unwrap().ends_with(detail), "{report}");
            assert_calls(&report, "allocated", &["allocates_it", "main"]);
            assert_calls(&report, "found", &["misuses_it", "main"]);
            match misuse {
                "inside" => assert!(!report.contains("  freed by"), "{report}"),
                "twice" => assert_calls(&report, "freed", &["frees_it", "main"]),
                _ => assert_calls(&report, "freed", &["misuses_it", "main"]),
            }
        }
    }
}

#[test]
fn a_report_has_as_many_frames_as_are_wished() {
    let program = compile_with_names("stacks.c", Linked);
    for (frames, names) in [
        ("0", vec![]),
        ("1", vec!["allocates_it"]),
        ("2", vec!["allocates_it", "main"]),
    ] {
        let mut command = command(&program, Linked);
        command
            .env("LARDER_MODE", "checking")
            .env("LARDER_STACK_FRAMES", frames);
        let report = run(command.arg("twice")).complaints();
        let kept = under(&report, "allocated");
        let kept = kept.iter().filter(|frame| **frame != "    no stack");
        let kept: Vec<_> = kept.map(|frame| frame.rsplit(' ').next()).collect();
        let expected: Vec<_> = names.into_iter().map(Some).collect();
        assert_eq!(kept, expected, "{frames}: {report}");
    }
}

/// The program has frames of various lengths, signal handlers, code without unwind tables, threads,
/// stacks of its own, and a library loaded where another one was.
#[test]
fn stacks_are_those_of_the_c_library_however_the_program_came_there() {
    let libraries = ["-DWORDS=100", "-DWORDS=200"]
        .map(|words| compile_library_with("walks-library.c", words).into_os_string());
    for heap in [Linked, Inside] {
        let program = compile_with_names("walks.c", heap);
        let mut command = command(&program, heap);
        command
            .env("LARDER_MODE", "checking")
            .env("LARDER_STACK_FRAMES", "32")
            .arg(times().to_string())
            .args(&libraries);
        let end = run(&mut command);
        end.assert_says("as expected\n", "");
    }
}

#[test]
fn a_report_says_which_threads_did_it() {
    let program = compile_with_names("stacks.c", Linked);
    let report = checking(&program, Linked, "twice-in-threads").complaints();
    let [found, allocated, freed] =
        ["found", "allocated", "freed"].map(|heading| thread(&report, heading));
    assert_eq!(found, allocated, "{report}");
    assert_ne!(found, freed, "{report}");
    assert_calls(&report, "freed", &["frees_it", "in_a_thread"]);
}

#[test]
fn a_program_goes_on_where_that_is_wished() {
    for mode in ["hardened", "checking"] {
        let program = compile("stacks.c", Linked);
        for misuse in ["twice", "past", "inside"] {
            let mut command = command(&program, Linked);
            command
                .env("LARDER_MODE", mode)
                .env("LARDER_ON_MISUSE", "report");
            let end = run(command.arg(misuse));
            assert!(end.status.success(), "{misuse}: {}", end.status);
            assert!(
                end.text().ends_with("went on\n"),
                "{misuse}: {}",
                end.text()
            );
            let complaints = end.complaints();
            let said = complaints.matches("larder: ").count();
            assert_eq!(said, 1, "{misuse}: {complaints}");
        }
    }
}

#[test]
fn what_is_not_freed_is_said_at_the_end_by_the_place_that_allocated_it() {
    for heap in [Linked, Preloaded, Inside] {
        let program = compile_with_names("stacks.c", heap);
        for (leaks, mode) in [("yes", "checking"), ("no", "checking"), ("yes", "hardened")] {
            let mut command = command(&program, heap);
            command.env("LARDER_MODE", mode).env("LARDER_LEAKS", leaks);
            let end = run(command.arg("leaks"));
            let report = end.complaints();
            assert!(end.status.success(), "{report}");
            if leaks == "no" {
                assert_eq!(report, "");
                continue;
            }
            if mode != "checking" {
                let line = "larder: LARDER_LEAKS has no effect without LARDER_MODE=checking\n";
                assert_eq!(report, line);
                continue;
            }
            assert!(
                report.starts_with("larder: not freed at the end, by "),
                "{report}"
            );
            assert_calls(
                &report,
                "3000 bytes in 30 blocks",
                &["allocates_it", "leaks", "main"],
            );
            assert!(!report.contains("7000 bytes"), "{report}");
            // The program's own blocks come before those of libraries, which may have more bytes.
            let second = report.lines().nth(1);
            assert_eq!(second, Some("  3000 bytes in 30 blocks:"), "{report}");
            let copied = " in 1 block, allocated by a library:";
            assert!(report.contains(copied), "{report}");
        }
    }
}

/// Kinds of misuse, and whether only a checking heap detects them.
const KINDS: [(&str, bool); 10] = [
    ("twice", false),
    ("resize-freed", false),
    ("inside", false),
    ("resize-inside", false),
    ("foreign", false),
    ("layout", false),
    ("past", false),
    ("before", true),
    ("after-free-soon", false),
    ("after-free", false),
];

#[test]
fn a_hook_is_told_of_each_misuse_at_random_moments_and_of_nothing_else() {
    let program = compile("misuse_random.c", Linked);
    let count = if is_long() { "1000" } else { "20" };
    for (mode, is_checking) in [("hardened", "0"), ("checking", "1")] {
        for (kind, for_checking) in KINDS {
            if for_checking && mode != "checking" {
                continue;
            }
            let end = in_mode(mode, &program, Linked, &[kind, count, "1", is_checking]);
            end.assert_says("told of each\n", &format!("{kind} {mode}"));
        }
    }
}

#[test]
fn programs_without_an_unwinder_are_checked_without_stacks() {
    // A static program cannot load the unwinder.
    let program = compile("stacks.c", Alone);
    let end = checking(&program, System, "twice");
    end.assert_ended_by(libc::SIGABRT, "larder: freed a block twice: 0x", "");
    let report = end.complaints();
    assert_eq!(under(&report, "allocated"), ["    no stack"], "{report}");
}
