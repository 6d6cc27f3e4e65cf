//! Runs each case in a child process and checks its exit.
//!
//! Like other test programs, this accepts a part of a case's name, `--exact`, `--skip`, `--list`
//! and `--ignored`. Other options are ignored.

use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, thread};

use crate::common::this_program;

/// The argument that makes the process run a single case.
const CASE: &str = "--case";

/// Seconds before the system ends a hung process: far more than a case takes on a busy machine.
const LIMIT_SECONDS: libc::c_uint = 1200;

/// A test that runs in a process of its own.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    /// A sentence that says what the case shows.
    pub(crate) name: &'static str,
    pub(crate) run: fn(),
    pub(crate) ends: Ends,
    /// Number of processes that run the case, one after another, in each environment.
    pub(crate) times: usize,
    pub(crate) environments: &'static [Variables],
}

/// Environment variables that configure the heap of a process.
pub(crate) type Variables = &'static [(&'static str, &'static str)];

#[derive(Clone, Copy)]
pub(crate) enum Ends {
    /// Success, with nothing on standard error.
    Well,
    /// Success, with exactly this on standard error.
    Says(&'static str),
    /// `abort`, with exactly this on standard error.
    Aborts(&'static str),
}

impl Case {
    pub(crate) const fn new(name: &'static str, run: fn()) -> Self {
        Self {
            name,
            run,
            ends: Ends::Well,
            times: 1,
            environments: &[&[]],
        }
    }

    pub(crate) const fn ends(self, ends: Ends) -> Self {
        Self { ends, ..self }
    }

    pub(crate) const fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    pub(crate) const fn with(self, environments: &'static [Variables]) -> Self {
        Self {
            environments,
            ..self
        }
    }

    /// Returns how the process's end differs from the expected one, if it does.
    fn complaint(&self, output: &Output) -> Option<String> {
        let said = String::from_utf8_lossy(&output.stderr);
        let (signal, expected) = match self.ends {
            Ends::Well => (None, ""),
            Ends::Says(words) => (None, words),
            Ends::Aborts(words) => (Some(libc::SIGABRT), words),
        };
        let ended_so = match signal {
            Some(number) => output.status.signal() == Some(number),
            None => output.status.success(),
        };
        let hung = output.status.signal() == Some(libc::SIGALRM);
        let cause = match (hung, ended_so, said == expected) {
            (true, ..) => "it hung",
            (_, false, _) => "it ended otherwise",
            (_, _, false) => "it said something else",
            _ => return None,
        };
        Some(format!("{}: {cause}: {}\n{said}", self.name, output.status))
    }

    /// Runs the case in its child processes. Returns the first complaint.
    fn judge(&self) -> Option<String> {
        let environments = self.environments.iter().cycle();
        for variables in environments.take(self.times * self.environments.len()) {
            let child = this_program()
                .args([CASE, self.name])
                .envs(variables.iter().copied())
                .stdin(Stdio::null())
                .output()
                .unwrap();
            if let Some(complaint) = self.complaint(&child) {
                return Some(complaint);
            }
        }
        None
    }
}

/// Makes the system end this process after `seconds`.
pub(crate) fn limit_time(seconds: libc::c_uint) {
    // SAFETY: has no preconditions.
    unsafe { libc::alarm(seconds) };
}

/// Runs one case if the arguments say so, or else the chosen cases. Returns whether all passed.
pub(crate) fn main(cases: &[Case]) -> bool {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [first, name] = &arguments[..]
        && first == CASE
    {
        limit_time(LIMIT_SECONDS);
        let case = cases.iter().find(|case| case.name == name).unwrap();
        (case.run)();
        return true;
    }
    let chosen = choose(cases, &arguments);
    if arguments.iter().any(|argument| argument == "--list") {
        for case in &chosen {
            println!("{}: test", case.name);
        }
        return true;
    }
    run_all(&chosen)
}

fn choose<'a>(cases: &'a [Case], arguments: &[String]) -> Vec<&'a Case> {
    let has = |option: &str| arguments.iter().any(|argument| argument == option);
    if has("--ignored") {
        return Vec::new();
    }
    let (mut filters, mut skips) = (Vec::new(), Vec::new());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--skip" {
            skips.extend(rest.next());
        } else if !argument.starts_with('-') {
            filters.push(argument);
        }
    }
    let fits = |name: &str, filter: &str| {
        if has("--exact") {
            name == filter
        } else {
            name.contains(filter)
        }
    };
    let chosen = cases.iter().filter(|case| {
        (filters.is_empty() || filters.iter().any(|filter| fits(case.name, filter)))
            && !skips.iter().any(|skip| fits(case.name, skip))
    });
    chosen.collect()
}

/// Runs at least four cases at a time, since most of them wait. Returns whether all passed.
fn run_all(chosen: &[&Case]) -> bool {
    println!(
        "\nrunning {} cases, each in a process of its own",
        chosen.len()
    );
    let next = AtomicUsize::new(0);
    let complaints = Mutex::new(Vec::new());
    let workers = thread::available_parallelism().map_or(4, |count| count.get().max(4));
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(case) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let complaint = case.judge();
                    let result = if complaint.is_none() { "ok" } else { "FAILED" };
                    println!("test {} ... {result}", case.name);
                    complaints.lock().unwrap().extend(complaint);
                }
            });
        }
    });
    let complaints = complaints.into_inner().unwrap();
    for complaint in &complaints {
        println!("\n{complaint}");
    }
    println!(
        "\n{} passed; {} failed\n",
        chosen.len() - complaints.len(),
        complaints.len()
    );
    complaints.is_empty()
}
