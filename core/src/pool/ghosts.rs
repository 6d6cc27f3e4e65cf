//! The sizes that were evicted recently, with the number of buffers of each. They show the cost of the limit.
//!
//! They are used only on evictions and misses, which call the sub-allocator anyway.

use heapless::Vec;

/// Maximum number of sizes remembered. If a program evicts more, the least recently evicted size is forgotten.
const GHOSTS: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Ghost {
    bytes: u64,
    buffers: u32,
}

/// The evicted sizes, the most recent last.
#[derive(Clone, Default, Debug)]
pub(super) struct Ghosts(Vec<Ghost, GHOSTS>);

impl Ghosts {
    /// Remembers an evicted buffer's size. O(32).
    pub(super) fn remember(&mut self, bytes: u64) {
        let known = self.0.iter().position(|ghost| ghost.bytes == bytes);
        let buffers = match known {
            Some(place) => self.0.remove(place).buffers.saturating_add(1),
            None => 1,
        };
        if self.0.is_full() {
            self.0.remove(0);
        }
        // There is room: a full vector lost an entry above.
        self.0.push(Ghost { bytes, buffers }).ok();
    }

    /// Forgets one evicted buffer of a missed size. Returns whether there was one. O(32).
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let Some(place) = self.0.iter().position(|ghost| ghost.bytes == bytes) else {
            return false;
        };
        match self.0.get_mut(place) {
            Some(ghost) if ghost.buffers > 1 => ghost.buffers -= 1,
            _ => {
                self.0.remove(place);
            }
        }
        true
    }

    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}
