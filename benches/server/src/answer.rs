//! The answers of the server.

use serde::{Deserialize, Serialize};

/// The answer to `GET /document/KEY`. The server borrows the document, the load generator owns it.
#[derive(Debug, Serialize, Deserialize)]
pub struct DocumentAnswer<D> {
    /// How many requests this connection has made, this one included.
    pub served: u64,
    /// The keys that this connection asked for last, oldest first.
    pub recent: Vec<u64>,
    /// The document that was asked for.
    pub document: D,
}

/// The answer to `POST /document/KEY` with a document.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stored {
    /// How many requests this connection has made, this one included.
    pub served: u64,
    /// The digest of the document as the server read it.
    pub digest: u64,
}

/// To `GET /stats`.
#[derive(Debug, Serialize, Deserialize)]
pub struct StatsAnswer {
    /// How many documents the server keeps.
    pub documents: usize,
    /// Their text.
    pub text_bytes: usize,
}
