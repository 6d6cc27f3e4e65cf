//! [`Zeroed`]: records of which a table may be memory fresh from the system, that nobody has written.

use crate::bfc::Chunk;
use crate::bfc::paged::{Handle, Mapping, Place};
use crate::lifetime::pack::{Bucket, Item, Part, Section, UndoRecord};
use crate::lifetime::{Entry, Lifetime, Obstacle, Shape, Tag};

/// Types of which all zero bytes are a value. A table of them costs nothing before it is used: the system
/// gives zero pages on first touch.
///
/// # Safety
/// A value whose bytes are all 0, padding included, is a value of the type.
pub unsafe trait Zeroed: Send + Sync + 'static {}

macro_rules! zeroed {
    ($($type:ty),+ $(,)?) => {
        $(
            // SAFETY: numbers, bools, enumerations that begin at 0, and options of numbers: for each of
            // them zero is a value.
            unsafe impl Zeroed for $type {}
        )+
    };
}

zeroed! {
    u32, u64, f64, (u32, u32), Chunk, Handle, Mapping, Place, Tag, Entry, Shape, Obstacle, Section, Bucket,
    UndoRecord, Part, Lifetime, Item,
}
