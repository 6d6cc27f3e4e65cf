//! The command line of the program `larder`.
//!
//! The exit codes are 0 for success; 1 if a contender broke its contract or failed, or output could
//! not be written; 2 for wrong arguments or a damaged trace; 3 if a trace did not fit its device;
//! and 130 after Ctrl-C, once the measurements so far are printed.

#[cfg(test)]
mod guide_tests;
mod plan;
mod replay;
mod shell;
mod versus;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::interrupt;
use crate::replay::ReplayError;
use crate::replay::heaps::{PlayHeapArgs, play_heap};

/// Replays recorded allocation traces, compares Larder with its peers, and runs jobs that share a GPU.
#[derive(Debug, Parser)]
#[command(name = "larder", version, about, max_term_width = 80)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(plan::PlanArgs),
    Replay(Box<replay::ReplayArgs>),
    Versus(versus::VersusArgs),
    #[command(flatten)]
    Jobs(larder_jobs::JobsCommand),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
    #[command(hide = true)]
    PlayHeap(PlayHeapArgs),
}

/// The reason for an exit code other than 0.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Wrong input, already reported on stderr.
    #[error("already reported")]
    Reported,
    /// Wrong arguments that are detected only when they are used.
    #[error("{0}")]
    Arguments(String),
    /// The requested work failed.
    #[error("{0}")]
    Failed(String),
    /// The device is too small for some of the replays.
    #[error("{replays} of {of} replays did not fit their device")]
    TooSmall { replays: usize, of: usize },
    /// The user pressed Ctrl-C.
    #[error("interrupted; what was measured until then is above")]
    Interrupted,
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// Returns whether the output's reader closed it, which is not a failure.
    fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns whether the failure needs no further report.
    fn is_reported(&self) -> bool {
        matches!(self, Self::Reported) || self.is_closed_pipe()
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Reported | Self::Arguments(_) => 2,
            _ if self.is_closed_pipe() => 0,
            Self::TooSmall { .. } => 3,
            Self::Interrupted => interrupt::EXIT_CODE,
            Self::Failed(_) | Self::Replay(_) | Self::Output(_) => 1,
        }
    }
}

/// Runs the program with the process's arguments. Returns its exit code.
#[must_use]
pub fn run() -> ExitCode {
    let Cli { command } = Cli::parse();
    let result = match command {
        Command::Plan(args) => plan::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Versus(args) => versus::run(&args),
        Command::Jobs(command) => return larder_jobs::run(command),
        Command::Completions(args) => shell::completions(&args, &mut Cli::command()),
        Command::Man(args) => shell::man(&args, Cli::command()),
        Command::PlayHeap(args) => return play_heap(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_reported() {
                complain(&failure);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Warns that a file is cut short and that the part before the cut is used.
fn warn_of_cut(cut: &larder_trace::TraceError) {
    warn(&format_args!("{cut}; the part before is used"));
}

/// Writes a warning to stderr; the work continues. A closed stderr is ignored.
fn warn(message: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "warning: {message}");
}

/// Writes one line to stderr. A closed stderr is ignored.
fn complain(message: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "error: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{ReplayFault, Violation};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn exit_codes_tell_broken_contracts_from_bad_input() {
        let fault = ReplayFault::ReservedBelowLive {
            reserved_bytes: 1,
            live_bytes: 2,
        };
        let violation = Violation {
            allocator: "a",
            trace: "t".to_owned(),
            event: 3,
            pass: 1,
            fault,
        };
        assert_eq!(Failure::Replay(violation.into()).exit_code(), 1);
        assert_eq!(Failure::TooSmall { replays: 1, of: 2 }.exit_code(), 3);
        assert_eq!(Failure::Interrupted.exit_code(), 130);
        assert_eq!(Failure::Reported.exit_code(), 2);
        assert_eq!(Failure::Arguments("x".to_owned()).exit_code(), 2);
        assert_eq!(Failure::Failed("x".to_owned()).exit_code(), 1);
        assert_eq!(
            Failure::Output(io::ErrorKind::BrokenPipe.into()).exit_code(),
            0
        );
        assert_eq!(
            Failure::Output(io::ErrorKind::StorageFull.into()).exit_code(),
            1
        );
    }
}
