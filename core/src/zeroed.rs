//! [`Zeroed`]: records of which a table may be memory fresh from the system, that nobody has written.

use crate::engine::Chunk;
use crate::lifetime::pack::{Bucket, Item, Part, Section, UndoRecord};
use crate::lifetime::{Entry, Lifetime, Obstacle, Shape, Tag};
use crate::pages::{Handle, Mapping, PageEntry};

/// Types of which all zero bytes are a value. A table of them costs nothing before it is used: the system
/// gives zero pages on first touch.
///
/// # Safety
/// A value whose bytes are all 0, padding included, is a value of the type.
pub unsafe trait Zeroed: Send + Sync + 'static {}

// SAFETY: a number, of which zero is a value.
unsafe impl Zeroed for u32 {}
// SAFETY: a number, of which zero is a value.
#[cfg(not(larder_loom))]
unsafe impl Zeroed for crate::sync::AtomicU32 {}
// SAFETY: a number, of which zero is a value.
unsafe impl Zeroed for u64 {}
// SAFETY: a number, of which zero is a value.
unsafe impl Zeroed for f64 {}
// SAFETY: numbers, of which zero is a value.
unsafe impl Zeroed for (u32, u32) {}
// SAFETY: numbers, of which zero is a value.
unsafe impl Zeroed for Chunk {}
// SAFETY: numbers, and an enumeration; ZEROED.
unsafe impl Zeroed for Handle {}
// SAFETY: numbers, and an enumeration; ZEROED.
unsafe impl Zeroed for Mapping {}
// SAFETY: a number, of which zero is a value.
unsafe impl Zeroed for PageEntry {}
// SAFETY: numbers, of which zero is a value.
unsafe impl Zeroed for Tag {}
// SAFETY: numbers, of which zero is a value.
unsafe impl Zeroed for Entry {}
// SAFETY: numbers, a bool that is false, and options; ZEROED.
unsafe impl Zeroed for Shape {}
// SAFETY: numbers, of which zero is a value.
unsafe impl Zeroed for Obstacle {}
// SAFETY: numbers, of which zero is a value.
unsafe impl Zeroed for Section {}
// SAFETY: numbers, of which zero is a value.
unsafe impl Zeroed for Bucket {}
// SAFETY: numbers, of which zero is a value.
unsafe impl Zeroed for UndoRecord {}
// SAFETY: numbers, and a bool that is false.
unsafe impl Zeroed for Part {}
// SAFETY: numbers, and an option of a number; ZEROED.
unsafe impl Zeroed for Lifetime {}
// SAFETY: numbers, and a bool that is false.
unsafe impl Zeroed for Item {}

/// The language does not say which bytes an option or an enumeration has. So the compiler makes these values of zeros for
/// each target: it refuses what is no value.
#[allow(
    dead_code,
    reason = "Rust 1.88 does not see the use in the constant below"
)]
const ZEROED: (Handle, Mapping, Shape, Lifetime) = {
    // SAFETY: if this were no value, it would not compile.
    unsafe { core::mem::zeroed() }
};
const _: () = assert!(ZEROED.3.pinned.is_none());
