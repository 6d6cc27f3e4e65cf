//! Installed programs print the same on Larder's heap, even hardened or checking, as on the
//! system's. A missing program is skipped, and the test names its package.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::is_long;
use crate::library;
use crate::program::Heap::{Preloaded, System};
use crate::program::{End, Heap, command, compile, new_folder, run, source};

pub(crate) fn is_installed(program: &str) -> bool {
    // OpenSSH's programs have no such option, and its server is in another folder.
    let is_there = if program.starts_with("ssh") {
        let folders = env::var("PATH").unwrap_or_default() + ":/usr/sbin";
        let mut paths = folders
            .split(':')
            .map(|folder| Path::new(folder).join(program));
        paths.any(|path| path.is_file())
    } else {
        let answer = Command::new(program).arg("--version").output();
        answer.is_ok_and(|output| output.status.success())
    };
    if !is_there {
        println!(
            "skipped: there is no {program}; Debian has it in {}",
            package_of(program)
        );
    }
    is_there
}

fn package_of(program: &str) -> &str {
    match program {
        "cc" => "gcc",
        "c++" => "g++",
        "node" => "nodejs",
        "redis-benchmark" => "redis-tools",
        "ssh" | "ssh-keygen" => "openssh-client",
        "sshd" => "openssh-server",
        "taskset" => "util-linux",
        "xz" => "xz-utils",
        same => same,
    }
}

/// Runs a program on a heap, in a new folder. Returns its end.
fn end(program: &str, arguments: &[&str], heap: Heap) -> End {
    end_in("balanced", program, arguments, heap)
}

fn end_in(mode: &str, program: &str, arguments: &[&str], heap: Heap) -> End {
    run(command(program, heap)
        .args(arguments)
        .env("LARDER_MODE", mode)
        .current_dir(new_folder()))
}

/// Checks that an installed program does the same on both heaps, on Larder's in three modes.
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
            "{program} {mode}: {}\n{}{}\nwithout Larder: {}\n{}{}",
            end.status,
            end.text(),
            end.complaints(),
            expected.status,
            expected.text(),
            expected.complaints()
        );
    }
}

/// Runs a script on both heaps if its programs are installed and it succeeds on the system's heap.
fn same_script(name: &str, programs: &[&str]) {
    if !programs.iter().all(|program| is_installed(program)) {
        return;
    }
    let arguments = [script(name)];
    let arguments = arguments.each_ref().map(String::as_str);
    let alone = end("bash", &arguments, System);
    if alone.status.success() {
        same("bash", &arguments);
    } else {
        println!("skipped: {name} does not run here: {}", alone.complaints());
    }
}

fn script(name: &str) -> String {
    source(name).to_str().unwrap().to_owned()
}

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

#[test]
fn users_log_in_at_a_server_that_filters_system_calls() {
    same_script("script-ssh.sh", &["sshd", "ssh", "ssh-keygen"]);
}

#[test]
fn a_debugger_writes_what_a_program_has_and_little_more() {
    same_script("script-core.sh", &["gdb", "python3"]);
}

#[test]
fn files_seem_to_belong_to_others() {
    same_script("script-fakeroot.sh", &["fakeroot", "tar"]);
}

#[test]
fn a_profiler_counts_allocations() {
    same_script("script-heaptrack.sh", &["heaptrack", "perl"]);
}

#[test]
fn the_heap_s_own_thread_keeps_to_the_processors_that_a_program_is_given() {
    if !is_installed("taskset") {
        return;
    }
    let program = compile("affinity.c", System);
    // This thread's first processor.
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let list = status.split("Cpus_allowed_list:").nth(1).unwrap();
    let first = list
        .trim_start()
        .split(|c: char| !c.is_ascii_digit())
        .next()
        .unwrap();
    for (asked, threads) in [("no", 1), ("yes", 2)] {
        let mut command = command("taskset", Preloaded);
        command
            .args(["-c", first])
            .arg(&program)
            .arg(threads.to_string());
        let end = run(command.env("LARDER_BACKGROUND_PURGE", asked));
        let line = format!("Cpus_allowed_list:\t{first}\n");
        assert_eq!(
            end.text(),
            line.repeat(threads),
            "{asked}: {}",
            end.complaints()
        );
    }
}
