//! What to move and how much to create: the figures, and the memory of what was moved.
//!
//! All are relative to what is held, `t` being how often it was freed over (bytes ever freed /
//! bytes held): a young program grows in large pieces, one that reuses its memory in small ones,
//! which move more easily. The constants were chosen on the recorded traces and on copies of them
//! scaled by 0.5 to 2.5 (docs/DECISIONS.md, 29).

use heapless::Vec;

use super::{Backing, Bfc, Paged};
use crate::bfc::index::AddressIndex;

/// Grow ahead by at most held / (this x (1 + t)).
const AHEAD_DIVISOR: u64 = 64;
/// At most what limit and budget still give / this.
const ROOM_AHEAD_DIVISOR: u64 = 64;
/// A handle is at most held / (this x (1 + 2t)),
const HANDLE_DIVISOR: u64 = 12;
/// where t counts more while fewer pages than this are held, by the square: of a small pool a few
/// pages that cannot move are a large share.
const FEW_PAGES: u64 = 768;
/// A handle for a layout is at most what is held then / this.
const COARSE_HANDLE_DIVISOR: u64 = 16;
/// Under a budget at most what it still gives / this, so that the last ones fit closely;
const BUDGET_HANDLE_DIVISOR: u64 = 24;
/// but no less than the budget / this.
const BUDGET_LEAST_DIVISOR: u64 = 384;
/// Under a budget pages move before they must once it gives less than itself / this.
const BUDGET_NEAR_DIVISOR: u64 = 4;
/// A size for which pages moved in this many steps on end grows instead from then on.
const STEPS_OF_MOVES: u8 = 2;

/// For which sizes of request pages were moved, and in how many steps on end. The oldest is forgotten for
/// a new one.
pub(super) struct Hysteresis {
    sizes: Vec<Moves, 64>,
    oldest: usize,
}

#[derive(Clone, Copy)]
struct Moves {
    size: u32,
    last_step: u32,
    steps: u8,
}

impl Hysteresis {
    pub(super) const fn new() -> Self {
        Self {
            sizes: Vec::new(),
            oldest: 0,
        }
    }

    /// Whether pages may move for a request of so many granules in this step.
    pub(super) fn allows(&self, size: u32, step: u32) -> bool {
        let found = self.sizes.iter().find(|moves| moves.size == size);
        found.is_none_or(|moves| moves.last_step == step || moves.steps < STEPS_OF_MOVES)
    }

    /// Pages were moved for such a request.
    pub(super) fn note(&mut self, size: u32, step: u32) {
        if let Some(moves) = self.sizes.iter_mut().find(|moves| moves.size == size) {
            let settled = moves.steps >= STEPS_OF_MOVES;
            if moves.last_step.wrapping_add(1) == step || settled {
                moves.steps = moves.steps.saturating_add(1);
            } else if moves.last_step != step {
                moves.steps = 1;
            }
            moves.last_step = step;
            return;
        }
        let new = Moves {
            size,
            last_step: step,
            steps: 1,
        };
        if let Err(new) = self.sizes.push(new)
            && let Some(old) = self.sizes.get_mut(self.oldest)
        {
            *old = new;
            self.oldest = (self.oldest + 1) % self.sizes.len();
        }
    }
}

impl<I: AddressIndex> Bfc<'_, I, Paged<'_>> {
    /// Bytes held that count against limit and budget, plans under way included.
    pub(super) fn taken_bytes(&self) -> u64 {
        self.reserved_bytes() + self.growth.in_flight_bytes()
    }

    /// What may be held: the limit, and the budget if it is lower; whole pages.
    pub(super) fn max_bytes(&self) -> u64 {
        let limit = self.limit_bytes;
        let max = match self.memory.config.backing {
            Backing::Billed | Backing::InPlace => limit,
            Backing::Budget(bytes) => bytes.min(limit),
        };
        max / self.memory.config.page_bytes * self.memory.config.page_bytes
    }

    /// Pages to create for a gap at the end of the range that needs `gap`: those, and some ahead.
    pub(super) fn pages_ahead(&self, gap: u32) -> u32 {
        let held = self.reserved_bytes();
        let ahead = share(held, held, AHEAD_DIVISOR, self.memory.freed_bytes);
        let ahead = ahead.min(self.room_bytes() / ROOM_AHEAD_DIVISOR);
        let pages = self.whole_pages(ahead).max(gap);
        if self.page_bytes(pages) > self.room_bytes() {
            return gap;
        }
        pages
    }

    /// Most pages of one handle when `pages` are to be created.
    pub(super) fn max_pages_of_handle(&self, pages: u32) -> u32 {
        let held = self.reserved_bytes();
        let after = held + self.page_bytes(pages);
        let pages_after = (after / self.memory.config.page_bytes).clamp(1, FEW_PAGES);
        let weight = FEW_PAGES * FEW_PAGES / (pages_after * pages_after);
        let max = share(
            after,
            held,
            HANDLE_DIVISOR,
            self.memory.freed_bytes.saturating_mul(2 * weight),
        );
        let room = self.room_bytes() / BUDGET_HANDLE_DIVISOR;
        let close = room.max(self.max_bytes() / BUDGET_LEAST_DIVISOR);
        let max = if let Backing::Budget(_) = self.memory.config.backing {
            max.min(close)
        } else {
            max
        };
        self.whole_pages(max).max(1)
    }

    /// Most pages of one handle for memory of a layout, which is used over and over in the same place.
    pub(super) fn pages_of_coarse_handle(&self, pages: u32) -> u32 {
        let after = self.reserved_bytes() + self.page_bytes(pages);
        self.whole_pages(after / COARSE_HANDLE_DIVISOR).max(1)
    }

    /// Bytes that may still be created.
    pub(super) fn room_bytes(&self) -> u64 {
        self.max_bytes().saturating_sub(self.taken_bytes())
    }

    fn whole_pages(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / self.memory.config.page_bytes).unwrap_or(u32::MAX)
    }

    /// Whether pages move for a request of so many granules although more could be created.
    pub(super) fn moves_early(&self, size: u32) -> bool {
        match self.memory.config.backing {
            Backing::Billed => self.memory.hysteresis.allows(size, self.memory.step),
            Backing::Budget(_) => {
                self.room_bytes() < self.max_bytes() / BUDGET_NEAR_DIVISOR
                    && self.memory.hysteresis.allows(size, self.memory.step)
            }
            Backing::InPlace => false,
        }
    }
}

/// `whole / (divisor x (1 + freed / held))`.
fn share(whole: u64, held: u64, divisor: u64, freed: u64) -> u64 {
    if held == 0 {
        return whole / divisor;
    }
    let result = u128::from(whole) * u128::from(held)
        / (u128::from(divisor) * (u128::from(held) + u128::from(freed)));
    u64::try_from(result).unwrap_or(u64::MAX)
}
