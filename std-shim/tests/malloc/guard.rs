//! Blocks with guard pages: programs without misuse print the same, an access to such a page ends the process by a
//! fault, which is explained on request, and other misuse of these blocks is found.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::program::Heap::{Linked, Preloaded, System};
use crate::program::{
    End, Heap, command, compile, compile_with_names, contract_arguments, run, times,
};

/// With guard pages for one block in so many.
fn guarded(one_in: &str, program: &Path, heap: Heap, arguments: &[&str]) -> End {
    run(command(program, heap)
        .args(arguments)
        .envs([("LARDER_GUARD", one_in), ("LARDER_GUARD_FAULTS", "yes")]))
}

const LENGTHS: [&str; 4] = ["1", "100", "1024", "4000"];

#[test]
fn who_touches_a_guard_or_a_freed_block_faults_and_it_is_explained() {
    let program = compile_with_names("guard.c", Linked);
    for (misuse, words) in [
        ("past", "larder: read or wrote past the end of a block: 0x"),
        (
            "before",
            "larder: read or wrote before the start of a block: 0x",
        ),
        (
            "read-past",
            "larder: read or wrote past the end of a block: 0x",
        ),
        ("freed", "larder: read or wrote a block that was freed: 0x"),
        (
            "read-freed",
            "larder: read or wrote a block that was freed: 0x",
        ),
    ] {
        for length in LENGTHS {
            let end = guarded("1", &program, Linked, &[misuse, length, "0"]);
            let (said, report) = (end.text(), end.complaints());
            let what = format!("{misuse} {length}: {}{said}{report}", end.status);
            assert_eq!(end.status.signal(), Some(libc::SIGSEGV), "{what}");
            assert!(report.starts_with(words), "{what}");
            let block = format!("  block {}: {length} bytes, ", said.trim());
            assert!(report.lines().nth(1).unwrap().starts_with(&block), "{what}");
            // The first is the function that faulted, or asked for the block.
            for (heading, function) in [("found by", " touch"), ("allocated by", " main")] {
                let mut lines = report.lines().skip_while(|line| !line.contains(heading));
                let first = lines.nth(1).unwrap();
                assert!(first.ends_with(function), "{heading}: {what}");
            }
            assert_eq!(
                report.contains("  freed by"),
                misuse.ends_with("freed"),
                "{what}"
            );
        }
    }
}

#[test]
fn a_fault_that_nobody_wants_explained_is_the_program_s() {
    let program = compile("guard.c", Linked);
    let mut silent = command(&program, Linked);
    let end = run(silent.args(["past", "100", "0"]).env("LARDER_GUARD", "1"));
    assert_eq!(end.status.signal(), Some(libc::SIGSEGV));
    assert_eq!(end.complaints(), "");
    // A handler of the program's own gets the fault in the end.
    let end = guarded("1", &program, Linked, &["own-handler", "100", "0"]);
    assert_eq!(end.status.code(), Some(7), "{}", end.text());
    assert!(end.text().ends_with("own handler\n"));
}

#[test]
fn other_misuse_of_these_blocks_is_found() {
    let program = compile("guard.c", Linked);
    for (misuse, words) in [
        ("twice", "larder: freed a block twice: 0x"),
        (
            "inside",
            "larder: freed an address where no block of this heap starts: 0x",
        ),
        ("slack", "larder: wrote past the end of a block: 0x"),
        (
            "realloc-freed",
            "larder: resized a block that was freed: 0x",
        ),
        (
            "realloc-inside",
            "larder: resized an address where no block of this heap starts: 0x",
        ),
    ] {
        for length in ["1", "100", "1023", "4000"] {
            // A block that fills its room leaves none to be looked at.
            if misuse == "slack" && length == "4000" {
                continue;
            }
            let end = guarded("1", &program, Linked, &[misuse, length, "0"]);
            let what = format!("{misuse} {length}: {}{}", end.status, end.complaints());
            assert_eq!(end.status.signal(), Some(libc::SIGABRT), "{what}");
            assert!(end.complaints().starts_with(words), "{what}");
        }
    }
}

#[test]
fn blocks_lie_at_both_sides_of_their_pages() {
    let program = compile("guard.c", Linked);
    let end = guarded("1", &program, Linked, &["places", "100", "0"]);
    assert!(end.text().ends_with("went on\n"), "{}", end.text());
}

#[test]
fn a_heap_that_looks_at_every_block_has_none() {
    let program = compile("guard.c", Linked);
    for mode in ["hardened", "checking"] {
        let mut command = command(&program, Linked);
        command
            .args(["nothing", "100", "600"])
            .env("LARDER_MODE", mode);
        let end = run(command.env("LARDER_GUARD", "1"));
        assert!(end.status.success(), "{}", end.complaints());
    }
}

#[test]
fn programs_without_a_misuse_say_what_they_always_say() {
    let rounds = times().to_string();
    for (name, arguments) in [
        ("guard.c", vec!["nothing", "100", "600"]),
        ("contract.c", contract_arguments().to_vec()),
        ("early.c", vec![]),
        ("shuffle.c", vec![rounds.as_str()]),
        ("forks.c", vec!["5"]),
        ("thread_ends.cpp", vec!["5"]),
        ("signals.c", vec![rounds.as_str()]),
        ("operators.cpp", vec!["5"]),
        ("replaced.cpp", vec![]),
    ] {
        let program = compile(name, System);
        let expected = run(command(&program, System).args(&arguments));
        assert!(expected.status.success(), "{name}");
        for one_in in ["1", "10"] {
            let end = guarded(one_in, &program, Preloaded, &arguments);
            let (said, complaints) = (end.text(), end.complaints());
            let what = format!("{name} {one_in}: {}{said}{complaints}", end.status);
            if name == "guard.c" {
                assert!(
                    end.status.success() && said.ends_with("went on\n"),
                    "{what}"
                );
                assert_eq!(complaints, "", "{what}");
            } else {
                assert!(end == expected, "{what}");
            }
        }
    }
}
