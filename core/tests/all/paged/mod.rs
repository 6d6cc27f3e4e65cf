//! Paged allocators: memory that moves inside one range of addresses.

mod backing;
mod bench;
mod growth;
mod limits;
mod looks;
mod moves;
mod order;
mod pins;
mod places;
mod plans;
mod random;
mod refusals;
mod release;
mod scenes;
