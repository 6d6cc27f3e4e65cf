//! What goes wrong with a [`Job`](super::Job).

use std::io;

use larder_control::FileError;

use crate::DriverError;

/// A job, or an allocator of it, could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Another job has the control file or the status file: one job at a time has a name.
    #[error("{0}: end it first, or take another name")]
    Taken(#[source] FileError),
    /// The control file cannot be listened to.
    #[error("{0}")]
    Listen(#[source] FileError),
    /// The job's thread cannot be started.
    #[error("the job's thread cannot be started: {0}; end others, or look by hand")]
    Thread(#[source] io::Error),
    /// The driver does not say where the device is.
    #[error("{0}")]
    Driver(#[from] DriverError),
    /// What it says is no place on the PCI bus.
    #[error(
        "the driver calls the device {text:?}, which is no place on the PCI bus: no control file can name it"
    )]
    BusId {
        /// What it said.
        text: String,
    },
}
