//! Rounds: every worker runs once in each round, in turns, so that a slow phase of the machine affects all workers.

use std::time::Duration;

use clap::Args;

use super::allocators::{Allocator, SYSTEM};
use super::process::{self, RunFault, Sample};
use super::workers::{Profile, Worker};
use super::workloads::Workload;

/// The settings of runs.
#[derive(Debug, Clone, Copy, PartialEq, Args)]
pub(crate) struct Settings {
    /// Runs of each program; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,

    /// The scale of the work, such as 0.1 for a first look
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = parse_scale)]
    pub(crate) scale: f64,

    /// Seconds after which a run is stopped and counts as failed
    #[arg(long, value_name = "S", default_value = "120", value_parser = parse_limit)]
    pub(crate) limit: Duration,
}

/// Maximum scale. Above it, the workers' counts are inexact.
const MAX_SCALE: f64 = 1e6;

fn parse_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= MAX_SCALE => Ok(scale),
        _ => Err(format!("give a number above 0 and up to {MAX_SCALE}")),
    }
}

fn parse_limit(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err("give a whole number of seconds above 0".to_owned()),
    }
}

/// The runs of one worker on one workload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Runs {
    pub(crate) allocator: &'static str,
    pub(crate) profile: Profile,
    /// One sample for each round, up to the first fault.
    pub(crate) samples: Vec<Sample>,
    /// The fault of a run, if there is one; the figures then do not count.
    pub(crate) fault: Option<RunFault>,
}

/// Returns whether the allocator runs the workload.
pub(crate) fn takes_part(allocator: &Allocator, workload: &Workload) -> bool {
    let Allocator {
        one_lock,
        steps_only,
        ..
    } = *allocator;
    (workload.threads == 1 || !one_lock) && (workload.steps || !steps_only)
}

/// Runs a workload on all workers that can run it, and calls `about_to_run` before each run. A worker that fails does
/// not run in later rounds.
pub(crate) fn measure(
    workload: &Workload,
    workers: &[Worker],
    settings: &Settings,
    mut about_to_run: impl FnMut(&Worker),
) -> Vec<Runs> {
    let workers: Vec<&Worker> = workers
        .iter()
        .filter(|worker| takes_part(worker.allocator, workload))
        .collect();
    let none = |worker: &&Worker| Runs {
        allocator: worker.allocator.name,
        profile: worker.profile,
        samples: Vec::new(),
        fault: None,
    };
    let mut all: Vec<Runs> = workers.iter().map(none).collect();
    for round in 0..settings.rounds {
        for index in order(round, workers.len()) {
            about_to_run(workers[index]);
            let runs = &mut all[index];
            if runs.fault.is_some() {
                continue;
            }
            match process::run(workers[index], workload, settings) {
                Ok(sample) => runs.samples.push(sample),
                Err(fault) => runs.fault = Some(fault),
            }
        }
    }
    compare_answers(&mut all);
    all
}

/// Returns the order of a round. Every other round is reversed, so that no worker always runs after the same one.
pub(super) fn order(round: u32, length: usize) -> Vec<usize> {
    if round.is_multiple_of(2) {
        (0..length).collect()
    } else {
        (0..length).rev().collect()
    }
}

/// Marks the workers with a wrong answer as failed.
pub(super) fn compare_answers(all: &mut [Runs]) {
    let Some(expected) = right_answer(all) else {
        return;
    };
    for runs in all.iter_mut().filter(|runs| runs.fault.is_none()) {
        let mut answers = runs.samples.iter().map(|sample| sample.answer);
        if let Some(answer) = answers.find(|answer| *answer != expected) {
            runs.fault = Some(RunFault::WrongAnswer { answer, expected });
        }
    }
}

/// Returns the right answer: the system allocator's, or otherwise the most frequent one, or of equally frequent ones
/// the first.
fn right_answer(all: &[Runs]) -> Option<u64> {
    let answers = |runs: &Runs| -> Vec<u64> {
        let samples = runs.samples.iter();
        samples.map(|sample| sample.answer).collect()
    };
    let of_system = all.iter().filter(|runs| runs.allocator == SYSTEM);
    if let Some(answer) = of_system.flat_map(answers).next() {
        return Some(answer);
    }
    let given: Vec<u64> = all.iter().flat_map(answers).collect();
    let times = |answer: u64| given.iter().filter(|other| **other == answer).count();
    // The order is reversed because `max_by_key` returns the last of equals.
    let max = given.iter().copied().rev();
    max.max_by_key(|answer| times(*answer))
}
