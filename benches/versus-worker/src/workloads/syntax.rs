//! Rust sources that are parsed and printed, with large trees of small nodes.

use std::thread;

use quote::ToTokens;

use crate::clock::{Clock, Outcome};
use crate::scale::Scale;
use crate::tally::digest;

const SOURCES: [&str; 6] = [
    include_str!("../../corpus/check.rs.txt"),
    include_str!("../../corpus/give.rs.txt"),
    include_str!("../../corpus/grow.rs.txt"),
    include_str!("../../corpus/search.rs.txt"),
    include_str!("../../corpus/table.rs.txt"),
    include_str!("../../corpus/take.rs.txt"),
];

/// Number of sources parsed by each thread in a full run.
const FILES: u32 = 120;

/// Every thread parses the same sources, on its own.
pub fn syn(threads: usize, scale: Scale) -> Outcome {
    let files = scale.of(FILES);
    let clock = Clock::start();
    let answers: Vec<u64> = if threads == 1 {
        vec![translate(files)]
    } else {
        thread::scope(|scope| {
            let working: Vec<_> = (0..threads)
                .map(|_| scope.spawn(|| translate(files)))
                .collect();
            let join = |thread: thread::ScopedJoinHandle<'_, u64>| match thread.join() {
                Ok(answer) => answer,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            working.into_iter().map(join).collect()
        })
    };
    let outcome = clock.stop((threads * files) as u64, answers[0]);
    assert!(
        answers.iter().all(|answer| *answer == answers[0]),
        "threads disagree"
    );
    outcome
}

/// Returns a digest of all files' syntax trees. A few trees are live at the same time.
fn translate(files: usize) -> u64 {
    let mut trees = Vec::new();
    let mut answer = 0_u64;
    for number in 0..files {
        match syn::parse_file(SOURCES[number % SOURCES.len()]) {
            Ok(tree) => trees.push(tree),
            Err(error) => panic!("source {number} is not Rust: {error}"),
        }
        if trees.len() == SOURCES.len() || number + 1 == files {
            for tree in trees.drain(..) {
                let printed = tree.into_token_stream().to_string();
                answer = answer.rotate_left(1) ^ digest(&printed);
            }
        }
    }
    answer
}
