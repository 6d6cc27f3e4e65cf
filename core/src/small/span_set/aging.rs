//! Ticks of the clock: blocks and spans that were idle since the last tick are released.
//!
//! Lists in the transfer cache return to their spans, spans without a used block are released, and pages of other
//! spans without a used block are discarded (`walk`). Each call does a bounded part of this and continues where the
//! last one ended, so that other threads can take the lock in between.

use core::ptr;

use super::SpanSet;
use super::class_spans::ClassSpans;
use super::give_back::RECEIVED;
use super::walk::SetWalk;
use crate::small::class::SizeClass;
use crate::small::pages::Pages;
use crate::small::remote::RemoteQueue;
use crate::small::slot::Slot;

/// Number of old lists that are walked at the same time, and of their blocks that are fetched before the first one is
/// returned.
const TOGETHER: usize = 8;
const FETCHED: usize = 256;

impl SpanSet {
    /// Returns lists of the transfer cache to their spans, and releases spans without a used block, if they were not
    /// needed since the last tick. Other lists and spans become one tick older. Subtracts the cost, in blocks, from
    /// `budget`. Returns whether the tick is complete; if not, call it again, and let other threads work in between.
    ///
    /// O(classes + blocks returned). A call ends with the lists that exceed the budget, at most 2048 blocks.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub unsafe fn age(
        &mut self,
        owner: *const RemoteQueue,
        budget: &mut usize,
        pages: &mut impl Pages,
    ) -> bool {
        let links = self.links();
        for class in SizeClass::all() {
            while !self.class(class).old.is_null() {
                if *budget == 0 {
                    return false;
                }
                let mut lists = [ptr::null_mut(); TOGETHER];
                for head in &mut lists {
                    let Some(list) = self.class(class).take_old(links) else {
                        break;
                    };
                    *head = list.head;
                    *budget = budget.saturating_sub(list.count);
                }
                self.aging = true;
                // SAFETY: the lists came from the transfer cache, so their blocks are free and belong to this set
                // (SLOT1).
                unsafe { self.give_back_together(owner, &mut lists, pages) };
                self.aging = false;
            }
        }
        for class in SizeClass::all() {
            if self.class(class).idle || pages.under_pressure() {
                // SAFETY: the caller passes the same `pages` at every call.
                unsafe { self.release_empty(class, pages) };
            }
            let state = self.class(class);
            state.old = core::mem::replace(&mut state.transfer, ptr::null_mut());
            state.idle = !state.empty.is_null();
        }
        true
    }

    /// Receives remote frees, and then visits each listed span of the changed classes once. The received blocks count
    /// as idle for long, which they are if only ticks have freed them. A span that has been idle for a tick is scanned
    /// for pages without a used block; other spans become one tick older. Subtracts the cost, in blocks, from `budget`.
    /// Returns whether the tick is complete; if not, call it again, and let other threads work in between.
    ///
    /// O(classes + listed spans of those classes + blocks of the spans that are scanned). A call ends with the span
    /// that exceeds the budget.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub unsafe fn settle(
        &mut self,
        owner: *const RemoteQueue,
        budget: &mut usize,
        pages: &mut impl Pages,
    ) -> bool {
        self.aging = true;
        // SAFETY: the caller promises the remote-free queue and the pages of this set.
        let all = unsafe { self.receive(owner, pages) };
        self.aging = false;
        if !all {
            *budget = budget.saturating_sub(RECEIVED);
            return false;
        }
        // SAFETY: the caller passes the same `pages` at every call.
        unsafe { self.walk(SetWalk::Tick, budget, pages) }
    }

    /// Makes [`age`](Self::age) and [`settle`](Self::settle) skip the blocks and spans that are idle now, until the
    /// program uses them. This is for the child of a fork, where each block that is touched costs a copy of its page,
    /// which is more than a release saves. Subtracts the cost, in blocks, from `budget`. Returns whether all spans were
    /// visited; if not, call it again.
    ///
    /// O(classes + listed spans). Lists are skipped only once: if the child forks in turn, the lists of its child age
    /// as usual while some lists of the first fork are left.
    pub fn leave_idle(&mut self, budget: &mut usize) -> bool {
        if self.walk != SetWalk::Leave {
            self.classes.iter_mut().for_each(ClassSpans::leave_lists);
            self.begin_walk(SetWalk::Leave);
        }
        self.walk_leaving(budget)
    }

    /// Returns whether [`age`](Self::age) and [`settle`](Self::settle) have anything to release or make older.
    /// O(classes).
    pub fn has_idle(&self) -> bool {
        let is_idle = |state: &ClassSpans| {
            let has_lists = state.transfer_lists > state.left_lists;
            has_lists || !state.empty.is_null() || state.touched || state.to_scan
        };
        let goes_on = !self.received.is_null() || self.walk != SetWalk::None;
        goes_on || self.classes.iter().any(is_idle)
    }

    /// Returns the number of lists and spans. O(classes).
    pub fn kept(&self) -> usize {
        let kept = |state: &ClassSpans| state.transfer_lists as usize + state.spans as usize;
        self.classes.iter().map(kept).sum()
    }

    /// Returns several lists to their spans, one block of each in turn. Idle blocks are in no processor cache, and a
    /// list's next block is known only once the current one has been fetched. So blocks of several lists are fetched at
    /// the same time.
    ///
    /// # Safety
    /// The conditions of [`give_back`](Self::give_back), for every list; null is an empty list.
    unsafe fn give_back_together(
        &mut self,
        owner: *const RemoteQueue,
        lists: &mut [*mut Slot; TOGETHER],
        pages: &mut impl Pages,
    ) {
        let links = self.links();
        loop {
            let (mut first, mut last): (*mut Slot, *mut Slot) = (ptr::null_mut(), ptr::null_mut());
            let mut count = 0;
            while count + TOGETHER <= FETCHED && lists.iter().any(|list| !list.is_null()) {
                for list in lists.iter_mut().filter(|list| !list.is_null()) {
                    let slot = *list;
                    // SAFETY: `slot` is in a list of the caller (SLOT1), so its first word is a link.
                    *list = unsafe { links.next(slot) };
                    if last.is_null() {
                        first = slot;
                    } else {
                        // SAFETY: the block is in one of the caller's lists, and its own link has already been
                        // followed.
                        unsafe { links.set_next(last, slot) };
                    }
                    (last, count) = (slot, count + 1);
                }
            }
            if first.is_null() {
                return;
            }
            // SAFETY: this is the last block of the list linked above, whose blocks all belong to the caller, to be
            // returned.
            unsafe {
                links.set_next(last, ptr::null_mut());
                self.give_back(owner, first, pages);
            }
        }
    }
}
