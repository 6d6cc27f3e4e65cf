//! Errors of a [`Job`](super::Job).

use std::io;

use larder_control::FileError;

use crate::DriverError;

/// A job or one of its allocators could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Another job has the control file or the status file, since a file belongs to one job at a time.
    #[error("{0}: end it first, or take another name")]
    Taken(#[source] FileError),
    /// The control file cannot be watched.
    #[error("{0}")]
    Listen(#[source] FileError),
    /// The job's thread cannot be started.
    #[error("the job's thread cannot be started: {0}; end other threads, or poll by hand")]
    Thread(#[source] io::Error),
    /// The driver does not report the device's PCI bus id.
    #[error("{0}")]
    Driver(#[from] DriverError),
    /// The driver's answer is not a PCI bus id.
    #[error(
        "the driver calls the device {text:?}, which is not a PCI bus id: no control file can name it"
    )]
    BusId {
        /// The driver's answer.
        text: String,
    },
}
