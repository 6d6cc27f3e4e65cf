//! The environment variables that tune a program's heap, and the settings that a program changes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use crate::program::Heap::{Inside, Linked, Preloaded, System};
use crate::program::{End, Heap, command, compile, run};

/// Each variable with valid values, and the text that the heap prints for other values.
const VARIABLES: [(&str, &[&str], &str); 10] = [
    (
        "LARDER_MODE",
        &["balanced", "speed", "memory", "hardened", "checking"],
        "balanced, speed, memory, hardened or checking",
    ),
    (
        "LARDER_PURGE_AFTER",
        &["0", "1", "1000", "18446744073709551615", "never"],
        "milliseconds, or never",
    ),
    ("LARDER_BACKGROUND_PURGE", &["yes", "no"], "yes or no"),
    (
        "LARDER_HUGE_PAGES",
        &["0", "1", "64", "17592186044415", "1.5GiB", "never"],
        "a size such as 64MiB, or never",
    ),
    ("LARDER_ON_MISUSE", &["abort", "report"], "abort or report"),
    ("LARDER_LEAKS", &["yes", "no"], "yes or no"),
    ("LARDER_STATS", &["no"], "yes or no"),
    (
        "LARDER_STACK_FRAMES",
        &["0", "1", "32"],
        "a number up to 32",
    ),
    (
        "LARDER_GUARD",
        &["1", "1000", "4294967295", "never"],
        "a number above 0, or never",
    ),
    ("LARDER_GUARD_FAULTS", &["yes", "no"], "yes or no"),
];

const BAD: [&str; 6] = ["", "some", "-1", "1.5", "99999999999999999999", "never "];

const PROGRAM: &str = "shuffle.c";

fn run_with(program: &std::path::Path, heap: Heap, variables: &[(&str, &str)]) -> End {
    let variables = variables.iter().copied();
    run(command(program, heap).arg("2").envs(variables))
}

#[test]
fn values_that_are_understood_are_not_spoken_of() {
    let program = compile(PROGRAM, System);
    let expected = run_with(&program, System, &[]);
    for (name, values, _) in VARIABLES {
        for value in values {
            // Some variables need one of these.
            let with = match name {
                "LARDER_LEAKS" | "LARDER_ON_MISUSE" => ("LARDER_MODE", "checking"),
                _ => ("LARDER_GUARD", "1000000"),
            };
            let mut end = run_with(&program, Preloaded, &[with, (name, value)]);
            if (name, *value) == ("LARDER_LEAKS", "yes") {
                end.err.clear();
            }
            assert_eq!(end, expected, "{name}={value}");
        }
    }
}

#[test]
fn a_variable_without_the_one_that_it_needs_is_said_once() {
    let program = compile(PROGRAM, System);
    for (name, value, needed) in [
        ("LARDER_LEAKS", "yes", "LARDER_MODE=checking"),
        ("LARDER_GUARD_FAULTS", "yes", "LARDER_GUARD"),
        (
            "LARDER_ON_MISUSE",
            "report",
            "LARDER_MODE=hardened or checking, or LARDER_GUARD",
        ),
    ] {
        let end = run_with(&program, Preloaded, &[(name, value)]);
        let line = format!("larder: {name} has no effect without {needed}\n");
        assert_eq!(end.complaints(), line);
    }
}

#[test]
fn a_value_that_is_not_understood_is_said_once_and_changes_nothing() {
    let program = compile(PROGRAM, System);
    let expected = run_with(&program, System, &[]);
    let line = |name, values| format!("larder: {name} is ignored: it must be {values}\n");
    for (name, _, values) in VARIABLES {
        for bad in BAD {
            let end = run_with(&program, Preloaded, &[(name, bad)]);
            assert_eq!(end.complaints(), line(name, values), "{name}={bad}");
            assert_eq!(
                (end.status, end.out),
                (expected.status, expected.out.clone())
            );
        }
    }
    let all = VARIABLES.map(|(name, ..)| (name, "?"));
    let lines: String = VARIABLES
        .map(|(name, _, values)| line(name, values))
        .concat();
    assert_eq!(run_with(&program, Preloaded, &all).complaints(), lines);
}

#[test]
fn a_variable_that_is_misspelt_is_said_once_and_those_of_other_parts_are_not() {
    let program = compile(PROGRAM, System);
    let others = [
        ("LARDER_RECORD_FROM", "1"),
        ("LARDER_CUDA_LIMIT", "1"),
        ("LARDER_STAND_IN_BYTES", "1"),
        ("OLARDER_MODE", "1"),
        ("LARDER", "1"),
        ("LARDER_\x1b[1m", "1"),
    ];
    assert_eq!(run_with(&program, Preloaded, &others).complaints(), "");
    let misspelt = [others[0], ("LARDER_MOD", "speed"), ("LARDER_LEAKS", "no")];
    assert_eq!(
        run_with(&program, Preloaded, &misspelt).complaints(),
        "larder: LARDER_MOD is ignored: there is no such variable\n"
    );
}

#[test]
fn linked_programs_have_the_variables_too() {
    for heap in [Linked, Inside] {
        let end = run_with(&compile(PROGRAM, heap), heap, &[("LARDER_MODE", "some")]);
        assert!(
            end.complaints()
                .starts_with("larder: LARDER_MODE is ignored"),
            "{heap:?}"
        );
        assert!(end.status.success());
    }
}

#[test]
fn a_thread_of_the_heap_s_own_is_there_if_it_is_asked_for() {
    let program = compile("single.c", System);
    for (asked, is_alone) in [("no", true), ("yes", false)] {
        let mut command = command(&program, Preloaded);
        let end = run(command.env("LARDER_BACKGROUND_PURGE", asked));
        assert_eq!(end.status.success(), is_alone, "{asked}: {}", end.text());
    }
}

#[test]
fn a_program_changes_its_delay_and_its_limit_while_it_runs() {
    for asked in ["no", "yes"] {
        let mut command = command(compile("settings.c", Inside), Inside);
        let end = run(command.env("LARDER_BACKGROUND_PURGE", asked));
        end.assert_says("settings\n", asked);
    }
}

#[test]
fn a_program_with_rights_of_its_file_takes_no_notice() {
    let program = compile("rights.c", Inside);
    // The kernel runs a program with this bit with the privileges of its owner.
    let is_prepared = chown(&program, Some(65534), None).is_ok()
        && fs::set_permissions(&program, Permissions::from_mode(0o4755)).is_ok();
    let end = run(command(&program, Inside).env("LARDER_MODE", "some"));
    assert!(end.status.success());
    if !is_prepared || end.text() != "foreign rights\n" {
        println!("skipped: no program can be given foreign rights here");
        return;
    }
    assert_eq!(end.complaints(), "");
}
