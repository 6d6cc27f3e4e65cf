//! What the server says.

use serde::{Deserialize, Serialize};

/// To `GET /document/KEY`. The server borrows the document, the load owns it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer<D> {
    /// How many requests this connection has made, this one included.
    pub served: u64,
    /// The keys that this connection asked for last, oldest first.
    pub recent: Vec<u64>,
    /// What was asked for.
    pub document: D,
}

/// To `POST /document/KEY` with a document.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stored {
    /// As in [`Answer`].
    pub served: u64,
    /// That of the document, once it was read.
    pub digest: u64,
}

/// To `GET /stats`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stats {
    /// How many documents the server keeps.
    pub documents: usize,
    /// Their text.
    pub text_bytes: usize,
}
