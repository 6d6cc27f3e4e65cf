//! The figures that decide which memory moves, and how much memory is created.
//!
//! A *unit* is the `unit_bytes` of the configuration, 20 MiB by default. The reasons for the figures are in
//! docs/guide/src/moving.md.

use super::{Backing, PagePool};

/// A young pool creates only the missing pages while it has made fewer driver calls than this for every ten units held.
/// A pool is young while it has freed less than it holds. So a program's first blocks take no excess memory.
const YOUNG_CALLS: u64 = 14;
/// An older pool creates only the missing pages while it has made fewer driver calls than this for every ten units
/// held. Expandable segments make about as many calls: a create and a map for every unit, and a call that grants access
/// for most units.
const EXACT_CALLS: u64 = 28;
/// Idle handles move, even if new ones could be created, while the pool has made fewer driver calls than this for every
/// ten units held. This is four fifths of two calls per unit, the least that expandable segments need.
const MOVING_CALLS: u64 = 16;
/// When a pool creates pages ahead, to save calls, its held bytes grow to a multiple of this many tenths of a unit.
const AHEAD: u64 = 13;
/// A pool that holds fewer tenths of a unit than this creates no pages ahead, because in a small pool every page
/// counts.
const LEAST: u64 = 8;
/// Maximum size of a handle in tenths of a unit. In a large pool, handles may be larger ([`HANDLE_DIVISOR`]).
const HANDLE: u64 = 16;
/// In a large pool, a handle may be as large as the held bytes divided by this. The number of calls then does not grow
/// with the pool.
const HANDLE_DIVISOR: u64 = 256;
/// A pool is near its limit once it holds the limit divided by this. [`LIMIT_DIVISOR`] and [`ROOM_DIVISOR`] then bound
/// the size of a handle.
const LIMIT_NEAR_DIVISOR: u64 = 4;
/// Near the limit, a handle is no larger than the limit divided by this. A block keeps the handles at its two ends in
/// place even if it uses only a part of them, and smaller handles waste less.
const LIMIT_DIVISOR: u64 = 2048;
/// Near the limit, a handle is also no larger than the bytes left under the limit divided by this, so that the last
/// handles come close to the limit.
const ROOM_DIVISOR: u64 = 16;
/// A handle for a layout is no larger than the bytes held after the growth, divided by this. It may be large, because a
/// layout is used as a whole.
const LAYOUT_DIVISOR: u64 = 16;
/// Maximum number of handles that a plan creates for one run of adjacent pages. A longer run gets larger handles.
const HANDLES_A_RUN: u32 = 256;

impl PagePool<'_> {
    /// Returns how many bytes may be held, in whole pages: the limit, or the budget if that is lower.
    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes_within(u64::MAX)
    }

    /// Returns how many bytes may be held for a purpose that has its own limit of `bytes`.
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

    /// Returns the number of pages that may still be created.
    pub(super) fn room_pages(&self) -> u32 {
        self.whole_pages(self.room_bytes())
    }

    /// Returns whether the pool, after `calls` more driver calls and with `pages` more pages, would have made fewer
    /// than `tenths` calls for every ten units held.
    fn pays_for(&self, calls: u64, pages: u32, tenths: u64) -> bool {
        let after = self.chunks.taken_bytes() + self.page_bytes(pages);
        self.calls.saturating_add(calls) < after / (self.tenths_of_unit(100) / tenths).max(1)
    }

    /// Returns the number of pages to create ahead, when growth at the end of the range needs `pages` pages. They bring
    /// the held bytes to a multiple of 1.3 units ([`AHEAD`]), which saves calls. 0 while the pool has made few calls,
    /// is small, or would hold more than half of its limit.
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

    /// Returns whether idle handles should move when `pages` pages need memory, even if new handles could be created.
    pub(super) fn moves_early(&self, pages: u32) -> bool {
        self.config.backing == Backing::Billed && self.pays_for(2, pages, MOVING_CALLS)
    }

    /// Returns the maximum number of pages in one handle when a run of `pages` pages is created.
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
