//! Models the planner and its pool (L1 to L4): the stacks of bins, one round per stop, a plan published to allocating
//! threads, and a plan that replaces another.

mod planner;
mod pool;
mod twins;
mod world;
