//! The contracts of the functions of C and the operators of C++.

use std::process::Command;

use crate::common::{is_long, rounds};
use crate::library;
use crate::program::Heap::{Alone, Inside, Linked, Preloaded, System};
use crate::program::{
    ALL, command, compile, compile_with_static_cpp, contract_arguments, new_folder, preload, run,
    same, source, times,
};

#[test]
fn each_function_of_c_does_what_it_promises() {
    same("contract.c", contract_arguments(), &ALL, 1);
}

#[test]
fn blocks_that_threads_shuffle_keep_their_contents() {
    let thousands = if is_long() { "2000" } else { "125" };
    same("shuffle.c", &[thousands], &ALL, 1);
}

#[test]
fn a_heap_that_grows_gives_up_what_lies_idle() {
    let end = run(&mut command(compile("peaks.c", Preloaded), Preloaded));
    end.assert_says("little more than what lived\n", "");
}

#[test]
fn what_is_called_most_starts_at_a_cache_line() {
    let end = run(&mut command(compile("places.c", Preloaded), Preloaded));
    end.assert_says("", "");
    assert_eq!(end.text(), "");
}

#[test]
fn too_much_is_refused_and_the_program_goes_on() {
    same("limits.c", &[], &ALL, 1);
}

#[test]
fn a_program_has_most_of_what_a_limit_on_data_leaves_again_and_again() {
    same("data_limit.c", &["85"], &[Preloaded], 1);
}

#[test]
fn a_program_that_filters_its_system_calls_lives() {
    let program = compile("filtered.c", Preloaded);
    for mode in ["balanced", "speed", "memory", "hardened"] {
        for files in ["none", "files"] {
            let end = run(command(&program, Preloaded)
                .arg(files)
                .env("LARDER_MODE", mode)
                .env("LARDER_PURGE_AFTER", "1"));
            let said = end.text();
            assert_eq!(said, "lives\n", "{mode} {files}: {}", end.status);
        }
    }
}

#[test]
fn each_operator_of_cpp_does_what_it_promises() {
    same("operators.cpp", &[&times().to_string()], &ALL, 1);
}

#[test]
fn programs_that_contain_their_cpp_library_throw_bad_alloc_too() {
    let times = times().to_string();
    let expected = run(command(compile("operators.cpp", System), System).arg(&times));
    for heap in [Preloaded, Linked, Inside] {
        let program = compile_with_static_cpp("operators.cpp", heap);
        let end = run(command(program, heap).arg(&times));
        assert!(end == expected, "{heap:?}: {}", end.text());
    }
    if has_static_libraries() {
        same("operators.cpp", &[&times], &[Alone], 1);
    }
}

#[test]
fn operators_that_a_program_replaces_are_used_by_the_others() {
    // Not with cargo's `liblarder.a`, which has all operators in one object file; see `install.rs`.
    same("replaced.cpp", &[], &[Preloaded, Linked], 1);
}

#[test]
fn what_the_c_library_allocates_the_program_frees() {
    let rounds = rounds(80).to_string();
    same("library.c", &[&rounds], &[Preloaded], 1);
}

#[test]
fn each_function_of_the_header_does_what_it_promises() {
    for name in ["larder.c", "larder.cpp"] {
        for heap in [Linked, Inside] {
            let end = run(&mut command(compile(name, heap), heap));
            end.assert_says("numbers, steps, heaps\n", &format!("{name} {heap:?}"));
        }
    }
}

#[test]
fn strict_compilers_of_each_standard_take_the_header() {
    for (compiler, language, standards) in [
        ("cc", "c", ["c99", "c11", "c17"]),
        ("c++", "c++", ["c++11", "c++17", "c++20"]),
    ] {
        for standard in standards {
            let program = new_folder().join(standard);
            let status = Command::new(compiler)
                .arg(format!("-std={standard}"))
                .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
                .arg(preload())
                .args(["-x", language])
                .arg(source("header.c"))
                .args(["-x", "none"])
                .args([library::folder().join("liblarder.a"), "-ldl".into()])
                .arg("-o")
                .arg(&program)
                .status();
            assert!(status.unwrap().success(), "{standard}");
            run(&mut command(&program, Inside)).assert_says("Larder's\n", standard);
        }
    }
}

#[test]
fn a_free_that_cannot_be_right_ends_the_program() {
    let program = compile("misuse.c", Preloaded);
    for misuse in 0..9 {
        let misuse = misuse.to_string();
        let end = run(command(&program, Preloaded).arg(&misuse));
        end.assert_ended_by(libc::SIGABRT, "larder: freed a", &misuse);
        assert_eq!(
            (end.complaints().lines().count(), end.text().as_str()),
            (1, "")
        );
    }
}

#[test]
fn programs_that_hold_the_whole_c_library_run() {
    if !has_static_libraries() {
        println!("skipped: there is no libc.a");
        return;
    }
    same("contract.c", contract_arguments(), &[Alone], 1);
    same("forks.c", &["5"], &[Alone], 1);
    same("thread_ends.cpp", &["5"], &[Alone], 1);
}

pub(crate) fn has_static_libraries() -> bool {
    let answer = Command::new("cc").arg("-print-file-name=libc.a").output();
    // For a missing file, the compiler prints the name as it was given.
    answer.is_ok_and(|output| output.stdout.starts_with(b"/"))
}
