//! Walks over the listed spans of a set, for ticks and trims: a span that was idle for long enough is scanned, and
//! its pages without a used block are discarded.
//!
//! A walk visits each span once, a few at a time. Between two calls the spans may change: a span that leaves the list
//! leaves the walk (`ClassSpans::unlist`), and a span that enters the list comes before the spans that the walk has
//! passed.

use core::ptr;

use super::SpanSet;
use crate::small::class::SizeClass;
use crate::small::pages::Pages;
use crate::small::span::Span;

/// Value of the `rest` of a span whose last returned blocks were idle for long.
pub(super) const EXPIRED: u8 = 2;
/// Value of `rest` while the span has not changed since it was scanned.
const SCANNED: u8 = u8::MAX;

/// A scan makes holes only if their bytes are at least the span's bytes divided by one of these: the first normally,
/// the second under pressure. The reason is that each hole costs a system call and may split a huge page.
const SCAN_PART: usize = 8;
const PRESSURE_PART: usize = 64;

/// Cost of a scan, in blocks, in addition to the blocks that it examines; and cost of each run of pages that it
/// discards, which takes up to three system calls.
const SCAN_COST: usize = 32;
const HOLE_COST: usize = 32;

/// The kind of the walk under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SetWalk {
    /// No walk is under way.
    None,
    /// Scans spans that have been idle since the previous tick (under pressure, all spans), and makes the others one
    /// tick older.
    Tick,
    /// Scans all spans that have changed since their last scan.
    Trim,
    /// Scans nothing, and makes later walks skip all spans.
    Leave,
}

impl SpanSet {
    /// Makes the next walk scan all spans again, holes included. O(classes).
    pub fn forget_looks(&mut self) {
        for state in &mut self.classes {
            state.again = true;
            state.to_scan |= !state.listed.is_null();
        }
    }

    /// Begins a walk, or continues the one under way if it is of the same kind. Returns whether it has ended. Each
    /// visited span costs one block of the budget, and a scan costs what [`SCAN_COST`] and [`HOLE_COST`] say.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub(super) unsafe fn walk(
        &mut self,
        kind: SetWalk,
        budget: &mut usize,
        pages: &mut impl Pages,
    ) -> bool {
        if self.walk != kind {
            self.begin_walk(kind);
        }
        let all = SizeClass::all().all(|class| {
            // SAFETY: the caller passes the same `pages` at every call.
            unsafe { self.walk_class(class, budget, pages) }
        });
        if all {
            self.walk = SetWalk::None;
        }
        all
    }

    pub(super) fn begin_walk(&mut self, kind: SetWalk) {
        self.walk = kind;
        for state in &mut self.classes {
            let is_new = core::mem::take(&mut state.touched) | core::mem::take(&mut state.to_scan);
            // A walk of the other kind may not have ended.
            state.walk = match is_new || !state.walk.is_null() || kind == SetWalk::Leave {
                true => state.listed,
                false => ptr::null_mut(),
            };
            state.walk_again |= core::mem::take(&mut state.again);
        }
    }

    /// Continues a walk that makes later walks skip all spans. Returns whether it has ended. Each span costs one block
    /// of the budget.
    pub(super) fn walk_leaving(&mut self, budget: &mut usize) -> bool {
        for state in &mut self.classes {
            while !state.walk.is_null() {
                if *budget == 0 {
                    return false;
                }
                *budget -= 1;
                // SAFETY: a listed span belongs to this set, and no other reference to its own part exists (SPAN3).
                let own = unsafe { Span::own(state.walk) };
                state.walk = own.next;
                // A record that already has this value is not written, so its page is not copied.
                if own.rest != SCANNED {
                    own.rest = SCANNED;
                }
            }
            state.walk_again = false;
        }
        self.walk = SetWalk::None;
        true
    }

    /// Continues the walk in one class. Returns whether the budget was enough.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    unsafe fn walk_class(
        &mut self,
        class: SizeClass,
        budget: &mut usize,
        pages: &mut impl Pages,
    ) -> bool {
        loop {
            let span = self.class(class).walk;
            if span.is_null() {
                self.class(class).walk_again = false;
                return true;
            }
            if *budget == 0 {
                return false;
            }
            // SAFETY: a listed span belongs to this set, and no other reference to its own part exists (SPAN3).
            self.class(class).walk = unsafe { Span::own(span) }.next;
            // SAFETY: the span is listed, and the caller passes the same `pages` at every call.
            let cost = unsafe { self.look_at(span, pages) };
            *budget = budget.saturating_sub(cost);
        }
    }

    /// Scans a span, or makes it one tick older. Returns the cost in blocks. Not inlined, because its callers also do
    /// other things, on stacks that may be small.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill), for a listed span.
    #[inline(never)]
    unsafe fn look_at(&mut self, span: *mut Span, pages: &mut impl Pages) -> usize {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        // SAFETY: a listed span belongs to this set, so its shape may be read (SPAN1).
        let shape = unsafe { Span::shape(span) };
        // SAFETY: a listed span belongs to this set, and no other reference to its own part exists (SPAN3).
        let own = unsafe { Span::own(span) };
        let (is_trim, under_pressure) = (self.walk == SetWalk::Trim, pages.under_pressure());
        let state = self.class(shape.class());
        if own.rest == 0 && !is_trim && !under_pressure {
            own.rest = 1;
            state.to_scan = true;
            return 1;
        }
        let again = own.rest == SCANNED && state.walk_again;
        let page_bytes = pages.page_bytes();
        if page_bytes == 0 || own.rest == SCANNED && !again {
            return 1;
        }
        own.rest = SCANNED;
        let (mut cost, holes) = (SCAN_COST + own.listed_blocks(), own.hole_bytes());
        let part = if under_pressure {
            PRESSURE_PART
        } else {
            SCAN_PART
        };
        let least = shape.bytes as usize / part;
        let discard = |start, bytes| {
            // SAFETY: the bytes are in a hole, where no block is used (SPAN6).
            let more = unsafe { pages.discard(start, bytes) };
            cost += HOLE_COST + more.unwrap_or(0);
        };
        // SAFETY: the shape is the span's own, and the length of pages is that of `pages`.
        unsafe { own.scan(shape, page_bytes, least, again, discard) };
        let note_discarded = own.hole_bytes() - holes;
        if note_discarded > 0 {
            pages.note_discarded(note_discarded);
        }
        cost
    }
}
