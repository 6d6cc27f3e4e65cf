//! What a set does when the clock ticks: what has been idle since the tick before goes back.
//!
//! Lists in the transfer cache go to their spans, spans without a used block below, and of other spans the pages
//! in which no block is used. Each call does a few of them, so that others may have the lock in between.

use core::ptr;

use super::SpanSet;
use super::class_spans::ClassSpans;
use crate::small::class::SizeClass;
use crate::small::pages::Pages;
use crate::small::remote::RemoteQueue;
use crate::small::slot::Slot;
use crate::small::span::Span;

/// Old lists that are walked at the same time, and blocks of them that are fetched before the first
/// one goes back.
const TOGETHER: usize = 8;
const FETCHED: usize = 256;

/// What a span's `rest` says when what came back last was idle for long.
pub(super) const EXPIRED: u8 = 2;
/// What it says when its holes are to be discarded again.
const AGAIN: u8 = 3;
/// What it says when nothing happened to it since it was dug.
const LOOKED_AT: u8 = u8::MAX;

impl SpanSet {
    /// One tick of the clock by which idle memory goes back: gives back what has not been needed
    /// since the last one, at most `budget` lists, and lets what is left grow older. Whether that was
    /// all; if not, call it again, and others may have worked in between.
    ///
    /// What has gone back to spans that stay leaves holes in them, where it lies idle page by page.
    ///
    /// O(classes + blocks given back + blocks of the spans that have been idle + listed spans of the
    /// classes that had idle ones).
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub unsafe fn age(
        &mut self,
        owner: *const RemoteQueue,
        budget: usize,
        pages: &mut impl Pages,
    ) -> bool {
        let (mut left, links) = (budget, self.links());
        for class in SizeClass::all() {
            while !self.class(class).old.is_null() {
                if left == 0 {
                    return false;
                }
                let mut lists = [ptr::null_mut(); TOGETHER];
                for list in lists.iter_mut().take(left) {
                    *list = self.class(class).take_old(links).unwrap_or(ptr::null_mut());
                }
                left = left.saturating_sub(TOGETHER);
                self.aging = true;
                // SAFETY: the lists were the transfer cache's.
                unsafe { self.give_back_together(owner, &mut lists, pages) };
                self.aging = false;
            }
        }
        for class in SizeClass::all() {
            if self.class(class).idle {
                // SAFETY: the caller passes the same `pages` at every call.
                unsafe { self.release_empty(class, pages) };
                self.class(class).idle = false;
            }
            // SAFETY: the caller passes the same `pages` at every call.
            if self.class(class).to_scan && !unsafe { self.scan(class, 1, &mut left, pages) } {
                return false;
            }
        }
        for class in SizeClass::all() {
            // SAFETY: the set is ours.
            unsafe { self.rest(class) };
            let state = self.class(class);
            state.old = core::mem::replace(&mut state.transfer, ptr::null_mut());
            state.idle = state.empty > 0;
        }
        true
    }

    /// Receives what others freed as idle for long, which it is if only ticks have freed it, and scans
    /// where it lay. As [`age`](Self::age), it may have to be called again.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub unsafe fn settle(
        &mut self,
        owner: *const RemoteQueue,
        budget: usize,
        pages: &mut impl Pages,
    ) -> bool {
        self.aging = true;
        // SAFETY: the caller's remote-free queue.
        unsafe { self.receive(owner, pages) };
        self.aging = false;
        let mut left = budget;
        SizeClass::all().all(|class| {
            // SAFETY: the caller passes the same `pages` at every call.
            !self.class(class).to_scan || unsafe { self.scan(class, EXPIRED, &mut left, pages) }
        })
    }

    /// Has [`age`](Self::age) leave alone what is idle now, as long as the program does not use it: in the child of a
    /// fork each block that is touched costs a copy of its page, more than what goes back. O(lists + listed spans).
    pub fn leave_idle(&mut self) {
        let links = self.links();
        for state in &mut self.classes {
            state.leave_lists(links);
            (state.touched, state.to_scan) = (false, false);
            let mut span = state.listed;
            while !span.is_null() {
                // SAFETY: listed spans are ours.
                let own = unsafe { Span::own(span) };
                if own.rest != LOOKED_AT {
                    own.rest = LOOKED_AT;
                }
                span = own.next;
            }
        }
    }

    /// Whether there is anything that [`age`](Self::age) gives back or makes older. O(classes).
    pub fn has_idle(&self) -> bool {
        self.classes.iter().any(|state| {
            let has_lists = state.transfer_lists > state.left_lists;
            has_lists || state.empty > 0 || state.touched || state.to_scan
        })
    }

    /// Has the spans of a class seen one tick more, if anything happened to them.
    ///
    /// # Safety
    /// The set is the caller's.
    unsafe fn rest(&mut self, class: SizeClass) {
        let state = self.class(class);
        if !core::mem::take(&mut state.touched) {
            return;
        }
        let mut span = state.listed;
        while !span.is_null() {
            // SAFETY: listed spans are ours.
            let own = unsafe { Span::own(span) };
            if own.rest == 0 {
                own.rest = 1;
                state.to_scan = true;
            }
            span = own.next;
        }
    }

    /// How many lists and spans there are. O(classes).
    pub fn kept(&self) -> usize {
        let kept = |state: &ClassSpans| state.transfer_lists as usize + state.spans as usize;
        self.classes.iter().map(kept).sum()
    }

    /// Has all spans looked at again by the next [`trim`](Self::trim) or [`settle`](Self::settle), holes
    /// included. O(listed spans).
    pub fn forget_looks(&mut self) {
        for state in &mut self.classes {
            let mut span = state.listed;
            while !span.is_null() {
                // SAFETY: listed spans are ours.
                let own = unsafe { Span::own(span) };
                if own.rest == LOOKED_AT {
                    own.rest = AGAIN;
                    state.to_scan = true;
                }
                span = own.next;
            }
        }
    }

    /// Scans in the spans of a class that have been idle for so many ticks at least and were not looked at
    /// since, each of which takes one from the budget; whether it was enough.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub(super) unsafe fn scan(
        &mut self,
        class: SizeClass,
        ticks: u8,
        budget: &mut usize,
        pages: &mut impl Pages,
    ) -> bool {
        let page_bytes = pages.page_bytes();
        let state = self.class(class);
        let (mut span, mut younger) = (state.listed, false);
        while !span.is_null() && page_bytes > 0 {
            // SAFETY: listed spans are ours.
            let shape = unsafe { Span::shape(span) };
            // SAFETY: listed spans are ours.
            let own = unsafe { Span::own(span) };
            if (ticks..LOOKED_AT).contains(&own.rest) {
                if *budget == 0 {
                    return false;
                }
                *budget -= 1;
                let again = own.rest == AGAIN;
                own.rest = LOOKED_AT;
                // SAFETY: in a hole, which nobody uses (SPAN6).
                let discard = |start, bytes| unsafe { pages.discard(start, bytes) };
                // SAFETY: its own shape, and the pages' answer.
                unsafe { own.scan(shape, page_bytes, again, discard) };
            }
            younger |= (1..ticks).contains(&own.rest);
            span = own.next;
        }
        state.to_scan = younger;
        true
    }

    /// Gives several lists back, a block of each in turn. Idle blocks lie in no cache, and a list shows
    /// where its next block is only once it has fetched this one; so several are fetched at once.
    ///
    /// # Safety
    /// The conditions of [`give_back`](Self::give_back), for every list; null is an empty one.
    unsafe fn give_back_together(
        &mut self,
        owner: *const RemoteQueue,
        lists: &mut [*mut Slot; TOGETHER],
        pages: &mut impl Pages,
    ) {
        let links = self.links();
        loop {
            let (mut fetched, mut count) = ([ptr::null_mut(); FETCHED], 0);
            while count + TOGETHER <= FETCHED && lists.iter().any(|list| !list.is_null()) {
                for list in lists.iter_mut().filter(|list| !list.is_null()) {
                    fetched[count] = *list;
                    count += 1;
                    // SAFETY: SLOT1.
                    *list = unsafe { links.next(*list) };
                }
            }
            let (mut list, blocks) = (ptr::null_mut(), &fetched[..count]);
            for &slot in blocks.iter().rev() {
                // SAFETY: ours, and fetched from its list.
                unsafe { links.set_next(slot, list) };
                list = slot;
            }
            if list.is_null() {
                return;
            }
            // SAFETY: the caller's promise; linked just now.
            unsafe { self.give_back(owner, list, pages) };
        }
    }
}
