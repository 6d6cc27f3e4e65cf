//! What the server and its load agree on: the documents, and the answers that carry them.
//!
//! The server keeps documents of log-normal size (median 1.5 KiB of text in lines of some 80 bytes, at most
//! 512 KiB): about twelve blocks for each KiB. Who asks for one that is not there has it made; one request of five
//! brings a new one. A document that nobody asks for goes after a second, but one of sixteen stays, so that what
//! remains lies between what went. Each connection has its own history and ends after some hundred requests.
//!
//! The load is another process, always on the system's allocator. Its clients ask for 3 seconds, are idle for 3, and
//! so on; every answer is checked, in text and history, and the first wrong one ends the run.

mod answer;
mod document;
mod random;

pub use answer::{DocumentAnswer, StatsAnswer, Stored};
pub use document::Document;
pub use random::Random;
