//! Structures over tables, most of them lent by the caller: the only place with links, vacant lists and hashing.
//!
//! * `slab`: records, links to them, and which are vacant.
//! * `list`: lists of a slab's records; one record can be in several.
//! * [`probe`]: records by key, in a table of slots.
//! * `ring`: a queue of values.
//! * `fixed_vec`: with the feature `alloc`, a vector that does not grow.
//!
//! All are numbers in slices: nothing is allocated, and no foreign link or key causes a panic.

#[cfg(feature = "alloc")]
pub(crate) mod fixed_vec;
pub(crate) mod list;
pub mod probe;
#[cfg(feature = "alloc")]
pub(crate) mod ring;
pub(crate) mod slab;
