//! Packing: finds an offset for each lifetime, so that the total height is as low as possible.
//!
//! Two lifetimes **meet** if they share a tick; they must then not overlap in space. The **height** of a packing is its
//! largest end. No packing is lower than the maximum of live bytes at any tick. Finding the lowest packing is
//! NP-complete, but quick in most practical cases.
//!
//! [`Packer`] works in the caller's tables, without a clock, and can be stopped after any step. It first makes greedy
//! packings. Then it searches, until it reaches the lower bound or proves that no packing does. [`validate`] checks any
//! packing and shares no code with it.
//!
//! # Files
//! `error` refusals · `tables` lent tables · `prepare` order, parts, lower bound · `bucket` placed blocks, by offset ·
//! `greedy` one packing in one order · `skyline` the highest top at each moment · `section` time cut into sections ·
//! `lifetime` what is packed · `item` one lifetime under search · `search` place, raise, undo · `choose` which item to
//! place next · `restart` orders and budgets · `packer` the whole algorithm · `validate` the independent check.
//!
//! # The search
//! The search decides whether the part has a packing within a given height. It builds packings from the bottom up, and
//! only *canonical* ones, in which no block can be lowered. Every packing can be pushed down to a canonical one, so
//! these suffice.
//! * Each unplaced item has a lowest offset that is still possible. If the lowest offset of an item is at most that of
//!   every unplaced item that it meets, the item is either placed there or **raised**. If it is raised, some unplaced
//!   item must block it from below, so its new lowest offset is the lowest top of the items that could do so. If no
//!   item could, the branch is dead. The two cases exclude each other, so no packing is visited twice.
//! * In each section of time, the lowest offset of any unplaced item plus the bytes still to be placed must not exceed
//!   the height.
//! * Items with the same size and sections are raised together, because their order does not matter.
//! * A heuristic chooses the next item to decide. No single heuristic suits all problems, so short runs under many
//!   heuristics take turns. Each run has a budget of steps (the sequence of Luby, Sinclair and Zuckerman). The sections
//!   in which branches died are remembered from run to run.
//!
//! Canonical packings, section floors and static preorders are ideas of M. Moffitt, "MiniMalloc" (ASPLOS 2023);
//! remembering where branches died is "dom/wdeg" of Boussemart, Hemery, Lecoutre and Sais (ECAI 2004). Placing or
//! raising, and the restarts, are ours.
//!
//! # Cost
//! A greedy packing is at worst O(n²), with a small constant. It can be stopped after any block, and the remaining
//! blocks are then stacked in O(n log n). The time of a search step depends on the number of unplaced items and of
//! their sections. [`PackSizes`] gives the sizes of the tables.

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
pub(crate) use packer::RECORDS_PER_BUCKET;
pub use section::Section;
pub use tables::{PackSizes, PackTables, Part, UndoRecord};
pub use validate::{Invalid, validate};
