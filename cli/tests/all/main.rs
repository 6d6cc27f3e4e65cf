//! Tests of the program `larder` and what it is made of, in one program, so that it is linked once.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod guide;
mod input;
mod jobs;
mod page;
mod program;
mod replay_command;
mod versus_command;
mod widths;
