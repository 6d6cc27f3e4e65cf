//! Blocks with guard pages. An access to such a page ends the process with a fault, explained on
//! request. Other misuse of these blocks is detected. Programs without misuse are in `life`.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::program::Heap::Linked;
use crate::program::{End, Heap, command, compile, compile_with_names, run};

/// What a process says once if it needs more guard pages.
pub(crate) const ALL_IN_USE: &str =
    "larder: all 1024 guard pages are in use: further blocks have none\n";

/// Runs a program with guard pages for one block in `one_in`.
fn guarded(one_in: &str, program: &Path, heap: Heap, arguments: &[&str]) -> End {
    run(command(program, heap)
        .args(arguments)
        .envs([("LARDER_GUARD", one_in), ("LARDER_GUARD_FAULTS", "yes")]))
}

#[test]
fn who_touches_a_guard_or_a_freed_block_faults_and_it_is_explained() {
    let program = compile_with_names("guard.c", Linked);
    for (misuse, words) in [
        ("past", "past the end of a block"),
        ("before", "before the start of a block"),
        ("read-past", "past the end of a block"),
        ("freed", "a block that was freed"),
        ("read-freed", "a block that was freed"),
    ] {
        for length in ["1", "100", "1024", "4000"] {
            let end = guarded("1", &program, Linked, &[misuse, length, "0"]);
            let (said, report) = (end.text(), end.complaints());
            let what = format!("{misuse} {length}: {said}{report}");
            let first = format!("larder: read or wrote {words}: 0x");
            end.assert_ended_by(libc::SIGSEGV, &first, &what);
            let bytes = if length == "1" { "byte" } else { "bytes" };
            let block = format!("  block {}: {length} {bytes}, ", said.trim());
            assert!(report.lines().nth(1).unwrap().starts_with(&block), "{what}");
            // The first frame is the function that faulted or that allocated the block.
            for (heading, function) in [("found by", " touch"), ("allocated by", " main")] {
                let mut lines = report.lines().skip_while(|line| !line.contains(heading));
                let first = lines.nth(1).unwrap();
                assert!(first.ends_with(function), "{heading}: {what}");
            }
            let is_freed = report.contains("  freed by");
            assert_eq!(is_freed, misuse.ends_with("freed"), "{what}");
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
    // The fault finally goes to the program's own handler.
    let end = guarded("1", &program, Linked, &["own-handler", "100", "0"]);
    assert_eq!(end.status.code(), Some(7), "{}", end.text());
    assert!(end.text().ends_with("own handler\n"));
    // A signal that a process sends ends the program, too.
    let end = guarded("1", &program, Linked, &["sent", "100", "0"]);
    end.assert_ended_by(libc::SIGSEGV, "", "sent");
    assert_eq!(end.complaints(), "");
}

#[test]
fn other_misuse_of_these_blocks_is_found() {
    let program = compile("guard.c", Linked);
    let no_block = "an address where no block of this heap starts: 0x";
    for (misuse, words) in [
        ("twice", "freed a block twice: 0x"),
        ("inside", &format!("freed {no_block}")),
        ("slack", "wrote past the end of a block: 0x"),
        ("realloc-freed", "resized a block that was freed: 0x"),
        ("realloc-inside", &format!("resized {no_block}")),
    ] {
        for length in ["1", "100", "1023", "4000"] {
            // A block that fills its page has no slack to be checked.
            if misuse == "slack" && length == "4000" {
                continue;
            }
            let end = guarded("1", &program, Linked, &[misuse, length, "0"]);
            let words = format!("larder: {words}");
            end.assert_ended_by(libc::SIGABRT, &words, &format!("{misuse} {length}"));
        }
    }
}

#[test]
fn blocks_lie_at_both_sides_of_their_pages() {
    let program = compile("guard.c", Linked);
    let end = guarded("1", &program, Linked, &["places", "100", "0"]);
    end.assert_says("went on\n", "places");
}

/// A heap that verifies every block has no guard pages.
#[test]
fn blocks_with_a_page_and_without_come_and_go() {
    let program = compile("guard.c", Linked);
    for (mode, one_in) in [
        ("balanced", "1"),
        ("balanced", "10"),
        ("hardened", "1"),
        ("checking", "1"),
    ] {
        let variables = [("LARDER_MODE", mode), ("LARDER_GUARD", one_in)];
        let mut command = command(&program, Linked);
        let end = run(command.args(["nothing", "100", "600"]).envs(variables));
        let what = format!("{mode} {one_in}: {}{}", end.text(), end.complaints());
        assert!(end.status.success(), "{what}");
        assert!(end.text().ends_with("went on\n"), "{what}");
        let is_full = (mode, one_in) == ("balanced", "1");
        assert_eq!(
            end.complaints(),
            if is_full { ALL_IN_USE } else { "" },
            "{what}"
        );
    }
}
