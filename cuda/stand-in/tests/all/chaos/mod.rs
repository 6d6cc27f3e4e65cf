//! Attacks on the stand-in: random calls, many threads, random programs next to an independent model of races, long
//! queues and many objects, forked processes.

mod api;
mod calls;
mod load;
mod mended;
mod order;
mod process;
mod races;
mod random;
mod threads;
mod world;
