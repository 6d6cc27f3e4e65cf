//! Lifetimes: record a step, plan its memory, serve the next one from the plan.
//!
//! A training step, or a request of a server, allocates nearly the same blocks again and again.
//! Who knows when each block begins and ends can lay them out once, with blocks that never live
//! together in the same place.

mod below;
pub mod pack;
mod placement;
pub mod prmalloc;
mod save;
mod shape;
mod steps;
mod word;

pub use below::{Below, InRange, OverPages};
pub use placement::{Obstacle, Places};
pub use save::LoadError;
pub use shape::{Entry, Shape};
pub use steps::{StepConfig, StepStats, StepTables, Steps, Tag};
pub use word::Lifetime;
