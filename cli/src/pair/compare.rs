//! Many contenders in alternated rounds.
//!
//! The clock of a shared machine drifts by more than contenders differ, so that
//! times of separate runs cannot be compared. Within one round all contenders run
//! close together, and only ratios of one round are taken.

use super::{Failure, Runner};
use crate::numbers::median;

/// Untimed pairs before the first timed one, per live block: of the blocks placed by filling, in
/// the order of addresses, one in fifty is left then.
const SETTLING_PAIRS_PER_LIVE: u64 = 4;

/// One in so many pairs of a round runs before the clock starts, to bring a contender's tables
/// back into the caches that the one before it filled.
const WARMING_SHARE: u64 = 8;

/// What one contender took, over all rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct PairResult {
    /// Its name.
    pub contender: &'static str,
    /// How many blocks were live.
    pub live: usize,
    /// Nanoseconds per pair, median of the rounds.
    pub ns_per_pair_median: f64,
    /// Its time over that of `offset-allocator` in the same round, median of the rounds.
    pub ratio_to_offset_allocator_median: f64,
    /// The smallest of these ratios.
    pub ratio_min: f64,
    /// The largest of these ratios.
    pub ratio_max: f64,
}

/// Runs all contenders in `rounds` rounds (at least one) of `pairs_per_round` pairs each, in
/// reverse order every other round, then checks them. `baseline` is the place of
/// `offset-allocator` in `runners`.
///
/// # Errors
/// The first failure of any contender; there are no results then.
///
/// # Panics
/// If `baseline` is out of range.
pub fn compare(
    mut runners: Vec<Box<dyn Runner + '_>>,
    baseline: usize,
    rounds: usize,
    pairs_per_round: usize,
) -> Result<Vec<PairResult>, Failure> {
    assert!(baseline < runners.len(), "the baseline is a contender");
    let pairs = (pairs_per_round as u64).max(1);
    for runner in &mut runners {
        settle(runner.as_mut())?;
    }
    let mut table = Vec::new();
    for round in 0..rounds.max(1) {
        table.push(run_round(&mut runners, round % 2 == 1, pairs)?);
    }
    let results = runners
        .iter()
        .enumerate()
        .map(|(place, runner)| summarize(runner.as_ref(), place, baseline, &table))
        .collect();
    for runner in runners {
        runner.finish()?;
    }
    Ok(results)
}

/// Brings a freshly filled contender to its steady state.
///
/// # Errors
/// If it fails a pair.
pub fn settle(runner: &mut (dyn Runner + '_)) -> Result<(), Failure> {
    runner.run(SETTLING_PAIRS_PER_LIVE * runner.live() as u64)?;
    Ok(())
}

/// Nanoseconds per pair of every runner, by its place.
fn run_round(
    runners: &mut [Box<dyn Runner + '_>],
    reversed: bool,
    pairs: u64,
) -> Result<Vec<f64>, Failure> {
    let mut ns = vec![0.0; runners.len()];
    for turn in 0..runners.len() {
        let place = if reversed {
            runners.len() - 1 - turn
        } else {
            turn
        };
        runners[place].run(pairs / WARMING_SHARE)?;
        let elapsed = runners[place].run(pairs)?;
        ns[place] = elapsed.as_secs_f64() * 1e9 / pairs as f64;
    }
    Ok(ns)
}

fn summarize(
    runner: &(dyn Runner + '_),
    place: usize,
    baseline: usize,
    table: &[Vec<f64>],
) -> PairResult {
    let mut ratios: Vec<f64> = table
        .iter()
        .map(|round| round[place] / round[baseline])
        .collect();
    let ns = table.iter().map(|round| round[place]).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    PairResult {
        contender: runner.name(),
        live: runner.live(),
        ns_per_pair_median: median(ns).unwrap_or(0.0),
        ratio_min: ratios[0],
        ratio_max: ratios[ratios.len() - 1],
        ratio_to_offset_allocator_median: median(ratios).unwrap_or(0.0),
    }
}
