//! Models the planner and its pool (L1 to L4): stacks of bins, one round a stop, a plan published to allocating
//! threads, and a plan that replaces another.

mod planner;
mod pool;
mod twins;
mod world;
