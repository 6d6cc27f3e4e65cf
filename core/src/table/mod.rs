//! Data structures over tables, most of them lent by the caller. Links, vacant lists and hashing are only here.
//!
//! * `slab`: records, links to them, and the list of vacant records.
//! * `list`: lists of a slab's records; a record can be in several lists.
//! * [`probe`]: records by key, in a table of slots.
//! * `ring`: a queue of values.
//! * `fixed_vec`: a vector that does not grow (with the feature `alloc`).
//!
//! No operation allocates, and no invalid link or key causes a panic.

#[cfg(feature = "alloc")]
pub(crate) mod fixed_vec;
pub(crate) mod list;
pub mod probe;
#[cfg(feature = "alloc")]
pub(crate) mod ring;
pub(crate) mod slab;
