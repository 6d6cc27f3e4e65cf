//! The parts shared by the server and its load: the documents, and the answers that carry them.
//!
//! The server keeps documents of log-normal size (median 1.5 KiB of text in lines of some 80 bytes, at most 512 KiB):
//! about twelve blocks for each KiB. A document is made when it is first requested; one request of five stores a new
//! one. A document without requests is evicted after a second, but one of sixteen stays, so that the remaining ones
//! lie between evicted ones. Each connection has its own history and ends after some hundred requests.
//!
//! The load is another process, always on the system's allocator. Its clients send requests for 3 seconds, are idle
//! for 3, and so on. The text and history of every answer are checked, and the first wrong one ends the run.

mod answer;
mod document;
mod random;

pub use answer::{DocumentAnswer, StatsAnswer, Stored};
pub use document::Document;
pub use random::Random;
