//! Capture and graphs.

mod driver;
mod graphs;
mod refusals;
