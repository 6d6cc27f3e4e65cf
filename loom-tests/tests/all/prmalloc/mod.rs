//! L1 to L4 of the planner and its pool: stacks of bins, one round a stop, a plan published to
//! threads that allocate, and a plan that another replaces.

mod planner;
mod pool;
mod twins;
mod world;
