//! Guard pages in a Rust program whose global allocator is this heap: the runtime of Rust has its
//! own handler for faults, and its threads run handlers on stacks of 8 KiB.
//!
//! The program starts itself again for each misuse, drawn from a seed, and for each case. A misuse
//! of a block with guard pages must be reported. Release builds have no lines unless asked:
//!
//! ```sh
//! HEAP_TEST_MISUSES=1000 cargo test -p larder --features heap-profile --test guarded
//! CARGO_PROFILE_RELEASE_DEBUG=line-tables-only HEAP_TEST_MISUSES=1000 \
//!     cargo test --release -p larder --features heap-profile --test guarded
//! ```
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg_attr(
    any(not(target_os = "linux"), miri),
    allow(
        dead_code,
        unused_imports,
        reason = "faults are reported only on Linux"
    )
)]

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod misuses;

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new().with_environment();

struct End {
    status: ExitStatus,
    said: String,
    report: String,
}

/// Runs a task in a child, in whose heap one block in `one_in` has guard pages.
fn run(one_in: usize, task: &[&str]) -> End {
    let output = common::this_program()
        .arg("--task")
        .args(task)
        .env("LARDER_GUARD", one_in.to_string())
        .env("LARDER_GUARD_FAULTS", "yes")
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
    #[track_caller]
    fn assert_ended_by(&self, signal: i32, what: &str) {
        let Self {
            status,
            said,
            report,
        } = self;
        assert_eq!(status.signal(), Some(signal), "{what}: {said}{report}");
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
fn main() {}

/// Not a test of the harness, whose own blocks would use up the guard pages.
#[cfg(all(target_os = "linux", not(miri)))]
fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["--task", "misuse", kind, seed] => misuses::task(kind, seed.parse().unwrap()),
        ["--task", name] => cases::task(name),
        _ => {
            cases::check_all();
            misuses::check_all();
        }
    }
}
