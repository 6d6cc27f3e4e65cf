//! What to move and how much to create: the figures.
//!
//! docs/MOVING.md has their reasons.

use super::{Backing, PagePool};

/// While fewer calls than these were made for each unit held, in tenths, growth creates what is missing and no more:
/// in a pool that is young, which less was freed of than is held, so that a program's first blocks come cheaply,
const YOUNG_CALLS: u64 = 14;
/// and in one that is not: what expandable segments make, a create and a map, and access for most units alone.
const EXACT_CALLS: u64 = 28;
/// While fewer than these were made idle handles move although more could be created: four fifths of what expandable
/// segments need at least.
const MOVING_CALLS: u64 = 16;
/// Where calls are to be saved, what is held grows to a multiple of so many tenths of a unit.
const AHEAD: u64 = 13;
/// Not before so many tenths of a unit are held: of a small pool every page counts.
const LEAST: u64 = 8;
/// A handle is at most so many tenths of a unit,
const HANDLE: u64 = 16;
/// or what is held / this, so that a large pool does not need more calls than a small one;
const HANDLE_DIVISOR: u64 = 256;
/// but once the limit / this is held
const LIMIT_NEAR_DIVISOR: u64 = 4;
/// no more than the limit / this, since a block keeps the handles at its ends,
const LIMIT_DIVISOR: u64 = 2048;
/// and than what the limit still gives / this, so that the last ones fit closely.
const ROOM_DIVISOR: u64 = 16;
/// A handle for a layout is at most what is held then / this.
const LAYOUT_DIVISOR: u64 = 16;
/// No plan creates more handles than this for one run of pages: those of large blocks are larger.
const HANDLES_A_RUN: u32 = 256;

impl PagePool<'_> {
    /// What may be held: the limit, and the budget if it is lower; whole pages.
    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes_within(u64::MAX)
    }

    /// What may be held by something that may hold so much.
    pub(super) fn max_bytes_within(&self, bytes: u64) -> u64 {
        let limit = self.chunks.limit_bytes.min(bytes);
        let max = match self.config.backing {
            Backing::Billed | Backing::InPlace => limit,
            Backing::Budget(bytes) => bytes.min(limit),
        };
        max / self.config.page_bytes * self.config.page_bytes
    }

    /// Bytes that may still be created.
    pub(super) fn room_bytes(&self) -> u64 {
        self.max_bytes().saturating_sub(self.chunks.taken_bytes())
    }

    /// Pages that may still be created.
    pub(super) fn room_pages(&self) -> u32 {
        self.whole_pages(self.room_bytes())
    }

    /// Whether so many calls, and those made before, are fewer than `tenths` for each ten units that would be held
    /// with `pages` more.
    fn pays_for(&self, calls: u64, pages: u32, tenths: u64) -> bool {
        let after = self.chunks.taken_bytes() + self.page_bytes(pages);
        self.calls.saturating_add(calls) < after / (self.tenths_of_unit(100) / tenths).max(1)
    }

    /// Pages to create beyond `pages` at the end of the range: where calls are to be saved, enough to make what is held
    /// a multiple of a little more than a unit.
    pub(super) fn pages_ahead(&self, pages: u32) -> u32 {
        let after = self.chunks.taken_bytes() + self.page_bytes(pages);
        let is_young = self.freed_bytes < after;
        if self.pays_for(3, pages, if is_young { YOUNG_CALLS } else { EXACT_CALLS }) {
            return 0;
        }
        let bytes = after.next_multiple_of(self.tenths_of_unit(AHEAD)) - after;
        let max = self.max_bytes().min(self.refused_bytes);
        if self.chunks.taken_bytes() < self.tenths_of_unit(LEAST) || after + bytes > max / 2 {
            return 0;
        }
        self.whole_pages(bytes)
    }

    /// Whether idle handles move for so many pages although more could be created.
    pub(super) fn moves_early(&self, pages: u32) -> bool {
        self.config.backing == Backing::Billed && self.pays_for(2, pages, MOVING_CALLS)
    }

    /// Most pages of one handle when `pages` are to be created side by side.
    pub(super) fn max_pages_of_handle(&self, pages: u32, of_layout: bool) -> u32 {
        let after = self.chunks.taken_bytes() + self.page_bytes(pages);
        if of_layout {
            return self.whole_pages(after / LAYOUT_DIVISOR).max(1);
        }
        let large = self.tenths_of_unit(HANDLE).max(after / HANDLE_DIVISOR);
        let max = self.max_bytes().min(self.refused_bytes);
        let close = if after < max / LIMIT_NEAR_DIVISOR {
            u64::MAX
        } else {
            (max / LIMIT_DIVISOR).min(max.saturating_sub(self.chunks.taken_bytes()) / ROOM_DIVISOR)
        };
        let most = self.whole_pages(large.min(close)).max(1);
        most.max(pages.div_ceil(HANDLES_A_RUN))
    }

    fn tenths_of_unit(&self, tenths: u64) -> u64 {
        (self.config.unit_bytes.saturating_mul(tenths) / 10).max(1)
    }

    fn whole_pages(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / self.config.page_bytes).unwrap_or(u32::MAX)
    }
}
