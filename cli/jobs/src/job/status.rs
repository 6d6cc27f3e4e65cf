//! Reports problems with a job's files while the job works: its status cannot be written, so that
//! readers see an old one or none; its control file is not obeyed; or its names are another job's.
//!
//! A separate thread checks, because the job may be suspended in a run, or may be waiting for a
//! limit that no coordinator sets without its status.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use larder_cuda::job::{Job, JobState};

use crate::note;

/// Time between two checks.
const INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of problems reported. Each concerns one file, so there are few, unless an
/// attacker invents new ones.
const MOST: usize = 16;

/// Runs `work`, and meanwhile reports problems with the job's files on stderr, each once. The work
/// continues.
///
/// # Errors
/// If the checking thread cannot be started; then `work` is not run.
pub(super) fn watched<R>(job: &Job, work: impl FnOnce() -> R) -> io::Result<R> {
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let watch = move || {
            let mut said = Said::default();
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                said.say(&job.state());
            }
            // Writes the last change to the status, if that has not been done.
            job.poll();
            said.say(&job.state());
        };
        thread::Builder::new().spawn_scoped(scope, watch)?;
        let worked = work();
        drop(end);
        Ok(worked)
    })
}

/// The problems reported.
#[derive(Default)]
struct Said(BTreeSet<String>);

impl Said {
    fn say(&mut self, state: &JobState) {
        if let Some(problem) = self.new_problem(state.problem.as_deref()) {
            note(&format_args!("{problem}; the job continues"));
        }
    }

    /// Returns the problem if it is new.
    fn new_problem<'p>(&mut self, problem: Option<&'p str>) -> Option<&'p str> {
        let problem = problem.filter(|problem| !self.0.contains(*problem))?;
        let is_new = self.0.len() < MOST && self.0.insert(problem.to_owned());
        is_new.then_some(problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_said_once_and_not_without_end() {
        let mut said = Said::default();
        assert_eq!(said.new_problem(None), None);
        for (problem, is_new) in [
            ("torn", true),
            ("torn", false),
            ("full", true),
            ("torn", false),
        ] {
            assert_eq!(said.new_problem(Some(problem)).is_some(), is_new);
        }
        let further = (0..100).map(|count| said.new_problem(Some(&count.to_string())).is_some());
        assert_eq!(further.filter(|is_said| *is_said).count(), MOST - 2);
    }
}
