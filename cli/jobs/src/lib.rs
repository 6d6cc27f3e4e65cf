//! Several jobs on one GPU, seen and changed from outside: commands of the program `larder`.
//!
//! * `job` replays a recorded trace as a job that obeys its control file.
//! * `top` shows the jobs; `control` changes one; `coordinate` divides
//!   a device's memory among them.
//!
//! All but `job` only read and write files, so they work on a machine without a driver, and with
//! jobs of other programs that speak AntMan's protocol. `files` finds the two files of each job,
//! `view` reads them, `order` changes the control file, `alive` checks whether the process exists.
//!
//! The program's other commands use this crate's embedded stand-in driver ([`embedded_stand_in`]),
//! tables for terminals ([`layout`]) and byte counts ([`units`]).
//!
//! Exit codes: 0 success; 1 the requested work failed, or output could not be written; 2 wrong
//! arguments. A closed pipe is not a failure (0), except if it ends a coordination (1).
#![deny(unsafe_code)]
// These macros would print untrusted text unescaped (VISIBLE1).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod alive;
mod arguments;
mod control;
mod coordinate;
pub mod embedded_stand_in;
mod files;
mod job;
pub mod layout;
mod order;
mod top;
pub mod units;
mod view;
mod visible;

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;

use coordinate::FolderError;
use files::FilesError;
use larder_cuda::job::JobError;
use order::OrderError;
use visible::{json, visible};

/// The commands for jobs.
#[allow(missing_docs, reason = "help is taken from the arguments of each")]
#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    Control(control::ControlArgs),
    Coordinate(coordinate::CoordinateArgs),
    Job(job::JobArgs),
    Top(top::TopArgs),
}

/// The reason for an exit code other than 0.
#[derive(Debug)]
enum Failure {
    /// Wrong arguments that are found only when they are used.
    Arguments(String),
    /// The requested work failed.
    Failed(String),
    /// Writing to standard output failed.
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<FilesError> for Failure {
    fn from(error: FilesError) -> Self {
        Self::Arguments(error.to_string())
    }
}

impl From<FolderError> for Failure {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::Missing { .. } => Self::Arguments(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<OrderError> for Failure {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::File(error) => Self::Failed(error.to_string()),
            error => Self::Arguments(error.to_string()),
        }
    }
}

impl From<Box<dyn Error>> for Failure {
    fn from(error: Box<dyn Error>) -> Self {
        match error.downcast_ref() {
            // The user can choose another name.
            Some(JobError::Taken(_)) => Self::Arguments(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Runs one command. Returns the exit code.
#[must_use]
pub fn run(command: JobsCommand) -> ExitCode {
    let result = match command {
        JobsCommand::Control(args) => control::run(&args),
        JobsCommand::Coordinate(args) => coordinate::run(args),
        JobsCommand::Job(args) => job::run(&args),
        JobsCommand::Top(args) => top::run(&args),
    };
    let (code, message) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        // The reader closed the output, which is not a failure.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            return ExitCode::SUCCESS;
        }
        Err(Failure::Output(error)) => (1, format!("cannot write to standard output: {error}")),
        Err(Failure::Failed(message)) => (1, message),
        Err(Failure::Arguments(message)) => (2, message),
    };
    complain(&message);
    ExitCode::from(code)
}

/// Writes an error to stderr, in one line.
fn complain(message: &dyn Display) {
    note(&format_args!("error: {message}"));
}

/// Writes one line to stderr. A closed stderr is ignored.
fn note(message: &dyn Display) {
    let _ = writeln!(io::stderr(), "{}", visible(&message.to_string()));
}

/// Prints values as lines of JSON.
fn print_json<T: Serialize>(values: impl IntoIterator<Item = T>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for value in values {
        writeln!(out, "{}", json(&value)?)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests;
