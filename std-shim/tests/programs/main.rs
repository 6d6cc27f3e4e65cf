//! Real programs give the same results on this heap as on the system's.
//!
//! The whole test binary allocates from one of the two: which one is said by an environment
//! variable that the very first allocation reads, long before `main`, and nothing changes it later.
//! So the test itself runs on this heap, and starts the same binary once more on the other; both do
//! the same work on the same input, with several threads, and all their output is compared.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod switched;
mod work;

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use larder::Larder;
use switched::{SYSTEM, Switched};

#[global_allocator]
static HEAP: Switched = Switched::new();

/// Starts the line that tells how often the other heap was asked.
const ASKED: &str = "the system was asked ";

/// All sources of this workspace's allocator, one after the other, each ending in a zero byte.
fn sources() -> String {
    fn collect(folder: &Path, text: &mut String) {
        let mut paths: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                collect(&path, text);
            } else if path.extension().is_some_and(|end| end == "rs") {
                text.push_str(&fs::read_to_string(path).unwrap());
                text.push('\0');
            }
        }
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    collect(&here.join("src"), &mut text);
    collect(&here.join("../core/src"), &mut text);
    assert!(text.matches('\0').count() > 20, "sources are missing");
    text
}

/// Output of this test's second process.
fn on_the_system_allocator(program: &str, input: &str) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "runs_one_program_for_another_process",
            "--nocapture",
            "--ignored",
        ])
        .env(SYSTEM.to_str().unwrap(), program)
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
    assert!(output.status.success());
    let output = String::from_utf8(output.stdout).unwrap();
    output.split('\0').nth(1).unwrap().to_owned()
}

fn same_on_both(program: &str) {
    let input = sources();
    let ours = work::run(program, &input);
    let theirs = on_the_system_allocator(program, &input);
    assert_eq!(
        HEAP.system_calls(),
        0,
        "this process runs on the wrong heap"
    );
    assert!(Larder::new().stats().live_bytes as usize > ours.len());
    let (theirs, asked) = theirs.split_once(ASKED).unwrap();
    assert!(
        asked.parse::<u64>().unwrap() > 1000,
        "the other process runs on the wrong heap"
    );
    assert!(ours.len() > 10_000);
    let differ = ours.lines().zip(theirs.lines()).find(|(a, b)| a != b);
    assert!(ours == theirs, "{differ:?}");
}

#[test]
#[ignore = "the other tests start it, with an input"]
fn runs_one_program_for_another_process() {
    let Ok(program) = std::env::var(SYSTEM.to_str().unwrap()) else {
        println!("nobody asks for a program");
        return;
    };
    let mut input = String::new();
    io::stdin().read_to_string(&mut input).unwrap();
    let output = work::run(&program, &input);
    let stats = Larder::new().stats();
    assert_eq!(
        (stats.live_bytes, stats.heaps),
        (0, 0),
        "this process runs on the wrong heap"
    );
    println!("\0{output}{ASKED}{}\0", HEAP.system_calls());
}

#[test]
fn documents_read_changed_and_written_by_serde_json_are_the_same_on_both_heaps() {
    same_on_both("json");
}

#[test]
fn matches_found_by_regex_are_the_same_on_both_heaps() {
    same_on_both("regex");
}

#[test]
fn sources_parsed_and_printed_by_syn_are_the_same_on_both_heaps() {
    same_on_both("syn");
}
