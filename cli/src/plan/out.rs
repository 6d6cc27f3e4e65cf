//! Plans as files: the offset of each buffer.

use std::io::Write;
use std::path::Path;

use clap::ValueEnum;
use serde::Serialize;

use super::{PlanRow, Problem};

/// The format of a file of plans, which its ending names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanFormat {
    /// A single plan, in the columns that `larder plan` reads.
    Csv,
    /// A list of plans.
    Json,
}

impl PlanFormat {
    /// Returns the format of a file; `None` if its name has another ending.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        Self::from_str(path.extension()?.to_str()?, true).ok()
    }
}

/// A plan in a file.
#[derive(Serialize)]
struct Plan<'p> {
    problem: &'p str,
    height: u64,
    buffers: Vec<PlannedBuffer<'p>>,
}

#[derive(Serialize)]
struct PlannedBuffer<'p> {
    id: &'p str,
    lower: u32,
    upper: u32,
    size: u64,
    alignment: u64,
    offset: u64,
}

/// Writes plans. CSV has the buffers of all plans, without the plans' names.
pub(crate) fn write(
    format: PlanFormat,
    solved: &[(Problem, PlanRow)],
    mut out: impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let plans = solved.iter().map(|(problem, row)| Plan {
        problem: &problem.name,
        height: row.height,
        buffers: buffers(problem, &row.offsets).collect(),
    });
    match format {
        PlanFormat::Csv => {
            let mut out = csv::Writer::from_writer(&mut out);
            for buffer in plans.flat_map(|plan| plan.buffers) {
                out.serialize(buffer)?;
            }
            out.flush()?;
        }
        PlanFormat::Json => {
            serde_json::to_writer(&mut out, &plans.collect::<Vec<_>>())?;
            out.write_all(b"\n")?;
        }
    }
    Ok(out.flush()?)
}

fn buffers<'p>(
    problem: &'p Problem,
    offsets: &'p [u64],
) -> impl Iterator<Item = PlannedBuffer<'p>> {
    let buffers = problem.ids.iter().zip(&problem.lifetimes).zip(offsets);
    buffers.map(|((id, lifetime), offset)| PlannedBuffer {
        id,
        lower: lifetime.begin,
        upper: lifetime.end,
        size: lifetime.bytes,
        alignment: lifetime.align.bytes(),
        offset: *offset,
    })
}
