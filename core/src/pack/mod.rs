//! Packing: an offset for each lifetime, so that the whole is as low as possible.
//!
//! Two lifetimes that meet must not overlap in space. The **height** of a packing is its largest end; no packing is
//! lower than the maximum of live bytes at any tick. Finding the lowest packing is NP-complete and, with a little care,
//! quick in most practical cases.
//!
//! [`Packer`] works in the caller's tables, without a clock, and can be stopped after any step: first greedy
//! packings, then a search that either reaches the lower bound or proves that it cannot be reached. [`validate`]
//! checks any packing and shares no code with it.
//!
//! # Files
//! `error` refusals · `tables` lent tables · `prepare` order, parts, lower bound · `bucket` placed blocks, by offset ·
//! `greedy` one packing in one order · `skyline` the highest top at each moment · `section` time cut into sections ·
//! `lifetime` what is packed · `item` one lifetime under search · `search` place, raise, undo · `choose` which item to
//! place next · `restart` orders and budgets · `packer` all of it as one machine · `validate` the independent check.
//!
//! # The search
//! It decides, from the bottom up, whether a height can be met, among packings called *canonical* here, in which no
//! block can be lowered. Every packing can be pushed down to a canonical one, so these are enough.
//! * Each unplaced item has a lowest offset that is still possible. An item whose lowest offset is at most that of all
//!   unplaced items it meets is either placed right there, or it is **raised**: some unplaced item must then block it
//!   from below, and the lowest top of those that could block it is its new lowest offset. If none could, the branch is
//!   dead. The two cases exclude each other, so no packing is visited twice.
//! * In each section of time, the lowest offset of any unplaced item there and the bytes still to be placed there
//!   must fit under the height together.
//! * Items that are the same in size and sections are raised together: their order does not matter.
//! * The next item to decide is chosen by a heuristic, and no one heuristic serves all problems. Short runs under
//!   many of them, each with a budget of steps (the sequence of Luby, Sinclair and Zuckerman), take turns; sections
//!   in which branches died are remembered from run to run.
//!
//! Canonical packings, section floors and static preorders are the ideas of M. Moffitt,
//! "MiniMalloc" (ASPLOS 2023); remembering where branches died is "dom/wdeg" of Boussemart, Hemery,
//! Lecoutre and Sais (ECAI 2004). Placing or raising, and the restarts, are ours.
//!
//! # Cost
//! A greedy packing is O(n²) at worst with a small constant; it can be stopped after any block, and the rest is then
//! stacked in O(n log n). The time of a step of the search depends on the number of unplaced items and of their
//! sections. [`PackSizes`] gives the memory.

#[cfg(test)]
mod bounded_tests;
mod bucket;
mod choose;
mod error;
mod greedy;
mod item;
mod lifetime;
mod packer;
mod prepare;
mod restart;
mod search;
mod section;
mod skyline;
mod tables;
mod validate;

pub use bucket::Bucket;
pub use error::PackError;
pub use item::Item;
pub use lifetime::Lifetime;
pub use packer::Packer;
pub use section::Section;
pub use tables::{PackSizes, PackTables, Part, UndoRecord};
pub use validate::{Invalid, validate};
