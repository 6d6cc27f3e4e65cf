//! Limits that move while a program runs.

mod answer;

pub use answer::{LimitAnswer, LimitRefusal};
