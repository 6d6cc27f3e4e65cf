//! Plans memory for problems from files: computes offsets for known lifetimes.
//!
//! A [`Problem`] comes from a CSV file (`csv`) or is one step of a recorded trace (`steps`);
//! [`solve`] packs it with [`larder_core::pack`] and checks the result with the independent
//! validator.

pub(crate) mod csv;
mod out;
#[cfg(test)]
mod planning_sets_tests;
mod program;
mod solve;
pub(crate) mod steps;
#[cfg(test)]
mod tests;

use std::io::{BufRead, BufReader};
use std::path::Path;

use larder_core::pack::Lifetime;
use larder_trace::{RMM_HEADER, TraceError};

use crate::input;

pub(crate) use out::{PlanFormat, write};
pub(crate) use program::trace;
pub use solve::{Effort, PlanRow, solve};

/// Lifetimes to be packed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Name of the file, and of the step if the file has several.
    pub name: String,
    /// The lifetimes to be packed.
    pub lifetimes: Vec<Lifetime>,
    /// The name of each lifetime's buffer in the file.
    pub ids: Vec<String>,
}

/// Loads all problems of a file: one from a CSV file (recognized by its name, unless it is an RMM
/// log), otherwise those of its traces. If the last trace is cut short, returns the part before the
/// cut, and the defect. An error is the first defect found, with file and line.
pub(crate) fn load(path: &Path) -> Result<(Vec<Problem>, Option<TraceError>), String> {
    if let Some(problem) = lifetimes(path)? {
        return Ok((vec![problem], None));
    }
    let (traces, cut) = input::traces(path).map_err(|error| error.to_string())?;
    Ok((traces.iter().flat_map(steps::problems).collect(), cut))
}

/// Loads the problem of a CSV file; `None` if the file is a trace. An error has file and line.
pub(crate) fn lifetimes(path: &Path) -> Result<Option<Problem>, String> {
    let ending = path.extension();
    if !ending.is_some_and(|ending| ending.eq_ignore_ascii_case("csv")) || is_rmm_log(path) {
        return Ok(None);
    }
    let file = input::open(path).map_err(|error| (None, csv::CsvDefect::Unreadable(error.into())));
    let (ids, lifetimes) = file.and_then(csv::read).map_err(|(line, defect)| {
        let line = line.map_or_else(String::new, |line| format!("{line}:"));
        format!("{}:{line} {defect}", path.display())
    })?;
    let name = path.file_stem().unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    Ok(Some(Problem {
        name,
        lifetimes,
        ids,
    }))
}

/// Recognizes an RMM log by its first bytes. A file that cannot be read is not recognized; the next
/// attempt to read it reports the error.
fn is_rmm_log(path: &Path) -> bool {
    let Ok(file) = input::open(path) else {
        return false;
    };
    let mut file = BufReader::new(file);
    let head = file.fill_buf();
    head.is_ok_and(|head| head.starts_with(RMM_HEADER.as_bytes()))
}
