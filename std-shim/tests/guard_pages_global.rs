//! Guard pages with the heap as global allocator: the environment sets the share of blocks.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(all(target_os = "linux", not(miri)))]

use std::collections::BTreeMap;
use std::env;
use std::hint::black_box;
use std::process::Command;

use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new().with_environment();

const TASK: &str = "HEAP_TEST_TASK";
/// With a page of its own a block is exactly as long as requested.
const BYTES: usize = 100;
const ROUNDS: usize = 100_000;

/// Returns the number of blocks with a guard page, in a loop that frees each block.
fn blocks_in_pages() -> usize {
    let has_page = |_: &usize| {
        let block = black_box(vec![1_u8; BYTES]);
        HEAP.usable_size(block.as_ptr()) == Some(BYTES)
    };
    (0..ROUNDS).filter(has_page).count()
}

/// What a program of maps and texts counts, in threads that free each other's blocks.
fn words() -> usize {
    let threads: Vec<_> = (0..4_usize)
        .map(|thread| {
            std::thread::spawn(move || {
                let mut words: BTreeMap<String, Vec<usize>> = BTreeMap::new();
                for number in 0..20_000 {
                    let word = "larder".repeat(1 + number * (thread + 7) % 97);
                    words.entry(word).or_default().push(number);
                }
                words
            })
        })
        .collect();
    let mut length = 0;
    for thread in threads {
        for (word, numbers) in thread.join().unwrap() {
            length += word.len() * numbers.len() + numbers.iter().sum::<usize>();
        }
    }
    length
}

#[test]
#[ignore = "others start it"]
fn does_one_thing() {
    match env::var(TASK).as_deref() {
        Ok("loop") => println!("said {}", blocks_in_pages()),
        Ok("words") => println!("said {}", words()),
        _ => println!("nobody asks for anything"),
    }
}

/// What a process says whose heap has guard pages for one in so many blocks.
fn said(task: &str, one_in: &str) -> usize {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "does_one_thing", "--nocapture", "--ignored"])
        .env(TASK, task)
        .env("LARDER_GUARD", one_in)
        .output()
        .unwrap();
    let (said, report) = (&output.stdout, &output.stderr);
    let report = String::from_utf8_lossy(report);
    assert!(output.status.success() && report.is_empty(), "{report}");
    let said = String::from_utf8_lossy(said);
    let mut lines = said.lines();
    let number = lines.find_map(|line| line.split_once("said ")?.1.parse().ok());
    number.unwrap()
}

#[test]
fn of_a_loop_that_frees_what_it_allocates_about_one_block_in_so_many_has_a_page() {
    for one_in in [10, 1000] {
        let found = said("loop", &one_in.to_string());
        let expected = ROUNDS / one_in;
        // What the thread needs more than it has at hand is counted, too.
        assert!(
            (expected * 8 / 10..=expected * 3).contains(&found),
            "{one_in}: {found}"
        );
    }
    assert_eq!(said("loop", "never"), 0);
}

#[test]
fn programs_without_a_misuse_say_what_they_always_say() {
    let expected = said("words", "never");
    for one_in in ["1", "10", "1000"] {
        assert_eq!(said("words", one_in), expected, "{one_in}");
    }
}
