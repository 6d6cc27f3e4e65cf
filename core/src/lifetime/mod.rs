//! Lifetimes: record a step, plan its memory, serve the next one from the plan.
//!
//! A training step, or a request of a server, allocates nearly the same blocks again and again.
//! Who knows when each block begins and ends can lay them out once, with blocks that never live
//! together in the same place.

mod word;

pub use word::Lifetime;
