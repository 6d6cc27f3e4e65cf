//! Packs one problem within a time limit.

use std::time::{Duration, Instant};

use larder_core::pack::{PackError, Packer, validate};
use larder_model::OwnedPackTables;
use serde::Serialize;

use super::Problem;
use crate::interrupt;

/// Search steps between two looks at the clock, multiplied by the number of lifetimes (a step takes
/// time in proportion to that number).
const WORK_PER_LOOK: u64 = 200_000;

/// Limits of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Maximum time, approximately.
    pub time: Duration,
    /// Maximum number of steps of the search.
    pub steps: u64,
    /// A height in bytes that is good enough, or 0 for the lowest possible.
    pub stop_at: u64,
}

/// The result for one problem: one line of JSON and one row of the table. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanRow {
    /// The problem's name.
    pub problem: String,
    /// The number of lifetimes.
    pub buffers: usize,
    /// Maximum bytes live at one tick.
    pub max_live: u64,
    /// Lower bound on the height of any packing.
    pub lower_bound: u64,
    /// The best height.
    pub height: u64,
    /// The best height over `max_live`; `None` if no bytes are ever live.
    pub height_over_live: Option<f64>,
    /// The height of the best greedy packing.
    pub first_height: u64,
    /// Seconds until the best greedy packing was found.
    pub first_seconds: f64,
    /// Seconds in total.
    pub seconds: f64,
    /// Whether the best packing is proven to be optimal.
    pub proven: bool,
    /// Whether the independent validator accepted the best packing, and computed the same height.
    pub valid: bool,
    /// The offset of each lifetime.
    #[serde(skip)]
    pub offsets: Vec<u64>,
}

/// Packs `problem` and checks the result.
///
/// # Errors
/// Returns an error if the packer refuses the problem.
pub fn solve(problem: &Problem, effort: &Effort) -> Result<PlanRow, PackError> {
    let lifetimes = &problem.lifetimes;
    let mut tables = OwnedPackTables::new(lifetimes.len());
    let start = Instant::now();
    let mut packer = Packer::new(lifetimes, tables.lend())?;
    packer.stop_at(effort.stop_at);
    packer.first();
    let first_seconds = start.elapsed().as_secs_f64();
    let first_height = packer.height();
    let look = (WORK_PER_LOOK / (lifetimes.len() as u64 + 1)).clamp(1, 1000);
    let mut steps = 0;
    let goes_on = || start.elapsed() < effort.time && !interrupt::asked();
    while !packer.is_done() && steps < effort.steps && goes_on() {
        packer.improve(look);
        steps += look;
    }
    let seconds = start.elapsed().as_secs_f64();
    let max_live = packer.max_live_bytes();
    Ok(PlanRow {
        problem: problem.name.clone(),
        buffers: lifetimes.len(),
        max_live,
        lower_bound: packer.lower_bound(),
        height: packer.height(),
        height_over_live: (max_live > 0).then(|| packer.height() as f64 / max_live as f64),
        first_height,
        first_seconds,
        seconds,
        proven: packer.is_proven(),
        valid: validate(lifetimes, packer.offsets()) == Ok(packer.height()),
        offsets: packer.offsets().to_vec(),
    })
}
