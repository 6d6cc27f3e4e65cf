//! The parts shared by the server and its load: the documents, and the answers that carry them.
//!
//! The server keeps documents of log-normal size (median 1.5 KiB of text in lines of about 80 bytes, at most
//! 512 KiB), in about twelve blocks for each KiB. A document is made when it is first requested; one request in
//! five stores a new one. A document without requests is evicted after a second, but one in sixteen stays, so
//! that the remaining ones lie between evicted ones. Each connection has its own history and ends after a few
//! hundred requests.
//!
//! The load is another process, always on the system's allocator. Its clients alternately send requests for 3
//! seconds and are idle for 3. The text and history of every answer are checked, and the first wrong one ends
//! the run.

mod answer;
mod document;
mod random;

pub use answer::{DocumentAnswer, StatsAnswer, Stored};
pub use document::Document;
pub use random::Random;
