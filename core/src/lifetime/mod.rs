//! Lifetimes: record a step, plan its memory, serve the next one from the plan.
//!
//! A training step, or a request of a server, allocates nearly the same blocks again and again. With the begin and
//! end of each block known, they can be laid out once, with blocks that never live together in the same place.
//!
//! * [`pack`] finds offsets for lifetimes: the core of any planner, of use alone.
//! * [`Steps`] recognises the steps of one stream of allocations and serves them at planned places of an allocator
//!   [below](PlaceAllocator).
//! * [`prmalloc`] is DeepRec's PRMalloc: bins whose blocks are shared over time, for many threads.
//!
//! It works on numbers and lent tables, without a clock: ticks are counts.

mod block_life;
mod follow;
mod layout;
pub mod pack;
mod place_allocator;
pub mod prmalloc;
mod save;
mod shape;
mod step_stats;
mod steps;

pub use block_life::Lifetime;
pub use layout::{Obstacle, Places};
pub use place_allocator::{InRange, PlaceAllocator};
pub use save::SavedPlansError;
pub use shape::{Entry, Shape};
pub use step_stats::{StepConfig, StepStats};
pub use steps::{StepTables, Steps, Tag};
