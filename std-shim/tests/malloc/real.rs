//! Installed programs say on Larder's heap, also where it is hardened or checking, what they say on the system's. One that
//! is not there is left out, and the test says so.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::is_long;
use crate::library;
use crate::program::Heap::{Preloaded, System};
use crate::program::{End, Heap, command, new_folder, run, source};

/// Whether a program is there.
fn is_installed(program: &str) -> bool {
    let answer = Command::new(program).arg("--version").output();
    let is_there = answer.is_ok_and(|output| output.status.success());
    if !is_there {
        println!("skipped: there is no {program}");
    }
    is_there
}

/// How a program ends on a heap, in a new folder.
fn end(program: &str, arguments: &[&str], heap: Heap) -> End {
    end_in("balanced", program, arguments, heap)
}

fn end_in(mode: &str, program: &str, arguments: &[&str], heap: Heap) -> End {
    run(command(program, heap)
        .args(arguments)
        .env("LARDER_MODE", mode)
        .current_dir(new_folder()))
}

/// Runs an installed program on both heaps, and on Larder's in all its modes.
fn same(program: &str, arguments: &[&str]) {
    if !is_installed(program) {
        return;
    }
    let expected = end(program, arguments, System);
    assert!(
        expected.status.success(),
        "{program}: {}{}",
        expected.text(),
        expected.complaints()
    );
    for mode in ["balanced", "hardened", "checking"] {
        let end = end_in(mode, program, arguments, Preloaded);
        assert!(
            end == expected,
            "{program} {mode}: {}\n{}{}",
            end.status,
            end.text(),
            end.complaints()
        );
    }
}

fn script(name: &str) -> String {
    source(name).to_str().unwrap().to_owned()
}

/// A long file that is the same for both heaps.
fn long_file() -> String {
    let path = library::folder().join("liblarder.a");
    path.to_str().unwrap().to_owned()
}

#[test]
fn date_runs_with_a_faked_time() {
    same("faketime", &["-f", "@2020-02-03 12:00:00", "date", "+%Y"]);
}

#[test]
fn python_runs_threads_and_children() {
    same("python3", &[&script("script.py")]);
}

#[test]
fn python_passes_its_own_tests() {
    let mut modules = vec!["test.test_json", "test.test_re", "test.test_list"];
    if is_long() {
        modules.extend([
            "test.test_threading",
            "test.test_subprocess",
            "test.test_fork1",
        ]);
        modules.extend([
            "test.test_gc",
            "test.test_capi",
            "test.test_dict",
            "test.test_io",
        ]);
    }
    for module in modules {
        let arguments = ["-m", "unittest", "-q", module];
        if !is_installed("python3") || !end("python3", &arguments, System).status.success() {
            println!("skipped: {module} does not pass on the system's heap");
            continue;
        }
        let end = end("python3", &arguments, Preloaded);
        assert!(end.status.success(), "{module}: {}", end.complaints());
    }
}

#[test]
fn perl_runs_a_script() {
    same("perl", &[&script("script.pl")]);
}

#[test]
fn bash_runs_a_script() {
    same("bash", &[&script("script.sh")]);
}

#[test]
fn node_runs_workers() {
    same("node", &[&script("script.js")]);
}

#[test]
fn git_makes_packs_and_clones() {
    if is_installed("git") {
        same("bash", &[&script("script-git.sh")]);
    }
}

#[test]
fn sqlite_makes_tables() {
    let read = format!(".read {}", script("script.sql"));
    same("sqlite3", &["-bail", ":memory:", &read]);
}

#[test]
fn xz_and_zstd_compress_in_threads() {
    let file = long_file();
    same("xz", &["-T2", "-1", "--block-size=1MiB", "-k", "-c", &file]);
    same("zstd", &["-T2", "-5", "-q", "-c", &file]);
    same("gzip", &["-6", "-n", "-c", &file]);
}

#[test]
fn compilers_write_the_same_assembly() {
    same("cc", &["-O2", "-w", "-S", "-o", "-", &script("contract.c")]);
    same(
        "c++",
        &["-O2", "-w", "-S", "-o", "-", &script("operators.cpp")],
    );
}

#[test]
fn redis_serves_its_benchmark() {
    if !is_installed("redis-server") || !is_installed("redis-benchmark") {
        return;
    }
    let serve = |heap| {
        let server = new_folder();
        let text = script("script-redis.sh");
        let end = run(command("bash", heap).arg(text).current_dir(&server));
        assert!(end.status.success(), "{}{}", end.text(), end.complaints());
        let log = fs::read_to_string(Path::new(&server).join("log")).unwrap();
        assert!(!log.contains("crashed"), "{log}");
        end
    };
    assert_eq!(serve(Preloaded), serve(System));
}
