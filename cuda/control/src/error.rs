//! [`ParseError`]: invalid text.

use thiserror::Error;

use crate::ControlFile;

/// A text is not a valid control file, status, life or bus id. Nothing in the text is used, and all former
/// values stay in force.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The control file is empty, probably because it is being written.
    #[error("the control file is empty: write it elsewhere and rename it")]
    Empty,
    /// The control file is larger than [`ControlFile::MAX_BYTES`].
    #[error(
        "the control file has {bytes} bytes; at most {} are read",
        ControlFile::MAX_BYTES
    )]
    TooLarge {
        /// The file's size in bytes.
        bytes: usize,
    },
    /// The control file is not JSON, or only a part of it.
    #[error("the control file is not JSON at line {line}, column {column}")]
    Syntax {
        /// Line number, counted from 1.
        line: usize,
        /// Column number, counted from 1; 0 if the line is empty.
        column: usize,
    },
    /// The control file is JSON, but not an object.
    #[error("the control file is not an object; nothing in it is used")]
    NotAnObject,
    /// The text is not a status because it is incomplete, not JSON, too large, or has values of other types.
    /// Reading again later may succeed.
    #[error("not a job's status: {}; read it again later", message.escape_debug())]
    Status {
        /// The problem and its place.
        message: String,
    },
    /// The text is not a process's life ([`Life`](crate::Life)), so it is unknown which process a control
    /// file is for.
    #[error(
        "not the life of a process: copy it from the job's status, or leave it out for any run"
    )]
    Life,
    /// The text is not a place on the PCI bus.
    #[error("not a PCI bus id: write it like 00:1e.0 or 0000:00:1e.0")]
    BusId,
}
