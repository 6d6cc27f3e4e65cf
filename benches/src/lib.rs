//! The parts shared by the bench targets: contenders that take turns, and the pairs of `pair_rounds`.
#![deny(unsafe_code)]

pub mod pair;
pub mod rounds;

use std::error::Error;
use std::process::ExitCode;

/// Returns the exit code of a bench target. Prints an error to standard error.
pub fn exit_code(outcome: Result<(), Box<dyn Error>>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
