//! The blocks still in use when a runtime ends.

use core::fmt;

/// An allocator with blocks in use or other clones.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Left {
    /// Its name.
    pub name: String,
    /// Blocks that were not freed.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether a clone of the allocator is held elsewhere: if so, it lives on, and its blocks can still
    /// be freed.
    pub shared: bool,
}

impl Left {
    pub(super) const fn is_nothing(&self) -> bool {
        self.blocks == 0 && self.bytes == 0 && !self.shared
    }
}

/// Report of a runtime that was shut down. Memory of blocks that were not freed was leaked: it keeps its
/// contents until the process ends.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use = "memory may have been left"]
#[non_exhaustive]
pub struct Shutdown {
    /// The allocators with blocks in use, or with other clones.
    pub left: Vec<Left>,
}

impl Shutdown {
    /// Returns whether no block was in use and all memory was freed.
    pub fn is_clean(&self) -> bool {
        self.left.is_empty()
    }

    /// Returns the number of blocks in use.
    pub fn blocks(&self) -> u64 {
        self.left.iter().map(|left| left.blocks).sum()
    }
}

impl fmt::Display for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("nothing was out");
        }
        for (index, left) in self.left.iter().enumerate() {
            let comma = if index == 0 { "" } else { "; " };
            let held = if left.shared { ", held elsewhere" } else { "" };
            let Left {
                name,
                blocks,
                bytes,
                ..
            } = left;
            write!(f, "{comma}{name}: {blocks} blocks of {bytes} bytes{held}")?;
        }
        Ok(())
    }
}
