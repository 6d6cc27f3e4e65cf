//! What goes wrong with a [`Job`](super::Job).

use core::fmt;
use std::error::Error;
use std::io;

use larder_control::{ActionFailed, FileError};

use crate::DriverError;

/// A job, or an allocator of it, could not be set up.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// The control file cannot be listened to.
    Listen(FileError),
    /// The job's thread cannot be started.
    Thread(io::Error),
    /// The driver does not say where the device is.
    Driver(DriverError),
    /// What it says is no place on the PCI bus.
    BusId {
        /// What it said.
        text: String,
    },
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(error) => error.fmt(f),
            Self::Thread(error) => write!(
                f,
                "the job's thread cannot be started: {error}; end others, or look by hand"
            ),
            Self::Driver(error) => error.fmt(f),
            Self::BusId { text } => write!(
                f,
                "the driver calls the device {text:?}, which is no place on the PCI bus: no control file can name it"
            ),
        }
    }
}

impl Error for JobError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Listen(error) => Some(error),
            Self::Thread(error) => Some(error),
            Self::Driver(error) => Some(error),
            Self::BusId { .. } => None,
        }
    }
}

impl From<DriverError> for JobError {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

/// An action failed a run.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError<R> {
    /// Before the work, which was not done.
    Before(ActionFailed),
    /// After the work, whose value is here. Actions of later phases have not run.
    After {
        /// What the work gave.
        value: R,
        /// What failed.
        error: ActionFailed,
    },
}

impl<R> fmt::Display for RunError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before(error) | Self::After { error, .. } => error.fmt(f),
        }
    }
}

impl<R: fmt::Debug> Error for RunError<R> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Before(error) | Self::After { error, .. } => Some(error),
        }
    }
}
