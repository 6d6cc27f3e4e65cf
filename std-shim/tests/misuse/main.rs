//! Misuse of the heap by a Rust program, and its absence, in each mode that finds some: hardened, checking, and with
//! guard pages. Programs in C and C++ are tested in `malloc`, the plain heap in `process`.
//!
//! The program starts itself again for each mode, which the environment sets, and each task.
//!
//! * `random` each kind of misuse at random moments · `reports` what is said, and when a process ends · `faults`
//!   accesses to guard pages, and how many blocks have some
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

/// Not the program's own allocator: there are few guard pages, which the test harness would have.
static HEAP: Larder = Larder::new().with_environment();

/// The variable that selects a process's task.
const TASK: &str = "HEAP_TEST_TASK";

/// The modes by their words here, and the variable that sets each.
const MODES: [(&str, (&str, &str)); 5] = [
    ("hardened", ("LARDER_MODE", "hardened")),
    ("checking", ("LARDER_MODE", "checking")),
    ("guard", ("LARDER_GUARD", "1")),
    ("guard-10", ("LARDER_GUARD", "10")),
    ("guard-1000", ("LARDER_GUARD", "1000")),
];

/// The end and the output of a process.
struct End {
    status: ExitStatus,
    /// The lines of its task.
    said: String,
    report: String,
}

/// Runs a task in a mode, or in the plain heap if there is none of this name.
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
    /// Asserts that the process ended well and reported nothing.
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
        run(mode, "correct", &[]).assert_well(mode);
    }
}
