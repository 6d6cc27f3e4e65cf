//! Says while a job is at work that its status cannot be written: who looks at the file sees an old one, or none.
//!
//! A thread looks, since the job may stand still in a run, or wait for a limit that nobody who misses its status sets.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use larder_cuda::control::{Job, JobState};

use crate::complain;

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(100);

/// Problems that are said. Each is about one file, so there are few, unless somebody makes up new ones.
const MOST: usize = 16;

/// Works, and says on stderr what keeps the status from being written meanwhile, each problem once. The work goes on.
///
/// # Errors
/// If the thread that looks cannot be started; nothing was done then.
pub(super) fn watched<R>(job: &Job, work: impl FnOnce() -> R) -> io::Result<R> {
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let watch = move || {
            let mut said = Said::default();
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                said.say(&job.state());
            }
            // What changed last is written now, if it is not yet.
            job.poll();
            said.say(&job.state());
        };
        thread::Builder::new().spawn_scoped(scope, watch)?;
        let worked = work();
        drop(end);
        Ok(worked)
    })
}

/// What was said.
#[derive(Default)]
struct Said {
    unwritten: u64,
    problems: BTreeSet<String>,
}

impl Said {
    fn say(&mut self, state: &JobState) {
        if let Some(problem) = self.new_problem(state.unwritten, state.problem.as_deref()) {
            complain(&format_args!("{problem}; the job goes on"));
        }
    }

    /// The problem, if the status could not be written again and it was not said before.
    fn new_problem<'p>(&mut self, unwritten: u64, problem: Option<&'p str>) -> Option<&'p str> {
        if unwritten <= self.unwritten {
            return None;
        }
        self.unwritten = unwritten;
        let problem = problem?;
        let is_new = self.problems.len() < MOST && self.problems.insert(problem.to_owned());
        is_new.then_some(problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_of_the_status_is_said_once_and_not_without_end() {
        let mut said = Said::default();
        // Of a control file.
        assert_eq!(said.new_problem(0, Some("torn")), None);
        assert_eq!(said.new_problem(2, Some("full")), Some("full"));
        assert_eq!(said.new_problem(2, Some("other")), None);
        assert_eq!(said.new_problem(3, Some("full")), None);
        assert_eq!(said.new_problem(4, Some("gone")), Some("gone"));
        assert_eq!(said.new_problem(5, Some("full")), None);
        let further =
            (6..100).map(|count| said.new_problem(count, Some(&count.to_string())).is_some());
        assert_eq!(further.filter(|is_said| *is_said).count(), MOST - 2);
    }
}
