//! Plans memory for problems from files: lifetimes in, offsets out.
//!
//! A [`Problem`] comes from a CSV file ([`csv`]) or is one step of a recorded trace ([`steps`]);
//! [`solve`] packs it with [`larder_core::lifetime::pack`] and has the result checked by the
//! independent validator.

pub mod csv;
mod solve;
pub mod steps;
#[cfg(test)]
mod tests;

use std::path::Path;

use larder_core::lifetime::Lifetime;

pub use solve::{Effort, PlanRow, Unplanned, solve};

use larder_trace::{Trace, TraceError};

/// Lifetimes to be packed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Name of the file, with the step for one of several.
    pub name: String,
    /// What is to be packed.
    pub lifetimes: Vec<Lifetime>,
}

/// A file that holds no problem.
#[derive(Debug, thiserror::Error)]
pub enum ProblemError {
    /// A damaged CSV file.
    #[error(transparent)]
    Csv(#[from] csv::CsvError),
    /// A damaged trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// All problems of a file: one of a CSV file (known by its name), or one for each step of a trace.
///
/// # Errors
/// The first defect found, with its line.
pub fn load(path: &Path) -> Result<Vec<Problem>, ProblemError> {
    let is_csv = path
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
    if is_csv {
        Ok(vec![csv::load(path)?])
    } else {
        Ok(steps::problems(&Trace::load(path)?))
    }
}
