//! How processes and threads begin, fork, start others and end.

use std::env;

use crate::guard::ALL_IN_USE;
use crate::library;
use crate::program::Heap::{Inside, Preloaded, System};
use crate::program::{
    ALL, command, compile, compile_library, contract_arguments, run, same, times,
};

#[test]
fn a_program_allocates_before_main_and_after_it() {
    same("early.c", &[], &ALL, times().div_ceil(3));
}

#[test]
fn a_build_for_debugging_serves_a_program() {
    let library = library::folder_for_debugging().join("liblarder.so");
    let program = compile("shuffle.c", System);
    let expected = run(command(&program, System).arg("3"));
    for mode in ["balanced", "checking"] {
        let mut command = command(&program, System);
        command
            .arg("3")
            .env("LD_PRELOAD", &library)
            .env("LARDER_MODE", mode);
        let end = run(&mut command);
        assert!(end == expected, "{mode}: {}", end.complaints());
    }
}

#[test]
fn threads_end_in_any_order_while_destructors_allocate() {
    same("thread_ends.cpp", &[&times().to_string()], &ALL, 1);
}

#[test]
fn a_program_has_many_keys_before_it_allocates() {
    let rounds = times().to_string();
    for keys in ["40", "2000"] {
        same("keys.c", &[&rounds, keys], &ALL, 1);
    }
}

#[test]
fn threads_fork_while_others_allocate() {
    same("forks.c", &[&times().div_ceil(3).to_string()], &ALL, 1);
}

#[test]
fn forks_beside_threads_that_read_and_flush_streams() {
    same("streams.c", &[&times().to_string()], &ALL, 1);
}

#[test]
fn fork_handlers_older_than_the_heap_s_allocate() {
    let rounds = times().div_ceil(6).to_string();
    let first = compile_library("first.c");
    let program = compile("forks.c", System);
    let expected = run(command(&program, System).arg(&rounds));
    assert!(expected.status.success());
    // The last library is initialized first, so the handlers of `first` are older in the first
    // pair.
    for pair in [[&library::shared(), &first], [&first, &library::shared()]] {
        let both = env::join_paths(pair).unwrap();
        let end = run(command(&program, System)
            .arg(&rounds)
            .env("LD_PRELOAD", both));
        assert_eq!(end, expected, "{pair:?}");
    }
}

#[test]
fn children_start_by_vfork_and_spawn_and_a_thread_executes() {
    same("spawns.c", &[&times().div_ceil(2).to_string()], &ALL, 1);
}

#[test]
fn a_program_without_threads_stays_so() {
    same("single.c", &[], &ALL, times().div_ceil(10).min(100));
}

#[test]
fn signals_and_cancellations_come_while_threads_allocate() {
    same("signals.c", &[&times().to_string()], &[Preloaded], 1);
}

#[test]
fn the_heap_takes_little_stack_and_its_first_allocation_no_more_than_a_page() {
    for mode in ["balanced", "speed", "memory"] {
        let end = run(command(compile("depth.c", Preloaded), Preloaded)
            .env("LARDER_MODE", mode)
            .env("LARDER_PURGE_AFTER", "1"));
        assert_eq!(end.text(), "measured\n", "{mode}: {}", end.status);
    }
}

#[test]
fn a_thread_is_not_cancelled_inside_the_heap() {
    // Each round moves and zeroes gigabytes.
    let rounds = (times() / 2).min(1000).to_string();
    same("cancel.c", &[&rounds], &[Preloaded, Inside], 1);
}

/// The configurations behind the words in [`PROGRAMS`].
const CONFIGURATIONS: [(&str, &[(&str, &str)]); 8] = [
    ("tuned", &[("LARDER_MODE", "memory")]),
    ("tuned", &[("LARDER_MODE", "speed")]),
    (
        "tuned",
        &[
            ("LARDER_BACKGROUND_PURGE", "yes"),
            ("LARDER_PURGE_AFTER", "2"),
        ],
    ),
    (
        "tuned",
        &[("LARDER_HUGE_PAGES", "0"), ("LARDER_PURGE_AFTER", "never")],
    ),
    ("hardened", &[("LARDER_MODE", "hardened")]),
    ("hardened", &[("LARDER_MODE", "checking")]),
    (
        "guard",
        &[("LARDER_GUARD", "1"), ("LARDER_GUARD_FAULTS", "yes")],
    ),
    (
        "guard",
        &[("LARDER_GUARD", "10"), ("LARDER_GUARD_FAULTS", "yes")],
    ),
];

/// Programs without misuse, their arguments, and the configurations in which they print the same as
/// on the system's heap. `ROUNDS` stands for [`times`].
const PROGRAMS: [(&str, &str, &str); 18] = [
    ("contract.c", "", "hardened guard"),
    ("limits.c", "", "hardened"),
    ("data_limit.c", "", "hardened"),
    ("early.c", "", "hardened guard"),
    ("shuffle.c", "ROUNDS", "hardened guard"),
    ("shuffle.c", "10", "tuned"),
    ("forks.c", "5", "hardened guard"),
    ("forks.c", "4", "tuned"),
    ("thread_ends.cpp", "5", "hardened guard"),
    ("thread_ends.cpp", "4", "tuned"),
    ("keys.c", "5 40", "hardened"),
    ("spawns.c", "5", "hardened"),
    ("cancel.c", "5", "hardened tuned"),
    ("signals.c", "ROUNDS", "hardened guard"),
    ("signals.c", "30", "tuned"),
    ("library.c", "5", "hardened"),
    ("operators.cpp", "5", "hardened guard"),
    ("replaced.cpp", "", "hardened guard"),
];

#[test]
fn programs_print_the_same_in_every_configuration() {
    for (name, arguments, wanted) in PROGRAMS {
        let arguments = match name {
            "contract.c" => contract_arguments().concat(),
            _ => arguments.replace("ROUNDS", &times().to_string()),
        };
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let program = compile(name, System);
        let expected = run(command(&program, System).args(&arguments));
        assert!(expected.status.success(), "{name}");
        for (word, variables) in CONFIGURATIONS {
            if wanted.contains(word) {
                let mut command = command(&program, Preloaded);
                let mut end = run(command.args(&arguments).envs(variables.iter().copied()));
                if word == "guard" {
                    end.err = end.complaints().replace(ALL_IN_USE, "").into_bytes();
                }
                let what = format!("{name} {arguments:?} {variables:?}");
                assert_eq!(end, expected, "{what}: {}", end.complaints());
            }
        }
    }
}

#[test]
fn a_library_in_cpp_comes_and_goes() {
    let (library, rounds) = (compile_library("plugin.cpp"), times().to_string());
    let arguments = [rounds.as_str(), library.to_str().unwrap()];
    same("loads.c", &arguments, &ALL, 1);
}
