//! `larder versus` as a user meets it, with stand-ins for the workers: shell scripts that print a worker's output, or
//! fail in various ways.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn versus(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larder"))
        .arg("versus")
        .args(arguments)
        .output()
        .unwrap()
}

/// With a stand-in for Valgrind, which runs this script, before everything else on the path.
fn with_valgrind(folder: &TempDir, script: &str, arguments: &[&str]) -> Output {
    let bin = folder.path().join("bin");
    fs::create_dir_all(&bin).unwrap();
    executable(&bin.join("valgrind"), script);
    let path = std::env::var("PATH").unwrap();
    Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(["versus", "--workers", folder.path().to_str().unwrap()])
        .args(arguments)
        .env("PATH", format!("{}:{path}", bin.display()))
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn json(output: &Output) -> Vec<Value> {
    let lines = stdout(output).lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A worker of the profile `fat` that runs this script, and notes in a file of the folder when it only readies memory.
pub(crate) fn stand_in(folder: &TempDir, allocator: &str, script: &str) {
    let readied = folder.path().join("readied");
    let note = format!("echo {allocator} >> '{}'", readied.display());
    let script = format!("[ \"$1\" = ready ] && {{ {note}; exit 0; }}\n{script}");
    executable(&folder.path().join(format!("{allocator}-fat")), &script);
}

fn executable(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Prints a sample, and notes in a file of the folder that it ran.
fn honest(folder: &TempDir, allocator: &str, seconds: &str, answer: u64) {
    let log = folder.path().join("log");
    let script = format!(
        "echo {allocator} \"$@\" >> '{}'\n\
         echo '{{\"workload\":\"'$1'\",\"allocator\":\"{allocator}\",\"seconds\":{seconds},\
         \"operations\":10,\"answer\":{answer},\"peak_rss_bytes\":4194304,\"end_rss_bytes\":2097152,\
         \"live_bytes\":null,\"live_rss_bytes\":null}}'",
        log.display(),
    );
    stand_in(folder, allocator, &script);
}

fn log(folder: &TempDir) -> Vec<String> {
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    log.lines().map(str::to_owned).collect()
}

/// The stand-ins of this folder, with further arguments.
pub(crate) fn with_workers(folder: &Path, arguments: &[&str]) -> Output {
    let mut all = vec!["--workers", folder.to_str().unwrap()];
    all.extend(arguments);
    versus(&all)
}

#[test]
fn runs_alternate_and_one_thread_is_pinned() {
    let folder = TempDir::new().unwrap();
    honest(&folder, "system", "0.2", 7);
    honest(&folder, "larder", "0.1", 7);
    let names = ["--allocator", "system", "--allocator", "larder"];
    let more = [
        "--rounds",
        "3",
        "--workload",
        "boxes",
        "--workload",
        "pipe-1",
        "--json",
    ];
    let output = with_workers(folder.path(), &[&names[..], &more[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows = json(&output);
    assert_eq!(rows.len(), 4);
    let larder = &rows[1];
    assert_eq!(larder["workload"], "boxes");
    assert_eq!(larder["allocator"], "larder");
    assert_eq!(larder["seconds"], 0.1);
    assert_eq!(larder["operations"], 10);
    assert_eq!(larder["peak_rss_bytes"], 4 << 20);
    assert_eq!(rows[0]["ratio_to_best"], 2.0);
    let log = log(&folder);
    let order: Vec<&str> = log
        .iter()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    let rounds = ["system", "larder", "larder", "system", "system", "larder"];
    assert_eq!(order, [rounds, rounds].concat());
    assert_eq!(log[0], "system boxes --scale 1 --pin");
    assert_eq!(log[6], "system pipe-1 --scale 1");
    let readied = fs::read_to_string(folder.path().join("readied")).unwrap();
    let readied: Vec<&str> = readied.lines().collect();
    assert_eq!(readied, order, "once before each run");
}

#[test]
fn what_fails_is_reported_and_the_rest_goes_on() {
    let folder = TempDir::new().unwrap();
    honest(&folder, "system", "0.2", 7);
    honest(&folder, "larder", "0.1", 7);
    honest(&folder, "mimalloc2", "0.1", 8);
    let log_path = folder.path().join("log");
    let broken = format!(
        "echo mimalloc3 >> '{}'; echo first >&2; echo it broke >&2; exit 101",
        log_path.display(),
    );
    stand_in(&folder, "mimalloc3", &broken);
    stand_in(&folder, "snmalloc", "kill -SEGV $$");
    stand_in(&folder, "jemalloc", "echo hello");
    stand_in(&folder, "rpmalloc", "exec sleep 600");
    let arguments = ["--rounds", "2", "--limit", "1", "--workload", "boxes"];
    let output = with_workers(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    for failure in [
        "boxes on mimalloc2 (fat): answer 8 where 7 is right",
        "boxes on mimalloc3 (fat): exit status: 101: first it broke",
        "boxes on snmalloc (fat): signal: 11",
        "boxes on jemalloc (fat): printed no measurement",
        "boxes on rpmalloc (fat): did not end within 1 s",
    ] {
        assert!(
            text.contains(&format!("failed: {failure}")),
            "{failure}\n{text}"
        );
    }
    assert!(
        stderr(&output).contains("5 of 7 rows failed"),
        "{}",
        stderr(&output)
    );
    // What has failed does not run again; the others run all their rounds.
    let log = log(&folder);
    for (allocator, expected) in [("system", 2), ("larder", 2), ("mimalloc3", 1)] {
        let runs = log.iter().filter(|line| line.starts_with(allocator));
        assert_eq!(runs.count(), expected, "{allocator}");
    }
}

#[test]
fn allocators_with_one_lock_run_one_thread_only() {
    let folder = TempDir::new().unwrap();
    honest(&folder, "talc", "0.2", 7);
    let names = [
        "--allocator",
        "talc",
        "--workload",
        "boxes",
        "--workload",
        "pipe-1",
    ];
    let output = with_workers(folder.path(), &[&names[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows = json(&output);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["workload"], "boxes");
}

#[test]
fn the_twin_for_steps_runs_steps_only_and_page_faults_are_shown() {
    let folder = TempDir::new().unwrap();
    honest(&folder, "larder", "0.2", 7);
    let script = r#"echo '{"workload":"'$1'","allocator":"larder-steps","seconds":0.1,"operations":10,"answer":7,"faults":25}'"#;
    stand_in(&folder, "larder-steps", script);
    let names = ["--allocator", "larder", "--allocator", "larder-steps"];
    let more = ["--workload", "boxes", "--workload", "steps-one", "--json"];
    let output = with_workers(folder.path(), &[&names[..], &more[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows = json(&output);
    let ran: Vec<_> = rows
        .iter()
        .map(|row| (row["workload"].as_str(), row["allocator"].as_str()))
        .collect();
    assert_eq!(
        ran,
        [
            (Some("boxes"), Some("larder")),
            (Some("steps-one"), Some("larder")),
            (Some("steps-one"), Some("larder-steps")),
        ]
    );
    assert_eq!(rows[2]["faults_per_operation"], 2.5);
    assert!(rows[1]["faults_per_operation"].is_null());
    let output = with_workers(folder.path(), &[&names[..], &more[2..4]].concat());
    let text = stdout(&output);
    assert!(text.contains("minor page faults"), "{text}");
}

#[test]
fn frames_are_shown_by_themselves_and_what_the_system_refuses_is_no_failure() {
    let folder = TempDir::new().unwrap();
    for (allocator, p50) in [("system", "50.0"), ("larder", "5.0")] {
        let script = format!(
            r#"if [ "$1" = frames-fifo ]; then
                echo '{{"workload":"'$1'","allocator":"{allocator}","skipped":"not here"}}'
                exit
            fi
            frames='{{"planned":8,"done":7,"p50_us":{p50},"p99_us":60.0,"max_us":70.0}}'
            echo '{{"workload":"'$1'","allocator":"{allocator}","seconds":2.4,"operations":8,"answer":7,"frames":'$frames'}}'"#
        );
        stand_in(&folder, allocator, &script);
    }
    let names = ["--allocator", "system", "--allocator", "larder"];
    let workloads = ["--workload", "frames-loaded", "--workload", "frames-fifo"];
    let run = |more: &[&str]| with_workers(folder.path(), &[&names, &workloads, more].concat());
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let line = text.lines().find(|line| line.contains("p50"));
    let cells: Vec<&str> = line.unwrap().split_whitespace().collect();
    let expected = ["frames-loaded", "p50", "50.0", "(1.00)", "5.0", "(0.10)"];
    assert_eq!(cells, expected, "{text}");
    assert!(
        text.contains("skipped: frames-fifo (fat): not here"),
        "{text}"
    );
    assert!(!text.contains("failed"), "{text}");
    let output = run(&["--json"]);
    assert_eq!(json(&output)[2]["skipped"], "not here");
    let output = run(&["--instructions"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("are not counted"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_missing_peer_is_left_out_but_not_one_that_was_named() {
    let folder = TempDir::new().unwrap();
    honest(&folder, "system", "0.2", 7);
    honest(&folder, "larder", "0.1", 7);
    let arguments = ["--rounds", "1", "--workload", "boxes"];
    let output = with_workers(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("snmalloc (fat) is left out"));
    let named = [
        &arguments[..],
        &["--allocator", "system", "--allocator", "snmalloc"],
    ]
    .concat();
    let output = with_workers(folder.path(), &named);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("snmalloc could not take part"),
        "{}",
        stderr(&output)
    );
    assert!(stdout(&output).contains("boxes"), "{}", stdout(&output));
}

#[test]
fn results_are_written_where_asked() {
    let folder = TempDir::new().unwrap();
    honest(&folder, "larder", "0.1", 7);
    let results = folder.path().join("kept");
    let named = ["--allocator", "larder", "--workload", "boxes", "--results"];
    let output = with_workers(
        folder.path(),
        &[&named[..], &[results.to_str().unwrap()]].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let names: Vec<_> = fs::read_dir(&results)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let page = names
        .iter()
        .find(|name| name.extension().unwrap() == "md")
        .unwrap();
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("Commit: "), "{page}");
    assert!(page.contains("boxes"), "{page}");
}

/// Does 10 operations at the smaller scale and 30 at the larger, with 1000 instructions to start and
/// 41 for each operation. Does not run `snmalloc`.
const VALGRIND: &str = r#"
[ "$1" = --version ] && exit 0
shift 2
case "$1" in *snmalloc*) echo "==9== cannot map" >&2; echo no room >&2; exit 134;; esac
case "$4" in 0.02) n=10;; 0.06) n=30;; *) exit 3;; esac
name=$(basename "$1" -fat)
echo '{"workload":"'$2'","allocator":"'$name'","seconds":0.5,"operations":'$n',"answer":7}'
echo "==9== Collected : $((1000 + 41 * n))" >&2
"#;

#[test]
fn instructions_are_what_more_operations_cost_more() {
    let folder = TempDir::new().unwrap();
    for allocator in ["larder", "snmalloc"] {
        honest(&folder, allocator, "0.2", 7);
    }
    let names = ["--allocator", "larder", "--allocator", "snmalloc"];
    let output = with_valgrind(
        &folder,
        VALGRIND,
        &[&names[..], &["--instructions"]].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let counted = [
        "pairs-1",
        "pairs-64",
        "pairs-4096",
        "boxes",
        "bare-sizes",
        "bare-boxes",
    ];
    for workload in counted {
        assert!(text.contains(workload), "{workload}\n{text}");
    }
    let count = |word| text.matches(word).count();
    assert_eq!(count(" 41.0"), counted.len(), "{text}");
    assert_eq!(count("does not run"), counted.len(), "{text}");
    let why = "boxes on snmalloc: under valgrind: exit status: 134: no room";
    assert!(text.contains(why), "{text}");
    assert!(!text.contains("time over"), "{text}");
    assert!(!folder.path().join("log").exists(), "times were measured");

    let chosen = ["--instructions", "--workload", "map", "--json"];
    let output = with_valgrind(&folder, VALGRIND, &[&names[..2], &chosen[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows = json(&output);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["measure"], "instructions");
    assert_eq!(rows[0]["workload"], "map");
    assert_eq!(rows[0]["instructions_per_operation"], 41.0);
}

#[test]
fn without_valgrind_nothing_else_is_measured_first() {
    let folder = TempDir::new().unwrap();
    honest(&folder, "larder", "0.2", 7);
    let output = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(["versus", "--all", "--allocator", "larder", "--workers"])
        .arg(folder.path())
        .env("PATH", folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("install it"),
        "{}",
        stderr(&output)
    );
    assert!(!folder.path().join("log").exists(), "times were measured");
}

#[test]
fn a_workload_that_is_told_how_long_to_take_may_take_that_and_the_limit() {
    let folder = TempDir::new().unwrap();
    let script = |allocator: &str| {
        format!(
            r#"sleep 1.5
            echo '{{"workload":"'$1'","allocator":"{allocator}","seconds":1.5,"operations":9,"answer":0,"peak_rss_bytes":4194304,"live_bytes":1048576,"live_rss_bytes":2097152}}'"#
        )
    };
    stand_in(&folder, "larder", &script("larder"));
    let names = ["--allocator", "larder", "--rounds", "1", "--limit", "1"];
    let run = |more: &[&str]| with_workers(folder.path(), &[&names[..], more].concat());
    let output = run(&["--workload", "server", "--scale", "0.1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let (_, of_live) = text.split_once("resident memory over live bytes").unwrap();
    let line = of_live.lines().find(|line| line.contains("server"));
    let cells: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(cells, ["server", "2.00"], "{text}");
    let output = run(&["--workload", "boxes", "--scale", "0.1"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let output = run(&["--workload", "server", "--instructions"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn the_summary_of_kept_lines_is_printed_and_a_wrong_line_is_reported() {
    let folder = TempDir::new().unwrap();
    honest(&folder, "system", "0.2", 7);
    honest(&folder, "larder", "0.1", 7);
    let names = ["--allocator", "system", "--allocator", "larder"];
    let more = ["--workload", "boxes", "--rounds", "1", "--json"];
    let output = with_workers(folder.path(), &[&names[..], &more[..]].concat());
    let file = folder.path().join("rows.jsonl");
    fs::write(&file, &output.stdout).unwrap();
    let file = file.to_str().unwrap();
    let output = versus(&["--summary", file, "--summary", file]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let line = "| boxes | system | 20000000.0 | 0.50 | - |";
    assert_eq!(text.matches(line).count(), 1, "{text}");
    fs::write(file, "{\"workload\":\"boxes\"}\n").unwrap();
    let output = versus(&["--summary", file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("line 1"), "{}", stderr(&output));
}

#[test]
fn the_help_names_what_can_be_measured() {
    let output = versus(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    for flag in ["--instructions", "--calls", "--all", "--summary <FILE>"] {
        assert!(stdout(&output).contains(flag), "{flag}");
    }
}

#[test]
fn wrong_arguments_and_an_empty_folder_differ() {
    for wrong in [
        &["--workload", "no-such"][..],
        &["--allocator", "no-such"],
        &["--rounds", "0"],
        &["--scale", "0"],
        &["--profile", "thin"],
        &["--calls", "--all"],
        &["--summary", "rows.jsonl", "--calls"],
        &["--summary", "rows.jsonl", "--rounds", "2"],
        &["--summary", "/no/such/rows.jsonl"],
    ] {
        let output = versus(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert_eq!(stdout(&output), "", "{wrong:?}");
    }
    let folder = TempDir::new().unwrap();
    let output = with_workers(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no program to run"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_list_names_workloads_and_allocators() {
    let output = versus(&["--list"]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    for name in [
        "larson-4",
        "syn-2",
        "zeroed-sparse",
        "rusty-alloc",
        "dlmalloc",
        "one thread only",
    ] {
        assert!(text.contains(name), "{name}\n{text}");
    }
}
