//! Checks a set by a walk over everything that it reaches, for tests and debug builds.

use core::ptr;

use super::super::class::SizeClass;
use super::super::slot::Slot;
use super::super::span::Span;
use super::SpanSet;

impl SpanSet {
    /// Returns whether SET1..SET3 and SPAN2 hold, by a walk over everything the set reaches.
    pub fn is_sound(&self) -> bool {
        SizeClass::all().all(|class| self.class_is_sound(class))
    }

    fn class_is_sound(&self, class: SizeClass) -> bool {
        let state = &self.classes[class.index()];
        let (mut empty, mut empties) = (ptr::null_mut(), 0);
        let (mut prev, mut span) = (ptr::null_mut(), state.listed);
        while !span.is_null() {
            // SAFETY: a listed span belongs to this set, so its shape may be read (SPAN1).
            let shape = unsafe { Span::shape(span) };
            // SAFETY: a listed span belongs to this set, and no other reference to its own part exists (SPAN3).
            let own = unsafe { Span::own(span) };
            // SAFETY: the shape is the span's own.
            let sound = unsafe { own.is_sound(shape) };
            if !sound || !own.listed || own.prev != prev || !own.has_blocks(shape) {
                return false;
            }
            if own.used() == 0 {
                (empty, empties) = (span, empties + 1);
            }
            (prev, span) = (span, own.next);
        }
        let (mut chains, mut blocks) = (0, 0);
        for mut list in [state.transfer, state.old].into_iter().chain(state.left) {
            while !list.is_null() {
                chains += 1;
                // SAFETY: the list is in the transfer cache, so its length was written (SET1).
                let count = unsafe { self.links().length(list) };
                if self.list_len(list) != count || count > self.policy.bin_blocks(class) {
                    return false;
                }
                blocks += count as u64;
                // SAFETY: the list is in the transfer cache, and its first block has a second word (SET1).
                list = unsafe { self.links().below(list) };
            }
        }
        empty == state.empty
            && empties <= 1
            && (chains, blocks) == (state.transfer_lists, state.transfer_blocks)
    }

    /// Returns the length of a list that satisfies SLOT1.
    fn list_len(&self, list: *mut Slot) -> usize {
        let (mut count, mut slot) = (0, list);
        while !slot.is_null() {
            count += 1;
            // SAFETY: `slot` is in a list of this set (SLOT1), so its first word is a link.
            slot = unsafe { self.links().next(slot) };
        }
        count
    }
}
