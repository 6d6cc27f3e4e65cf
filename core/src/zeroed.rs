//! [`Zeroed`]: types of records whose table may be untouched memory, fresh from the system.

use crate::engine::Chunk;
use crate::pack::Lifetime;
use crate::pack::{Bucket, Item, Part, Section, UndoRecord};
use crate::pages::{Handle, Mapping, PageEntry};
use crate::steps::{Entry, Obstacle, Shape, Tag};

/// Types with a value of all zero bytes. A table of them costs nothing before it is used: the system provides zero
/// pages on first touch.
///
/// # Safety
/// A value whose bytes are all 0, padding included, is a value of the type.
pub unsafe trait Zeroed: Send + Sync + 'static {}

// SAFETY: a number, and zero bytes are its value 0.
unsafe impl Zeroed for u32 {}
// SAFETY: a number, and zero bytes are its value 0.
#[cfg(not(larder_loom))]
unsafe impl Zeroed for crate::sync::AtomicU32 {}
// SAFETY: a number, and zero bytes are its value 0.
unsafe impl Zeroed for u64 {}
// SAFETY: a number, and zero bytes are its value 0.
unsafe impl Zeroed for f64 {}
// SAFETY: numbers, and zero bytes are their value 0.
unsafe impl Zeroed for (u32, u32) {}
// SAFETY: numbers, and zero bytes are their value 0.
unsafe impl Zeroed for Chunk {}
// SAFETY: numbers and an enumeration; for ZEROED the compiler checks that zeros are a value.
unsafe impl Zeroed for Handle {}
// SAFETY: numbers and an enumeration; for ZEROED the compiler checks that zeros are a value.
unsafe impl Zeroed for Mapping {}
// SAFETY: a number, and zero bytes are its value 0.
unsafe impl Zeroed for PageEntry {}
// SAFETY: numbers, and zero bytes are their value 0.
unsafe impl Zeroed for Tag {}
// SAFETY: numbers, and zero bytes are their value 0.
unsafe impl Zeroed for Entry {}
// SAFETY: numbers, a bool that is false and options; for ZEROED the compiler checks that zeros are a value.
unsafe impl Zeroed for Shape {}
// SAFETY: numbers, and zero bytes are their value 0.
unsafe impl Zeroed for Obstacle {}
// SAFETY: numbers, and zero bytes are their value 0.
unsafe impl Zeroed for Section {}
// SAFETY: numbers, and zero bytes are their value 0.
unsafe impl Zeroed for Bucket {}
// SAFETY: numbers, and zero bytes are their value 0.
unsafe impl Zeroed for UndoRecord {}
// SAFETY: numbers and a bool; zero bytes are 0 and `false`.
unsafe impl Zeroed for Part {}
// SAFETY: numbers and an option of a number; for ZEROED the compiler checks that zeros are a value.
unsafe impl Zeroed for Lifetime {}
// SAFETY: numbers and a bool; zero bytes are 0 and `false`.
unsafe impl Zeroed for Item {}

/// The language does not define the bytes of an option or an enumeration. So the compiler makes these values from
/// zeros, for each target, and rejects zeros that are not a valid value.
#[allow(
    dead_code,
    reason = "Rust 1.88 does not see the use in the constant below"
)]
const ZEROED: (Handle, Mapping, Shape, Lifetime) = {
    // SAFETY: if this were not a valid value, it would not compile.
    unsafe { core::mem::zeroed() }
};
const _: () = assert!(ZEROED.3.pinned.is_none());
