//! Instructions of one operation, counted by Valgrind's tool Callgrind.
//!
//! A worker runs at two small scales, and the difference of the counts over the difference of the
//! operations leaves out what it takes to start, and inputs of a fixed size. The figure is the
//! same in every run, so one is enough, and other programs may run beside it. It includes the
//! loop of the workload; it knows nothing of caches, of branches or of the system's own work.

use std::io;
use std::process::Command;

use comfy_table::Table;
use serde::Serialize;
use thiserror::Error;

use super::allocators;
use super::process::{RunFault, Sample, parse, printed};
use super::rounds::Settings;
use super::summary::in_order;
use super::table::{finish, new_table, none};
use super::workers::Worker;
use super::workloads::Workload;

/// Counted unless others are named: the ways to take and give one block.
pub const USUAL: [&str; 6] = [
    "pairs-1",
    "pairs-64",
    "pairs-4096",
    "boxes",
    "bare-sizes",
    "bare-boxes",
];

/// Shares of the full work. The smaller one has every first touch behind it.
const SCALES: [f64; 2] = [0.02, 0.06];

/// One allocator on one workload: a line of JSON, a cell of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Count {
    /// Tells it from other lines.
    pub measure: &'static str,
    /// Name of the workload.
    pub workload: &'static str,
    /// Name of the allocator.
    pub allocator: &'static str,
    /// How the worker was compiled.
    pub profile: &'static str,
    /// `None` where it failed.
    pub instructions_per_operation: Option<f64>,
    /// Why there is no figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Count {
    pub(super) fn is_ours(&self) -> bool {
        allocators::find(self.allocator).is_some_and(|allocator| allocator.ours)
    }
}

/// There is nothing to count with.
#[derive(Debug, Error)]
#[error(
    "instructions are counted by valgrind, which cannot be run ({0}); install it, or leave --instructions out"
)]
pub struct NoValgrind(io::Error);

/// Looks for Valgrind.
///
/// # Errors
/// [`NoValgrind`] if it is not installed.
pub fn find_valgrind() -> Result<(), NoValgrind> {
    let found = Command::new(VALGRIND).arg("--version").output();
    found.map(|_| ()).map_err(NoValgrind)
}

const VALGRIND: &str = "valgrind";

/// Counts the instructions of one operation.
#[must_use]
pub fn count(worker: &Worker, workload: &Workload, settings: &Settings) -> Count {
    let [less, more] = SCALES.map(|scale| run(worker, workload, settings, scale));
    let figure = less.and_then(|less| per_operation(&less, &more?));
    Count {
        measure: "instructions",
        workload: workload.name,
        allocator: worker.allocator.name,
        profile: worker.profile.name(),
        instructions_per_operation: figure.as_ref().ok().copied(),
        failed: figure.err().map(|fault| format!("under valgrind: {fault}")),
    }
}

/// A sample, and the instructions of the whole process.
type Counted = (Sample, u64);

fn run(
    worker: &Worker,
    workload: &Workload,
    settings: &Settings,
    scale: f64,
) -> Result<Counted, RunFault> {
    let mut command = Command::new(VALGRIND);
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(&worker.program)
        .arg(workload.name)
        .args(["--scale", &(scale * settings.scale).to_string()]);
    let printed = printed(&mut command, settings.limit)?;
    let sample = parse(&printed.out, worker.allocator.name, workload.name)?;
    let instructions = collected(&printed.said)
        .ok_or_else(|| RunFault::NoSample("valgrind tells no count".to_owned()))?;
    Ok((sample, instructions))
}

/// The count in what Callgrind says at the end.
pub(super) fn collected(said: &str) -> Option<u64> {
    let mut lines = said.lines().filter(|line| line.starts_with("=="));
    let (_, count) = lines.find_map(|line| line.split_once("Collected :"))?;
    count.trim().parse().ok()
}

fn per_operation(less: &Counted, more: &Counted) -> Result<f64, RunFault> {
    let instructions = more.1.checked_sub(less.1);
    let operations = more.0.operations.checked_sub(less.0.operations);
    match instructions.zip(operations) {
        Some((instructions, operations)) if operations > 0 => {
            Ok(instructions as f64 / operations as f64)
        }
        _ => Err(RunFault::NoSample(
            "more work has no more operations and instructions".to_owned(),
        )),
    }
}

/// All counts as text, a table for each profile.
#[must_use]
pub fn counts_table(counts: &[Count]) -> String {
    let mut text = String::new();
    for profile in in_order(counts.iter().map(|count| count.profile)) {
        let same = counts.iter().filter(|count| count.profile == profile);
        let same: Vec<&Count> = same.collect();
        let title = format!("instructions of one operation, loop included, profile {profile}");
        text.push_str(&finish(profile_table(&same), &title));
    }
    for count in counts {
        if let Some(why) = &count.failed {
            let (workload, allocator) = (count.workload, count.allocator);
            text.push_str(&format!("not counted: {workload} on {allocator}: {why}\n"));
        }
    }
    text
}

/// A line for each allocator, a column for each workload: there are more of the former.
fn profile_table(counts: &[&Count]) -> Table {
    let workloads = in_order(counts.iter().map(|count| count.workload));
    let mut table = new_table();
    let mut headings = vec!["allocator"];
    headings.extend(&workloads);
    table.set_header(headings);
    for allocator in in_order(counts.iter().map(|count| count.allocator)) {
        let mut cells = vec![allocator.to_owned()];
        for workload in &workloads {
            let is_it =
                |count: &&&Count| count.allocator == allocator && count.workload == *workload;
            cells.push(
                counts
                    .iter()
                    .find(is_it)
                    .map_or_else(none, |count| cell(count)),
            );
        }
        table.add_row(cells);
    }
    table
}

fn cell(count: &Count) -> String {
    let figure = count.instructions_per_operation;
    figure.map_or_else(
        || "does not run".to_owned(),
        |figure| format!("{figure:.1}"),
    )
}
