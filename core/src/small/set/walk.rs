//! Walks over the listed spans of a set, for ticks and trims: a span that was idle for long enough is scanned, and
//! pages of it in which no block is used go back.
//!
//! A walk comes to each span once, a few at a time. Between two calls the spans may change: one that leaves the list
//! leaves the walk (`ClassSpans::unlist`), one that enters it comes in front of what the walk has passed.

use core::ptr;

use super::SpanSet;
use crate::small::class::SizeClass;
use crate::small::pages::Pages;
use crate::small::span::Span;

/// What a span's `rest` says when what came back last was idle for long.
pub(super) const EXPIRED: u8 = 2;
/// What it says when nothing happened to it since it was scanned.
const SCANNED: u8 = u8::MAX;

/// A span is dug for this part of its memory at least, as each hole costs a system call and may split a huge page; and
/// for this part under pressure.
const SCAN_PART: usize = 8;
const PRESSURE_PART: usize = 64;

/// What a scan costs beside the blocks that it looks at, in blocks, and each run of pages that it discards, which is up to
/// three system calls.
const SCAN_COST: usize = 32;
const HOLE_COST: usize = 32;

/// What the walk under way is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Walk {
    /// No walk is under way.
    None,
    /// Scans spans that have been idle since the tick before, under pressure all, and has the others seen one tick more.
    Tick,
    /// Scans all spans that something happened to.
    Trim,
    /// Scans nothing, and has all spans left alone by those to come.
    Leave,
}

impl SpanSet {
    /// Has all spans scanned again by the next walk, holes included. O(classes).
    pub fn forget_looks(&mut self) {
        for state in &mut self.classes {
            state.again = true;
            state.to_scan |= !state.listed.is_null();
        }
    }

    /// Begins a walk, or goes on with the one under way if it is of the same kind; returns whether it has ended. Each
    /// span that it comes to takes one from the budget, and a scan what it costs.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub(super) unsafe fn walk(
        &mut self,
        kind: Walk,
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
            self.walk = Walk::None;
        }
        all
    }

    pub(super) fn begin_walk(&mut self, kind: Walk) {
        self.walk = kind;
        for state in &mut self.classes {
            let is_new = core::mem::take(&mut state.touched) | core::mem::take(&mut state.to_scan);
            // A walk of the other kind may not have ended.
            state.walk = match is_new || !state.walk.is_null() || kind == Walk::Leave {
                true => state.listed,
                false => ptr::null_mut(),
            };
            state.walk_again |= core::mem::take(&mut state.again);
        }
    }

    /// Goes on with a walk that has all spans left alone; returns whether it has ended. A span takes one from the budget.
    pub(super) fn walk_leaving(&mut self, budget: &mut usize) -> bool {
        for state in &mut self.classes {
            while !state.walk.is_null() {
                if *budget == 0 {
                    return false;
                }
                *budget -= 1;
                // SAFETY: listed spans are ours.
                let own = unsafe { Span::own(state.walk) };
                state.walk = own.next;
                // A record that says so already is not copied.
                if own.rest != SCANNED {
                    own.rest = SCANNED;
                }
            }
            state.walk_again = false;
        }
        self.walk = Walk::None;
        true
    }

    /// Goes on with the walk in one class; returns whether the budget was enough.
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
            // SAFETY: listed spans are ours.
            self.class(class).walk = unsafe { Span::own(span) }.next;
            // SAFETY: listed, and the caller passes the same `pages` at every call.
            let cost = unsafe { self.look_at(span, pages) };
            *budget = budget.saturating_sub(cost);
        }
    }

    /// Scans a span, or has it seen one tick more; returns the cost in blocks. Not part of its callers, which do other things
    /// on stacks that may be short.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill), for a listed span.
    #[inline(never)]
    unsafe fn look_at(&mut self, span: *mut Span, pages: &mut impl Pages) -> usize {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        // SAFETY: listed spans are ours.
        let shape = unsafe { Span::shape(span) };
        // SAFETY: listed spans are ours.
        let own = unsafe { Span::own(span) };
        let (is_trim, under_pressure) = (self.walk == Walk::Trim, pages.under_pressure());
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
            // SAFETY: in a hole, which nobody uses (SPAN6).
            let more = unsafe { pages.discard(start, bytes) };
            cost += HOLE_COST + more.unwrap_or(0);
        };
        // SAFETY: its own shape, and the pages' answer.
        unsafe { own.scan(shape, page_bytes, least, again, discard) };
        let dug = own.hole_bytes() - holes;
        if dug > 0 {
            pages.dug(dug);
        }
        cost
    }
}
