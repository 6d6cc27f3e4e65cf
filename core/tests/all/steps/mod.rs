//! Steps: recognised by their allocations, served from plans.

mod deviations;
mod files;
mod guesses;
mod pages;
mod random;
mod repeats;
mod world;
