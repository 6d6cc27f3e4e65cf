//! [`Blocks`]: what is known of each block, by its address, and which of them wait in quarantine.

use core::alloc::Layout;
use core::ptr;

use super::{LEAST_ALIGN, MAX_KEPT_SLACK, Misuse, fill};
use crate::block_table::{BlockTable, MappedValues, NoMemory, Zeroes};
use crate::os::{Native, Os};

/// So many bytes wait in quarantine at most, but for the block that came last.
pub(super) const QUARANTINE_BYTES: usize = 16 << 20;
/// So many blocks wait at most.
pub(super) const QUARANTINE_BLOCKS: usize = 1 << 14;
/// So many blocks that came or went last are looked at again at each allocation: what a program does wrong, it does to
/// these mostly.
const RECENT: usize = 2;
/// So much of each: a look stays short.
const LOOK_BYTES: usize = 256;
/// Addresses for blocks of no bytes, with no memory behind them.
const NOTHING_BYTES: usize = 16 << 20;
/// Of these addresses so many are tried: most blocks are freed by the time the turn is theirs again.
const NOTHING_TRIES: usize = 64;

/// Where a block is. `Used` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum State {
    /// In the program's hands.
    Used,
    /// A thread frees it just now.
    Leaving,
    /// In quarantine.
    Free,
}

/// What is known of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Known {
    /// As many as the program asked for.
    pub(super) bytes: usize,
    /// What the plain heap granted beyond; 0 for a block of no bytes that has no memory.
    slack: u32,
    align_log2: u8,
    pub(super) state: State,
    /// Whether C++'s `new` gave it.
    pub(super) by_new: bool,
}

// SAFETY: all zeros are numbers, the first state, and `false`.
unsafe impl Zeroes for Known {}

impl Known {
    pub(super) const fn new(bytes: usize, align: usize, by_new: bool) -> Self {
        Self {
            bytes,
            slack: 0,
            align_log2: align.trailing_zeros() as u8,
            state: State::Used,
            by_new,
        }
    }

    /// With so many bytes of the plain heap.
    pub(super) fn granted(self, granted: usize) -> Self {
        let slack = granted.saturating_sub(self.bytes);
        Self {
            slack: u32::try_from(slack).unwrap_or(u32::MAX),
            ..self
        }
    }

    pub(super) const fn align(&self) -> usize {
        1 << self.align_log2
    }

    pub(super) const fn slack_bytes(&self) -> usize {
        self.slack as usize
    }

    pub(super) const fn granted_bytes(&self) -> usize {
        self.bytes + self.slack as usize
    }

    /// Whether it has no memory.
    pub(super) const fn is_nothing(&self) -> bool {
        self.slack == 0
    }

    /// Whether it was allocated so.
    pub(super) fn is(&self, layout: Layout) -> bool {
        (layout.size(), layout.align().max(LEAST_ALIGN)) == (self.bytes, self.align())
    }

    /// Whether it may stay where it is with another length.
    pub(super) const fn stays(&self, bytes: usize) -> bool {
        let granted = self.granted_bytes();
        // A quarter of a block is about what sizes are apart.
        let least = granted.saturating_sub(granted / 4 + LEAST_ALIGN);
        !self.is_nothing()
            && bytes > 0
            && bytes < granted
            && bytes >= least
            && granted - bytes <= MAX_KEPT_SLACK
    }
}

/// The address of a block.
#[derive(Clone, Copy)]
struct At(*mut u8);

// SAFETY: whoever touches the block knows whose it is (HARD1..HARD3).
unsafe impl Send for At {}
// SAFETY: null is a pointer.
unsafe impl Zeroes for At {}

/// A block that has left the quarantine and is the caller's alone.
pub(super) struct Leaver {
    pub(super) block: *mut u8,
    /// Its length as granted.
    pub(super) bytes: usize,
    /// Whether no other must leave now.
    pub(super) is_last: bool,
}

/// All blocks of a hardened heap, under one lock.
pub(crate) struct Blocks {
    table: BlockTable<Known>,
    /// A ring of the blocks in quarantine, mapped when the first one comes: `count` of them from `oldest` on.
    waiting: MappedValues<At>,
    oldest: usize,
    count: usize,
    /// Sum of what was granted for them.
    bytes: usize,
    /// What came or went last, oldest at `next_recent`.
    recent: [At; RECENT],
    next_recent: usize,
    /// Addresses of blocks of no bytes, and where the next one is looked for.
    nothing: At,
    next_nothing: usize,
}

impl Blocks {
    pub(crate) const fn new() -> Self {
        Self {
            table: BlockTable::new(),
            waiting: MappedValues::NONE,
            oldest: 0,
            count: 0,
            bytes: 0,
            recent: [At(ptr::null_mut()); RECENT],
            next_recent: 0,
            nothing: At(ptr::null_mut()),
            next_nothing: 0,
        }
    }

    /// Bytes of the blocks in quarantine.
    pub(crate) const fn waiting_bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// What is known of the block that starts there.
    pub(super) fn get(&mut self, block: *mut u8) -> Option<Known> {
        self.table.get(block.addr())
    }

    /// Enters a block.
    ///
    /// # Errors
    /// If there is no memory for the entry.
    pub(super) fn enter(&mut self, block: *mut u8, known: Known) -> Result<(), NoMemory> {
        self.table.insert(block.addr(), known)?;
        self.remember(block);
        Ok(())
    }

    /// A block of no bytes where nothing can be read or written; `None` if there is no address for it.
    pub(super) fn alloc_nothing(&mut self, known: Known) -> Option<*mut u8> {
        if self.nothing.0.is_null() {
            self.nothing = At(Native.reserve(NOTHING_BYTES, Native.page_bytes())?.as_ptr());
        }
        for _ in 0..NOTHING_TRIES {
            let block = self.nothing.0.wrapping_add(self.next_nothing);
            self.next_nothing = (self.next_nothing + LEAST_ALIGN) % NOTHING_BYTES;
            if self.get(block).is_none() {
                self.table.insert(block.addr(), known).ok()?;
                return Some(block);
            }
        }
        None
    }

    /// Makes a block of the program the caller's (HARD3). One without memory is not known from then on.
    ///
    /// # Errors
    /// If it is none.
    pub(super) fn begin_free(&mut self, block: *mut u8) -> Result<Known, Misuse> {
        let entry = self.table.get_mut(block.addr()).ok_or(Misuse::NoBlock)?;
        if entry.state != State::Used {
            return Err(Misuse::FreedTwice);
        }
        entry.state = State::Leaving;
        let known = *entry;
        if known.is_nothing() {
            self.forget(block);
        }
        Ok(known)
    }

    /// Forgets a block that the caller has alone; what was known of it.
    pub(super) fn forget(&mut self, block: *mut u8) -> Option<Known> {
        self.table.remove(block.addr())
    }

    /// Puts a block into quarantine that the caller has alone, and gives one that leaves in its place.
    pub(super) fn quarantine(&mut self, block: *mut u8) -> Option<Leaver> {
        if self.waiting.values().is_empty() {
            match MappedValues::map(QUARANTINE_BLOCKS) {
                Some(waiting) => self.waiting = waiting,
                None => {
                    let bytes = self.forget(block)?.granted_bytes();
                    return Some(Leaver {
                        block,
                        bytes,
                        is_last: true,
                    });
                }
            }
        }
        let known = self.table.get_mut(block.addr())?;
        known.state = State::Free;
        self.bytes += known.granted_bytes();
        let place = (self.oldest + self.count) % QUARANTINE_BLOCKS;
        // There is room: `excess` has left some.
        if let Some(slot) = self.waiting.values().get_mut(place) {
            *slot = At(block);
        }
        self.count += 1;
        self.remember(block);
        self.excess()
    }

    fn is_over(&self) -> bool {
        self.bytes > QUARANTINE_BYTES || self.count >= QUARANTINE_BLOCKS
    }

    /// Takes the block out that is oldest in quarantine, while too many wait there.
    pub(super) fn excess(&mut self) -> Option<Leaver> {
        if !self.is_over() {
            return None;
        }
        let At(block) = *self.waiting.values().get(self.oldest)?;
        self.oldest = (self.oldest + 1) % QUARANTINE_BLOCKS;
        self.count -= 1;
        let bytes = self.forget(block)?.granted_bytes();
        self.bytes -= bytes;
        let is_last = !self.is_over();
        Some(Leaver {
            block,
            bytes,
            is_last,
        })
    }

    /// Gives a block of the program another length where it is.
    ///
    /// # Errors
    /// If it is none, or was written past its end.
    pub(super) fn set_bytes(&mut self, block: *mut u8, bytes: usize) -> Result<(), Misuse> {
        let known = self.table.get_mut(block.addr());
        let Some(known) = known.filter(|known| known.state == State::Used) else {
            return Err(Misuse::ResizedAfterFree);
        };
        // SAFETY: HARD1: it does not leave while we hold the lock.
        if !unsafe { fill::is_slack_whole(block, known, usize::MAX) } {
            return Err(Misuse::WrittenPastEnd);
        }
        let added = bytes.saturating_sub(known.bytes);
        // SAFETY: inside the block, and slack until now.
        unsafe { block.wrapping_add(known.bytes).write_bytes(0, added) };
        let granted = known.granted_bytes();
        known.bytes = bytes;
        *known = known.granted(granted);
        // SAFETY: HARD1; what lies behind the new end has been given up.
        unsafe { fill::fill_slack(block, known) };
        Ok(())
    }

    fn remember(&mut self, block: *mut u8) {
        if let Some(slot) = self.recent.get_mut(self.next_recent) {
            *slot = At(block);
        }
        self.next_recent = (self.next_recent + 1) % RECENT;
    }

    /// Looks at what came or went last: a block that was written where it must not be.
    pub(super) fn look_back(&mut self) -> Option<(Misuse, *mut u8)> {
        self.recent.into_iter().find_map(|At(block)| {
            let known = self.get(block)?;
            let (is_whole, misuse) = match known.state {
                State::Leaving => return None,
                State::Used => (
                    // SAFETY: HARD1: it does not leave while we hold the lock.
                    unsafe { fill::is_slack_whole(block, &known, LOOK_BYTES) },
                    Misuse::WrittenPastEnd,
                ),
                State::Free => (
                    // SAFETY: HARD2: it does not leave while we hold the lock.
                    unsafe { fill::is_zero(block, known.granted_bytes().min(LOOK_BYTES)) },
                    Misuse::WrittenAfterFree,
                ),
            };
            (!is_whole).then_some((misuse, block))
        })
    }
}
