//! The instructions of one operation, counted with Valgrind's tool Callgrind.
//!
//! A worker runs at two small scales. The difference of the instruction counts over the difference of the operations
//! excludes the start, and the work for inputs of a fixed size. The figure is the same in every run, so one run is
//! enough, and other programs may run at the same time. It includes the loop of the workload, but no effect of caches,
//! branches or the system.

use std::process::Command;

use serde::Serialize;

use super::allocators;
use super::process::{RunFault, Sample, parse, printed};
use super::rounds::Settings;
use super::workers::Worker;
use super::workloads::Workload;
use crate::numbers::in_order;
use crate::report::{Table, none};

/// The default workloads: the ways to allocate and free one block.
pub(crate) const USUAL: [&str; 6] = [
    "pairs-1",
    "pairs-64",
    "pairs-4096",
    "boxes",
    "bare-sizes",
    "bare-boxes",
];

/// The two scales. At the smaller one, all memory has already been touched once.
const SCALES: [f64; 2] = [0.02, 0.06];

/// The result of one allocator on one workload: one line of JSON and one cell of the table. It has no figure if the
/// allocator failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Count {
    /// Distinguishes the row from other lines.
    pub(crate) measure: &'static str,
    pub(crate) workload: &'static str,
    pub(crate) allocator: &'static str,
    pub(crate) profile: &'static str,
    pub(crate) instructions_per_operation: Option<f64>,
    pub(crate) failed: Option<String>,
}

impl Count {
    pub(super) fn is_ours(&self) -> bool {
        allocators::find(self.allocator).is_some_and(|allocator| allocator.ours)
    }
}

/// Checks that Valgrind is installed.
pub(crate) fn find_valgrind() -> Result<(), String> {
    let found = Command::new(VALGRIND).arg("--version").output();
    found.map(drop).map_err(|error| {
        format!(
            "instructions are counted by valgrind, which cannot be run ({error}); install it, or leave --instructions out"
        )
    })
}

const VALGRIND: &str = "valgrind";

/// Counts the instructions of one operation.
pub(crate) fn count(worker: &Worker, workload: &Workload, settings: &Settings) -> Count {
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
        .ok_or_else(|| RunFault::NoSample("valgrind printed no count".to_owned()))?;
    Ok((sample, instructions))
}

/// Parses the count in Callgrind's last lines.
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

/// Formats all counts, with one table for each profile.
pub(crate) fn counts_table(counts: &[Count], width: usize) -> String {
    let mut text = String::new();
    for profile in in_order(counts.iter().map(|count| count.profile)) {
        let same = counts.iter().filter(|count| count.profile == profile);
        let same: Vec<&Count> = same.collect();
        let title = format!("instructions of one operation, loop included, profile {profile}");
        text.push_str(&profile_table(&same).titled(&title, width));
    }
    for count in counts {
        if let Some(why) = &count.failed {
            let (workload, allocator) = (count.workload, count.allocator);
            text.push_str(&format!("not counted: {workload} on {allocator}: {why}\n"));
        }
    }
    text
}

/// Returns a table with a line for each allocator and a column for each workload, since there are more allocators than
/// workloads.
fn profile_table(counts: &[&Count]) -> Table {
    let workloads = in_order(counts.iter().map(|count| count.workload));
    let mut table = Table::new([&["allocator"], &workloads[..]].concat());
    for allocator in in_order(counts.iter().map(|count| count.allocator)) {
        let mut cells = vec![allocator.to_owned()];
        cells.extend(workloads.iter().map(|workload| {
            let mut same = counts.iter().filter(|count| count.workload == *workload);
            let count = same.find(|count| count.allocator == allocator);
            count.map_or_else(none, |count| cell(count))
        }));
        table.row(cells);
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
