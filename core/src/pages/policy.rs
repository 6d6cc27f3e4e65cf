//! The figures that decide what to move and how much to create.
//!
//! docs/guide/src/moving.md gives the reasons for them.

use super::{Backing, PagePool};

/// Threshold in driver calls per ten units held. While a young pool (one that has freed less than it holds) is below
/// it, growth creates only the missing pages, so a program's first blocks take no excess memory.
const YOUNG_CALLS: u64 = 14;
/// Threshold in driver calls per ten units held, for a pool that is no longer young: as many calls as expandable
/// segments make (for each unit a create and a map, and for most units a call that grants access).
const EXACT_CALLS: u64 = 28;
/// Threshold in driver calls per ten units held, below which idle handles are moved although new ones could be created:
/// four fifths of two calls per unit, the least that expandable segments need.
const MOVING_CALLS: u64 = 16;
/// Tenths of a unit: the held bytes grow to a multiple of this once calls must be saved.
const AHEAD: u64 = 13;
/// Minimum tenths of a unit held before growth creates pages ahead, because in a small pool every page counts.
const LEAST: u64 = 8;
/// Maximum tenths of a unit in one handle, unless the pool is large ([`HANDLE_DIVISOR`]).
const HANDLE: u64 = 16;
/// Divisor of the held bytes that gives the largest handle of a large pool, so that it needs no more calls than a small
/// one.
const HANDLE_DIVISOR: u64 = 256;
/// Once the held bytes reach the limit divided by this, [`LIMIT_DIVISOR`] and [`ROOM_DIVISOR`] bound the size of a
/// handle.
const LIMIT_NEAR_DIVISOR: u64 = 4;
/// Divisor of the limit that gives the largest handle near the limit, because a block keeps the whole of the handles at
/// its ends.
const LIMIT_DIVISOR: u64 = 2048;
/// Divisor of the rest of the limit that gives the largest handle near the limit, so that the last handles fit closely.
const ROOM_DIVISOR: u64 = 16;
/// The largest handle for a layout is the bytes held once the handle's run of pages is created, divided by this.
const LAYOUT_DIVISOR: u64 = 16;
/// Maximum number of handles that a plan creates for one run of pages. A larger run gets larger handles.
const HANDLES_A_RUN: u32 = 256;

impl PagePool<'_> {
    /// Returns the bytes that may be held: the limit, or a lower budget, in whole pages.
    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes_within(u64::MAX)
    }

    /// Returns the bytes that may be held for a purpose with its own limit of `bytes`.
    pub(super) fn max_bytes_within(&self, bytes: u64) -> u64 {
        let limit = self.chunks.limit_bytes().min(bytes);
        let max = match self.config.backing {
            Backing::Billed | Backing::InPlace => limit,
            Backing::Budget(bytes) => bytes.min(limit),
        };
        max / self.config.page_bytes * self.config.page_bytes
    }

    /// Returns the bytes that may still be created.
    pub(super) fn room_bytes(&self) -> u64 {
        self.max_bytes().saturating_sub(self.chunks.taken_bytes())
    }

    /// Returns the pages that may still be created.
    pub(super) fn room_pages(&self) -> u32 {
        self.whole_pages(self.room_bytes())
    }

    /// Returns whether `calls`, added to those made before, would be fewer than `tenths` for every ten units held if
    /// `pages` more pages were held.
    fn pays_for(&self, calls: u64, pages: u32, tenths: u64) -> bool {
        let after = self.chunks.taken_bytes() + self.page_bytes(pages);
        self.calls.saturating_add(calls) < after / (self.tenths_of_unit(100) / tenths).max(1)
    }

    /// Returns the pages to create beyond `pages` at the end of the range: enough to make the held bytes a multiple of
    /// 1.3 units ([`AHEAD`]), which saves calls.
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

    /// Returns whether idle handles move for `pages` pages although more could be created.
    pub(super) fn moves_early(&self, pages: u32) -> bool {
        self.config.backing == Backing::Billed && self.pays_for(2, pages, MOVING_CALLS)
    }

    /// Returns the maximum pages of one handle when `pages` adjacent ones are to be created.
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
