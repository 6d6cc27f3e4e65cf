//! Steps: recognised by what they allocate, served from plans.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod deviations;
mod files;
mod guesses;
mod pages;
mod random;
mod repeats;
mod world;
