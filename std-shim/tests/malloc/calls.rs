//! Functions that the heap calls may allocate, wait or belong to another library, and a free may
//! come from inside the C library.

use std::env;

use crate::common::is_long;
use crate::library;
use crate::program::Heap::{Preloaded, System};
use crate::program::{
    ALL, command, compile, compile_library, compile_with_names, run, same, times,
};

/// Settings that change when and in which thread memory is released, and what a free does.
const SETTINGS: [&[(&str, &str)]; 6] = [
    &[],
    &[("LARDER_PURGE_AFTER", "1")],
    &[("LARDER_BACKGROUND_PURGE", "yes")],
    &[
        ("LARDER_BACKGROUND_PURGE", "yes"),
        ("LARDER_PURGE_AFTER", "1"),
    ],
    &[("LARDER_MODE", "hardened")],
    &[("LARDER_MODE", "checking")],
];

#[test]
fn functions_of_others_that_allocate_are_called_and_none_inside_a_free() {
    let program = compile_with_names("calls.c", System);
    let rounds = times().div_ceil(4).to_string();
    let expected = run(command(&program, System).arg(&rounds));
    assert!(expected.status.success(), "{}", expected.text());
    for setting in SETTINGS {
        let mut command = command(&program, Preloaded);
        let end = run(command.arg(&rounds).envs(setting.iter().copied()));
        assert_eq!(end, expected, "{setting:?}: {}", end.text());
    }
}

#[test]
fn threads_are_joined_while_the_c_library_frees_under_its_locks() {
    let program = compile("joins.c", System);
    for setting in SETTINGS.into_iter().skip(2).take(2) {
        let mut command = command(&program, Preloaded);
        let end = run(command.arg("150").envs(setting.iter().copied()));
        assert_eq!(end.text(), "all joined\n", "{setting:?}: {end:?}");
    }
}

#[test]
fn threads_that_come_to_the_heap_at_their_very_end_leave_no_heap_behind() {
    let end = run(command(compile("late.c", System), Preloaded).arg("20"));
    assert_eq!(end.text(), "all ended\n", "{end:?}");
}

/// Returns the number of rounds. All of them may leave no more behind than half of them.
fn many() -> String {
    if is_long() { 10_000 } else { 1200 }.to_string()
}

/// Without the heap's background thread, and with it.
const BACKGROUND: [&[(&str, &str)]; 2] = [SETTINGS[0], SETTINGS[2]];

#[test]
fn threads_come_and_go_and_leave_nothing_behind() {
    let program = compile("rounds.c", System);
    for setting in BACKGROUND {
        for what in ["free", "compute", "work"] {
            let mut command = command(&program, Preloaded);
            let end = run(command.args([&many(), what]).envs(setting.iter().copied()));
            assert_eq!(end.text(), "all joined\n", "{setting:?} {what}: {end:?}");
        }
    }
}

#[test]
fn a_fork_handler_waits_for_a_lock_whose_holder_allocates() {
    same("fork_lock.c", &[&times().to_string()], &ALL, 1);
    let library = compile_library("fork_lock.c");
    let program = compile("fork_lock.c", System);
    // The loader initializes the last library first, so the heap's handlers are the older ones.
    let both = env::join_paths([&library, &library::shared()]).unwrap();
    for setting in BACKGROUND {
        for preloaded in [library::shared().as_os_str(), &both] {
            let mut command = command(&program, System);
            command.arg(many()).env("LD_PRELOAD", preloaded);
            let end = run(command.envs(setting.iter().copied()));
            assert_eq!(end.text(), "all forked\n", "{setting:?}: {end:?}");
        }
    }
}

#[test]
fn no_allocation_opens_a_library() {
    let library = compile_library("opens.c");
    // The loader initializes the last library first.
    let both = env::join_paths([&library::shared(), &library]).unwrap();
    let mut command = command(compile("early.c", System), System);
    let end = run(command.env("LD_PRELOAD", both));
    assert!(end.status.success(), "{}", end.text());
}

/// System calls that a program with threads can do without. Each group is refused together.
const REFUSED: [&[&str]; 14] = [
    &["clone", "clone3"],
    &["getrandom"],
    &["madvise"],
    &["membarrier"],
    &["mincore"],
    &["mincore", "madvise", "membarrier"],
    &["mremap"],
    &["msync"],
    &["openat"],
    &["prctl"],
    &["sched_getaffinity"],
    &["sched_setaffinity"],
    &["sched_setscheduler"],
    &["only"],
];

/// System calls that a heap does not make if it has no background thread and moves no block.
const NEVER_MADE: [&[&str]; 7] = [
    &["clone", "clone3"],
    &["getrandom"],
    &["mincore"],
    &["prctl"],
    &["sched_getaffinity"],
    &["sched_setaffinity"],
    &["sched_setscheduler"],
];

fn run_under_a_filter(answer: &str, calls: &[&str], setting: &[(&str, &str)]) {
    let program = compile("filters.c", System);
    let mut command = command(&program, Preloaded);
    command.arg(answer).args(calls);
    let end = run(command.envs(setting.iter().copied()));
    assert_eq!(
        end.text(),
        "lives\n",
        "{answer} {calls:?} {setting:?}: {}",
        end.status
    );
}

#[test]
fn a_program_lives_where_system_calls_are_refused() {
    for setting in [SETTINGS[0], SETTINGS[3]] {
        for calls in REFUSED {
            for error in [libc::EPERM, libc::ENOSYS] {
                run_under_a_filter(&error.to_string(), calls, setting);
            }
        }
    }
}

#[test]
fn a_program_lives_where_system_calls_end_it_that_its_heap_does_not_need() {
    for setting in SETTINGS.into_iter().take(2) {
        for calls in NEVER_MADE {
            run_under_a_filter("end", calls, setting);
        }
    }
}
