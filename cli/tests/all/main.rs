//! Tests of the program `larder` and its parts, linked as one program.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod commands;
mod guide;
mod hostile;
mod input;
mod jobs;
mod page;
mod program;
mod replay_command;
mod widths;
