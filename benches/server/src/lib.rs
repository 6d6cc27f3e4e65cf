//! What the server and its load agree on: the documents, and the answers that carry them.

mod answer;
mod document;
mod random;

pub use answer::{Answer, Stats, Stored};
pub use document::Document;
pub use random::Random;
