//! Several jobs on one GPU, seen from outside: their files, their processes, their limits and shares.
//!
//! All modules but [`job`] only read and write files, so they work on a machine without a driver, and beside
//! jobs of other programs that speak AntMan's protocol.
//!
//! * [`files`] finds the two files of each job.
//! * [`alive`] finds out whether a process exists.
//! * [`view`] reads the status and the control file of a job.
//! * [`order`] changes the control file of a job.
//! * [`coordinate`] divides a device's memory among jobs.
//! * [`job`] replays a recorded trace as such a job.
//! * [`plain`] is the table of jobs as text; [`screen`] is the live table in a terminal.

pub mod alive;
pub mod coordinate;
pub mod files;
pub mod job;
pub mod order;
pub mod plain;
pub mod screen;
pub mod view;

#[cfg(test)]
mod tests;
