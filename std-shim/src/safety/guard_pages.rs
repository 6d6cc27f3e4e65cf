//! Guard pages: one block in `guard_one_in` lies alone in a page between two inaccessible ones. A
//! write or read past it faults immediately, as does any access to the page of a freed block. Meant
//! for programs in production: all other blocks are plain, and the fast paths are unchanged.
//!
//! ```text
//!   guard │ page 0 │ guard │ page 1 │ guard │ … │ guard
//! ```
//!
//! A block lies at the end of its page or at its start, at random. The rest of the page is filled,
//! and checked when the block is freed. A block is chosen when its thread has none cached. A free
//! by address takes the cold path for a block outside the arenas. A free with a layout would not
//! check the address, so in a heap with guard pages every such free takes the cold path (LOCAL3).
//!
//! # Invariants
//! * GUARDPAGE1 a page is usable while its slot is `Used` or `Leaving`. The page of a `Used` slot
//!   is the program's; that of a `Leaving` slot belongs only to the thread that frees the block.
//!   After an access to a freed page its slot stays `Leaving`, and the page inaccessible.
//! * GUARDPAGE2 the page of a slot that becomes `Free` is used again after those of all slots that
//!   are `Free` by then.

use core::alloc::Layout;
use core::ptr::{self, NonNull};

use larder_core::Locked;
use larder_core::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, LockWord, Ordering};

use super::blocks::{BadWrite, Facts, Known, UseState, mend};
use super::history::Here;
use super::report::{FoundMisuse, report, say_found};
use super::{LEAST_ALIGN, Misuse, fill};
use crate::block_table::{MappedValues, Zeroes};
use crate::config::Config;
use crate::os::stack::thread_number;
use crate::os::{Native, Os, fault, say};
use crate::process::PROCESS;
use crate::thread::local::Local;
use crate::thread::wait::Sleep;
use crate::thread::with_local;

/// Maximum number of blocks with pages of their own. In use, they take 4 MiB, the table of slots
/// 0.6 MiB, and each page two of the kernel's mappings, of which a process may have 65,530.
const SLOTS: usize = 1024;
/// Bytes of blocks of a common length that one refill brings into an empty bin.
const REFILL_BYTES: usize = 4096;
/// The values of [`GuardPages::full`].
const NEVER_FULL: u32 = 0;
const WAS_FULL: u32 = 1;
const SAID_FULL: u32 = 2;

/// A page for a block.
#[derive(Clone, Copy)]
struct GuardSlot {
    known: Known,
    block: usize,
    allocated: Here,
    freed: Here,
    /// Number of the block's free among all frees, counted from 1; 0 while the block is not freed.
    freed_at: u64,
    has_block: bool,
}

// SAFETY: all zeros are numbers, the first state, and `false`.
unsafe impl Zeroes for GuardSlot {}

impl GuardSlot {
    fn is_free(&self) -> bool {
        !self.has_block || self.known.state == UseState::Free
    }

    /// Returns whether the slot's block starts or started there.
    fn is_of(&self, block: *mut u8) -> bool {
        self.has_block && self.block == block.addr()
    }

    fn facts(&self, address: *mut u8) -> Option<Facts> {
        let freed = (self.known.state == UseState::Free).then_some(self.freed);
        self.has_block.then(|| Facts {
            block: address.with_addr(self.block),
            known: self.known,
            history: [Some(self.allocated), freed],
        })
    }
}

/// The pages, and the countdown to the next chosen allocation.
pub(crate) struct GuardPages {
    /// Null until the first block is chosen.
    start: AtomicPtr<u8>,
    /// The system's page size, kept because each free needs it.
    page_bytes: AtomicUsize,
    /// Allocations up to and including the next chosen one; 0 before the first one is drawn.
    left: AtomicU32,
    random: AtomicU64,
    /// Whether all pages were in use at a chosen allocation, and whether that was said.
    full: AtomicU32,
    slots: Locked<Slots, Sleep>,
}

struct Slots {
    slots: MappedValues<GuardSlot>,
    freed: u64,
}

impl GuardPages {
    pub(crate) const fn new() -> Self {
        Self {
            start: AtomicPtr::new(ptr::null_mut()),
            page_bytes: AtomicUsize::new(0),
            left: AtomicU32::new(0),
            random: AtomicU64::new(0),
            full: AtomicU32::new(NEVER_FULL),
            slots: Locked::new(Slots {
                slots: MappedValues::NONE,
                freed: 0,
            }),
        }
    }

    /// Returns whether an allocation whose bin is empty is the chosen one. Concurrent threads may
    /// lose some counts.
    fn is_due(&self, bytes: usize, one_in: u32) -> bool {
        if one_in == 1 {
            return true;
        }
        let stands_for = (REFILL_BYTES / bytes.max(LEAST_ALIGN)).max(1);
        let stands_for = u32::try_from(stands_for).unwrap_or(u32::MAX);
        let mut left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            left = self.draw(one_in);
        }
        let is_due = left <= stands_for;
        let left = match is_due {
            // The thread gets one block now, and requests the others later.
            true => self.draw(one_in).saturating_add(stands_for - 1),
            false => left - stands_for,
        };
        self.left.store(left, Ordering::Relaxed);
        is_due
    }

    /// Draws a number of at least 1 that is `one_in` on average.
    fn draw(&self, one_in: u32) -> u32 {
        let below = u64::from(one_in) * 2 - 1;
        u32::try_from(self.next_random() % below + 1).unwrap_or(u32::MAX)
    }

    fn next_random(&self) -> u64 {
        let mut random = self.random.load(Ordering::Relaxed);
        if random == 0 {
            // Differs between processes.
            random = (&raw const random).addr() as u64 ^ u64::from(thread_number()) << 32 | 1;
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.store(random, Ordering::Relaxed);
        random
    }

    /// Returns the number of the page at an address, or next to it; `None` if the address is
    /// elsewhere.
    fn number_of(&self, address: *mut u8) -> Option<usize> {
        let start = self.start.load(Ordering::Acquire);
        let page = self.page_bytes.load(Ordering::Relaxed);
        let offset = address.addr().checked_sub(start.addr())?;
        if start.is_null() || offset >= (2 * SLOTS + 1) * page {
            return None;
        }
        // Each half of a guard page belongs to the page next to it.
        let number = offset.saturating_sub(page / 2) / (2 * page);
        Some(number.min(SLOTS - 1))
    }

    fn page(&self, number: usize) -> *mut u8 {
        let start = self.start.load(Ordering::Acquire);
        start.wrapping_add((2 * number + 1) * Native.page_bytes())
    }

    fn begin(&self, slots: &mut Slots) -> Option<()> {
        if !slots.slots.values().is_empty() {
            return Some(());
        }
        let page = Native.page_bytes();
        let mapped = MappedValues::map(SLOTS)?;
        let start = Native.reserve((2 * SLOTS + 1) * page, page)?;
        slots.slots = mapped;
        self.page_bytes.store(page, Ordering::Relaxed);
        // Release: a thread that finds a block there finds the slots and the length of a page.
        self.start.store(start.as_ptr(), Ordering::Release);
        Some(())
    }

    /// Takes a free page for a block.
    fn take(&self, bytes: usize, by_new: bool, here: Here) -> Option<NonNull<u8>> {
        let at_end = self.next_random() >> 63 == 0;
        self.slots.with(|slots| {
            self.begin(slots)?;
            let page = Native.page_bytes();
            let all = slots.slots.values().iter_mut().enumerate();
            let free = all.filter(|(_, slot)| slot.is_free());
            let Some((number, slot)) = free.min_by_key(|(_, slot)| slot.freed_at) else {
                self.note_full(NEVER_FULL, WAS_FULL);
                return None;
            };
            let start = self.page(number);
            // SAFETY: GUARDPAGE1: a page that is not in use.
            if !unsafe { Native.commit(start, page) } {
                return None;
            }
            let room = match at_end {
                true => bytes.max(1).next_multiple_of(LEAST_ALIGN),
                false => page,
            };
            let block = start.wrapping_add(page - room);
            let known = Known::new(bytes, LEAST_ALIGN, by_new).granted(room);
            // SAFETY: GUARDPAGE1: the block and its room lie in the page.
            unsafe { fill::fill(block, &known) };
            *slot = GuardSlot {
                known,
                block: block.addr(),
                allocated: here,
                freed: here,
                freed_at: 0,
                has_block: true,
            };
            NonNull::new(block)
        })
    }

    /// Changes `full` if it has a value. Returns whether it had.
    fn note_full(&self, from: u32, to: u32) -> bool {
        // Relaxed: the word says nothing about other memory.
        (self.full)
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Says once that all pages are in use. Called without the lock of the slots.
    #[cold]
    fn say_full(&self) {
        const { assert!(SLOTS == 1024, "the number below") };
        if self.note_full(WAS_FULL, SAID_FULL) {
            say(b"larder: all 1024 guard pages are in use: further blocks have none\n");
        }
    }

    /// Begins to free the block that starts at an address, and makes its page the caller's
    /// (GUARDPAGE1). Returns `None` if the address is not among the pages.
    fn begin_free(&self, block: *mut u8) -> Option<Result<Known, Misuse>> {
        self.with_slot(block, |slot| {
            if !slot.is_of(block) {
                return Err(Misuse::NoBlock);
            }
            if slot.known.state != UseState::Used {
                return Err(Misuse::FreedTwice);
            }
            slot.known.state = UseState::Leaving;
            Ok(slot.known)
        })
    }

    /// Ends the free of a block: decommits its page, and frees the slot.
    fn end_free(&self, block: *mut u8, here: Here) {
        let Some(number) = self.number_of(block) else {
            return;
        };
        // SAFETY: GUARDPAGE1: the block is leaving, so its page is ours alone.
        unsafe { Native.decommit(self.page(number), Native.page_bytes()) };
        self.slots.with(|slots| {
            slots.freed += 1;
            let freed_at = slots.freed;
            if let Some(slot) = slots.slots.values().get_mut(number) {
                slot.known.state = UseState::Free;
                (slot.freed, slot.freed_at) = (here, freed_at);
            }
        });
    }

    /// Runs `f` with the slot whose page contains an address.
    fn with_slot<R>(&self, address: *mut u8, f: impl FnOnce(&mut GuardSlot) -> R) -> Option<R> {
        let number = self.number_of(address)?;
        self.slots
            .with(|slots| slots.slots.values().get_mut(number).map(f))
    }

    /// Returns the lock, for a fork.
    ///
    /// # Safety
    /// The caller releases the lock only if it has taken it.
    pub(crate) const unsafe fn lock(&self) -> &LockWord {
        // SAFETY: as above.
        unsafe { self.slots.word() }
    }
}

/// Returns whether an address is among the pages.
pub(crate) fn has(block: *mut u8) -> bool {
    PROCESS.guard_pages.number_of(block).is_some()
}

/// Allocates a zeroed block with a page of its own, if this allocation is the chosen one.
#[inline(never)]
pub(crate) fn alloc(layout: Layout, config: &Config) -> Option<NonNull<u8>> {
    let one_in = PROCESS.tuning.config().guard_one_in;
    let bytes = layout.size();
    let may = bytes <= Native.page_bytes() - LEAST_ALIGN && layout.align() <= LEAST_ALIGN;
    if !may || !PROCESS.guard_pages.is_due(bytes, one_in) {
        return None;
    }
    // A report must not use up the pages.
    // SAFETY: called from the verbs, which do not use the thread's part here.
    if unsafe { with_local(|local| local.is_walking()) } {
        return None;
    }
    let here = Here::walk((&raw const bytes).addr());
    let Some(block) = PROCESS.guard_pages.take(bytes, config.by_new, here) else {
        PROCESS.guard_pages.say_full();
        return None;
    };
    if PROCESS.tuning.config().explains_faults {
        fault::watch(explain);
    }
    Some(block)
}

/// Counts a free with a layout. At every `guard_one_in`-th such free, flushes the thread's cache
/// and chooses the thread's next block.
pub(crate) fn count_free(local: &mut Local) {
    if local.counts_free(PROCESS.tuning.config().guard_one_in) {
        local.flush(&PROCESS);
        PROCESS.guard_pages.left.store(1, Ordering::Relaxed);
    }
}

/// Reports a misuse of the block whose page contains an address. Returns if the program may go on.
#[cold]
fn say_misuse(misuse: Misuse, address: *mut u8, byte: Option<*mut u8>, here: &Here) {
    let facts = (PROCESS.guard_pages).with_slot(address, |slot| slot.facts(address));
    report(&FoundMisuse {
        misuse,
        address,
        byte,
        facts: facts.flatten(),
        here: Some(here),
    });
}

/// Frees a block that has a page of its own. The block must have the layout if one is given.
///
/// # Safety
/// `block` is an address among the pages, and the caller gives it up. An address without a block is
/// reported.
#[cold]
#[inline(never)]
pub(crate) unsafe fn free(block: *mut u8, given: Option<Layout>) {
    free_from(block, given, Here::walk((&raw const block).addr()));
}

fn free_from(block: *mut u8, given: Option<Layout>, here: Here) {
    let known = match PROCESS.guard_pages.begin_free(block) {
        Some(Ok(known)) => known,
        Some(Err(misuse)) => return say_misuse(misuse, block, None, &here),
        None => return,
    };
    if given.is_some_and(|layout| !known.is(layout)) {
        say_misuse(Misuse::OtherLayout, block, None, &here);
    }
    // SAFETY: GUARDPAGE1: the block is leaving, so its page is ours alone.
    if let Some(BadWrite { misuse, byte, .. }) = unsafe { mend(block, &known, usize::MAX) } {
        say_misuse(misuse, block, Some(byte), &here);
    }
    PROCESS.guard_pages.end_free(block, here);
}

/// Moves a block that has a page of its own to a block of another length, which `alloc` allocates.
/// Returns null if there is no memory. The block must have the layout if one is given.
///
/// # Safety
/// `block` is an address among the pages, and the caller gives it up if the result is not null. An
/// address without a block is reported.
#[cold]
#[inline(never)]
pub(crate) unsafe fn resize(
    block: *mut u8,
    given: Option<Layout>,
    bytes: usize,
    alloc: impl FnOnce(usize) -> *mut u8,
) -> *mut u8 {
    let here = Here::walk((&raw const block).addr());
    let slot = (PROCESS.guard_pages).with_slot(block, |slot| (slot.known, slot.is_of(block)));
    let known = match slot {
        Some((known, true)) if known.state == UseState::Used => known,
        Some((_, is_start)) => {
            let misuse = match is_start {
                true => Misuse::ResizedAfterFree,
                false => Misuse::ResizedNoBlock,
            };
            say_misuse(misuse, block, None, &here);
            return ptr::null_mut();
        }
        None => return ptr::null_mut(),
    };
    let moved = alloc(bytes);
    if !moved.is_null() {
        // SAFETY: two blocks, each that long.
        unsafe { ptr::copy_nonoverlapping(block, moved, known.bytes.min(bytes)) };
        free_from(block, given, here);
    }
    moved
}

/// Returns the bytes that the program requested for a block with a page of its own; `None` if no
/// such block starts there.
pub(crate) fn usable_size(block: *mut u8) -> Option<usize> {
    let size = |slot: &mut GuardSlot| {
        let is_used = slot.is_of(block) && slot.known.state == UseState::Used;
        is_used.then_some(slot.known.bytes)
    };
    PROCESS.guard_pages.with_slot(block, size).flatten()
}

/// Reports the access that faulted at an address, and its instruction.
fn explain(address: *mut u8, instruction: usize) {
    let facts = (PROCESS.guard_pages).with_slot(address, |slot| {
        let facts = slot.facts(address);
        // No block may get this page: the access is tried again, and must fault again.
        if slot.known.state == UseState::Free {
            slot.known.state = UseState::Leaving;
        }
        facts
    });
    let Some(facts) = facts.flatten() else {
        return;
    };
    let misuse = match facts.known.state {
        UseState::Free => Misuse::TouchedAfterFree,
        _ if address < facts.block => Misuse::TouchedBeforeStart,
        _ => Misuse::TouchedPastEnd,
    };
    say_found(&FoundMisuse {
        misuse,
        address,
        byte: None,
        facts: Some(facts),
        here: Some(&Here::interrupted_at(instruction)),
    });
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Allocates a block in every page.
    fn full(pages: &GuardPages) -> Vec<*mut u8> {
        let blocks = core::iter::from_fn(|| pages.take(100, false, Here::walk(0)));
        blocks.map(NonNull::as_ptr).collect()
    }

    #[test]
    fn a_page_is_used_again_when_its_free_has_ended_and_not_before() {
        let pages = GuardPages::new();
        let blocks = full(&pages);
        assert_eq!(blocks.len(), SLOTS);
        let leaving = blocks[SLOTS / 2];
        assert!(pages.begin_free(leaving).is_some_and(|begun| begun.is_ok()));
        assert!(pages.take(100, false, Here::walk(0)).is_none());
        let again = pages.begin_free(leaving);
        assert_eq!(again.and_then(Result::err), Some(Misuse::FreedTwice));
        // Still owned by the thread that frees it, which reads the page.
        // SAFETY: GUARDPAGE1: its page is usable until its free has ended.
        assert_eq!(unsafe { leaving.read() }, 0);
        pages.end_free(leaving, Here::walk(0));
        let next = pages.take(100, false, Here::walk(0));
        let number = |block: *mut u8| pages.number_of(block);
        assert_eq!(
            next.and_then(|block| number(block.as_ptr())),
            number(leaving)
        );
    }

    #[test]
    fn the_page_that_was_freed_first_is_used_first() {
        let pages = GuardPages::new();
        let blocks = full(&pages);
        let freed = [7, 3, 200].map(|number| blocks[number]);
        for block in freed {
            assert!(pages.begin_free(block).is_some_and(|begun| begun.is_ok()));
            pages.end_free(block, Here::walk(0));
        }
        for block in freed {
            let next = pages.take(100, false, Here::walk(0)).map(NonNull::as_ptr);
            let next = next.and_then(|next| pages.number_of(next));
            assert_eq!(next, pages.number_of(block));
        }
    }

    #[test]
    fn an_address_is_of_the_page_it_touches() {
        let pages = GuardPages::new();
        let blocks = full(&pages);
        let page = Native.page_bytes();
        for (number, block) in blocks.into_iter().enumerate() {
            assert_eq!(pages.number_of(block), Some(number));
            let start = pages.page(number);
            for (at, expected) in [
                (start.wrapping_sub(page / 2), number),
                (start.wrapping_add(page + page / 2 - 1), number),
                (start.wrapping_sub(page / 2 + 1), number.saturating_sub(1)),
            ] {
                assert_eq!(pages.number_of(at), Some(expected), "{number}");
            }
        }
        let end = pages.page(0).wrapping_add(2 * SLOTS * page);
        assert_eq!(pages.number_of(end), None);
        assert_eq!(pages.number_of(pages.page(0).wrapping_sub(page + 1)), None);
        assert_eq!(GuardPages::new().number_of(end), None);
    }
}
