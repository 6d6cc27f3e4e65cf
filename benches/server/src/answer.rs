//! The answers of the server.

use serde::{Deserialize, Serialize};

/// The answer to `GET /document/KEY`. The server borrows the document, the load generator owns it.
#[derive(Debug, Serialize, Deserialize)]
pub struct DocumentAnswer<D> {
    /// The requests of this connection so far, this one included.
    pub served: u64,
    /// The keys of this connection's latest requests, oldest first.
    pub recent: Vec<u64>,
    /// The requested document.
    pub document: D,
}

/// The answer to `POST /document/KEY` with a document.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stored {
    /// The requests of this connection so far, this one included.
    pub served: u64,
    /// The digest of the document as the server read it.
    pub digest: u64,
}

/// The answer to `GET /stats`.
#[derive(Debug, Serialize, Deserialize)]
pub struct StatsAnswer {
    /// Number of documents that the server keeps.
    pub documents: usize,
    /// Bytes of their text.
    pub text_bytes: usize,
}
