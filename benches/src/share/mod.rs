//! Several jobs on one GPU, seen from outside: their files, who lives, what each is told.
//!
//! But for [`job`], only files are read and written: all of it works on a machine without a driver, and
//! beside jobs of other programs that speak AntMan's protocol.
//!
//! * [`files`] finds the two files of each job.
//! * [`alive`] asks whether a process is there.
//! * [`view`] reads what a job says and was told.
//! * [`order`] changes what it is told.
//! * [`coordinate`] divides a device's memory among jobs.
//! * [`job`] plays a recorded trace as such a job.
//! * [`plain`] is the table as text; [`screen`] the one that lives in a terminal.

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
