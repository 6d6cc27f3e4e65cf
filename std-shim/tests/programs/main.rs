//! Real programs give the same results on this heap as on the system's.
//!
//! A process has a single heap, which the environment selects at the first allocation, long before
//! `main`. The test therefore runs on this heap's default configuration, and starts its own binary
//! again for each other configuration and for the system's heap. All processes do the same work on
//! the same input, with several threads, and their outputs are compared.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod switched;
mod work;

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Stdio;

use larder::Larder;
use switched::{SYSTEM, Switched};

#[global_allocator]
static GLOBAL: Switched = Switched::new();

/// The variable that names the program of a second process.
const PROGRAM: &str = "HEAP_TEST_PROGRAM";

/// The start of the line with the number of requests to the system's heap.
const ASKED: &str = "the system was asked ";

/// Returns sources of this workspace's allocator, each ending in a zero byte: every eighth file, or
/// all files with `LARDER_ROUNDS=all`.
fn sources() -> String {
    fn collect(folder: &Path, texts: &mut Vec<String>) {
        let mut paths: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                collect(&path, texts);
            } else if path.extension().is_some_and(|end| end == "rs") {
                texts.push(fs::read_to_string(path).unwrap() + "\0");
            }
        }
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = Vec::new();
    collect(&here.join("src"), &mut texts);
    collect(&here.join("../core/src"), &mut texts);
    let chosen: Vec<String> = texts.into_iter().step_by(8 / common::rounds(8)).collect();
    assert!(chosen.len() > 20, "sources are missing");
    chosen.concat()
}

/// Runs a program in a second process. Returns its output and number of requests to the system.
fn on_heap(heap: &str, program: &str, input: &str) -> (String, u64) {
    let (name, value) = match heap {
        "system" => (SYSTEM.to_str().unwrap(), "yes"),
        mode => ("LARDER_MODE", mode),
    };
    let child = "runs_one_program_for_another_process";
    let mut child = common::this_program()
        .args(["--exact", child, "--nocapture", "--ignored"])
        .env(name, value)
        .env(PROGRAM, program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} on {heap}");
    let output = String::from_utf8(output.stdout).unwrap();
    let output = output.split('\0').nth(1).unwrap();
    let (output, asked) = output.split_once(ASKED).unwrap();
    (output.to_owned(), asked.parse().unwrap())
}

fn same_on_all(program: &str) {
    let input = sources();
    let ours = work::run(program, &input);
    assert_eq!(GLOBAL.system_calls(), 0, "this process is on another heap");
    assert!(Larder::new().stats().live_bytes as usize > ours.len());
    assert!(ours.len() > 10_000);
    for heap in ["system", "speed", "memory", "hardened"] {
        let (theirs, asked) = on_heap(heap, program, &input);
        let asked_enough = if heap == "system" {
            asked > 1000
        } else {
            asked == 0
        };
        assert!(asked_enough, "{heap} is on another heap: {asked}");
        let differ = ours.lines().zip(theirs.lines()).find(|(a, b)| a != b);
        assert!(ours == theirs, "{heap}: {differ:?}");
    }
}

#[test]
#[ignore = "the other tests start it, with an input"]
fn runs_one_program_for_another_process() {
    let Ok(program) = std::env::var(PROGRAM) else {
        println!("nobody asks for a program");
        return;
    };
    let mut input = String::new();
    io::stdin().read_to_string(&mut input).unwrap();
    let output = work::run(&program, &input);
    let stats = Larder::new().stats();
    let on_ours = stats.live_bytes as usize > output.len() && stats.heaps > 0;
    assert_ne!(
        on_ours,
        GLOBAL.system_calls() > 0,
        "blocks of both heaps, or of none"
    );
    println!("\0{output}{ASKED}{}\0", GLOBAL.system_calls());
}

#[test]
fn documents_read_changed_and_written_by_serde_json_are_the_same_on_all_heaps() {
    same_on_all("json");
}

#[test]
fn sources_parsed_and_printed_by_syn_are_the_same_on_all_heaps() {
    same_on_all("syn");
}

#[test]
fn a_search_through_sources_by_rayon_is_the_same_on_all_heaps() {
    same_on_all("search");
}
