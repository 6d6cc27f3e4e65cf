//! Misuse of the heap by a Rust program, and correct use, in each mode that detects misuse. C and
//! C++ programs are in `malloc`, the plain heap in `process`.
//!
//! The program starts itself again for each task and for each mode, which the environment sets.
//!
//! * `random` each kind of misuse at random moments · `reports` stacks, reports at exit, hooks that
//!   panic · `faults` guard pages
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(all(target_os = "linux", not(miri)))]

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod random;
mod reports;

use std::env;
use std::process::ExitStatus;

use larder::Larder;

/// Not the global allocator, because the test harness would use up the few guard pages.
static HEAP: Larder = Larder::new().with_environment();

const TASK: &str = "HEAP_TEST_TASK";

/// The name of each mode, and the variable that sets it.
const MODES: [(&str, (&str, &str)); 5] = [
    ("hardened", ("LARDER_MODE", "hardened")),
    ("checking", ("LARDER_MODE", "checking")),
    ("guard", ("LARDER_GUARD", "1")),
    ("guard-10", ("LARDER_GUARD", "10")),
    ("guard-1000", ("LARDER_GUARD", "1000")),
];

struct End {
    status: ExitStatus,
    /// Standard output.
    said: String,
    report: String,
}

/// Runs a task in a mode, or on the plain heap if there is no mode of this name.
fn run(mode: &str, task: &str, variables: &[(&str, &str)]) -> End {
    let mode = MODES.iter().filter(|(name, _)| *name == mode);
    let output = common::this_program()
        .args(["--exact", "does_one_thing", "--nocapture", "--ignored"])
        .env(TASK, task)
        .envs(mode.map(|(_, variable)| *variable))
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    End {
        status: output.status,
        said: text(&output.stdout),
        report: text(&output.stderr),
    }
}

impl End {
    /// Asserts that the process succeeded and reported nothing.
    #[track_caller]
    fn assert_well(&self, what: &str) {
        let is_well = self.status.success() && self.report.is_empty();
        assert!(
            is_well,
            "{what}: {}{}{}",
            self.status, self.said, self.report
        );
    }
}

#[test]
#[ignore = "others start it"]
fn does_one_thing() {
    let Ok(task) = env::var(TASK) else {
        return;
    };
    let words: Vec<&str> = task.split(' ').collect();
    match words[..] {
        ["correct"] => common::shuffle(4, 8000, 1),
        ["random", mode, kind] => random::told(mode, kind),
        ["once", mode, kind] => random::once(mode, kind),
        ["touch", verbs, place, bytes] => faults::touch(verbs, place, bytes.parse().unwrap()),
        ["loop"] => println!("\nsaid {}", faults::blocks_in_pages()),
        [name] => reports::task(name),
        _ => panic!("no task is {task}"),
    }
}

#[test]
fn random_programs_of_threads_find_every_block_whole_in_every_mode() {
    for (mode, _) in MODES {
        let mut end = run(mode, "correct", &[]);
        // With one block in one, threads may need more guard pages than there are.
        let full = "larder: all 1024 guard pages are in use: further blocks have none\n";
        if mode == "guard" && end.report == full {
            end.report.clear();
        }
        end.assert_well(mode);
    }
}
