//! Plans memory for problems from files: lifetimes in, offsets out.
//!
//! A [`Problem`] comes from a CSV file (`csv`) or is one step of a recorded trace (`steps`);
//! [`solve`] packs it with [`larder_core::lifetime::pack`] and has the result checked by the
//! independent validator.

pub(crate) mod csv;
#[cfg(test)]
mod planning_sets_tests;
mod solve;
pub(crate) mod steps;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::Path;

use larder_core::lifetime::Lifetime;
use larder_trace::Trace;

pub use solve::{Effort, PlanRow, solve};

/// Lifetimes to be packed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Name of the file, with the step for one of several.
    pub name: String,
    /// What is to be packed.
    pub lifetimes: Vec<Lifetime>,
}

/// All problems of a file: one of a CSV file (known by its name), or one for each step of a trace.
/// An error is the first defect found, with file
/// and line.
pub(crate) fn load(path: &Path) -> Result<Vec<Problem>, String> {
    let ending = path.extension();
    if !ending.is_some_and(|ending| ending.eq_ignore_ascii_case("csv")) {
        let trace = Trace::load(path).map_err(|error| error.to_string())?;
        return Ok(steps::problems(&trace));
    }
    let file = File::open(path).map_err(|error| (None, csv::CsvDefect::Unreadable(error.into())));
    let lifetimes = file.and_then(csv::read).map_err(|(line, defect)| {
        let line = line.map_or_else(String::new, |line| format!("{line}:"));
        format!("{}:{line} {defect}", path.display())
    })?;
    let name = path.file_stem().unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    Ok(vec![Problem { name, lifetimes }])
}
