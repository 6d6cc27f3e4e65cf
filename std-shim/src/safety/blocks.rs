//! [`Blocks`]: the table of all blocks of a hardened heap by address, and their quarantine.

use core::alloc::Layout;
use core::ptr;

use super::history::{Here, History, Leak};
use super::{LEAST_ALIGN, MAX_KEPT_SLACK, Misuse, fill};
use crate::block_table::{BlockTable, MappedValues, NoMemory, Zeroes};
use crate::os::stack::LoadedFiles;
use crate::os::{Native, Os};

/// Maximum bytes in quarantine, not counting the block that came last.
pub(super) const QUARANTINE_BYTES: usize = 16 << 20;
/// Maximum number of blocks in quarantine.
pub(super) const QUARANTINE_BLOCKS: usize = 1 << 14;
/// Number of most recently allocated or freed blocks that are checked again at each allocation,
/// because misuse mostly concerns these.
const RECENT: usize = 2;
/// Maximum bytes checked of each of these blocks, so that a check stays short.
const LOOK_BYTES: usize = 256;
/// Maximum length of a front in bytes; blocks with a coarser alignment have none.
const MAX_FRONT: usize = 4096;
/// Bytes of addresses reserved, without memory, for blocks of no bytes.
const NOTHING_BYTES: usize = 16 << 20;
/// Maximum number of addresses tried for a block of no bytes: most blocks are freed before their
/// address is tried again.
const NOTHING_TRIES: usize = 64;

/// The state of a block. `Used` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum UseState {
    /// In use by the program.
    Used,
    /// Being freed by a thread.
    Leaving,
    /// In quarantine.
    Free,
}

impl UseState {
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Used => "in use",
            Self::Leaving => "being freed",
            Self::Free => "freed",
        }
    }
}

/// The entry of a block in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Known {
    /// The length that the program requested.
    pub(super) bytes: usize,
    /// Bytes that the plain heap granted beyond the request; 0 for a block of no bytes, which has
    /// no memory.
    slack: u32,
    align_log2: u8,
    pub(super) state: UseState,
    /// Whether C++'s `new` allocated it.
    pub(super) by_new: bool,
    /// Whether a checking heap allocated it, with memory.
    is_checked: bool,
}

// SAFETY: all zeros are numbers, the first state, and `false`.
unsafe impl Zeroes for Known {}

impl Known {
    pub(super) const fn new(bytes: usize, align: usize, by_new: bool) -> Self {
        Self {
            bytes,
            slack: 0,
            align_log2: align.trailing_zeros() as u8,
            state: UseState::Used,
            by_new,
            is_checked: false,
        }
    }

    /// Returns the entry as that of a block that has a front, and that is filled when it is freed.
    pub(super) const fn checked(self) -> Self {
        Self {
            is_checked: true,
            ..self
        }
    }

    pub(super) const fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Returns the length of the front, which is the alignment, so that front and block are both
    /// aligned.
    pub(super) const fn front_bytes(&self) -> usize {
        match self.is_checked && self.align() <= MAX_FRONT {
            true => self.align(),
            false => 0,
        }
    }

    /// Returns the entry as that of a block in quarantine.
    pub(super) const fn free(self) -> Self {
        Self {
            state: UseState::Free,
            ..self
        }
    }

    /// Returns the length of the plain heap's block.
    pub(super) const fn whole_bytes(&self) -> usize {
        self.front_bytes() + self.granted_bytes()
    }

    /// Returns the start of the plain heap's block.
    pub(super) const fn start(&self, block: *mut u8) -> *mut u8 {
        block.wrapping_sub(self.front_bytes())
    }

    /// Returns the entry with `granted` bytes of the plain heap, counted from the block's address.
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

    /// Returns whether the block has no memory.
    pub(super) const fn is_nothing(&self) -> bool {
        self.slack == 0
    }

    /// Returns whether the block was allocated with this layout.
    pub(super) fn is(&self, layout: Layout) -> bool {
        (layout.size(), layout.align().max(LEAST_ALIGN)) == (self.bytes, self.align())
    }

    /// Returns whether the block can be resized to `bytes` in place.
    pub(super) const fn stays(&self, bytes: usize) -> bool {
        let granted = self.granted_bytes();
        // A quarter of a block is about the distance between size classes.
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
struct BlockAddress(*mut u8);

// SAFETY: a thread touches only blocks that it owns by their state (HARD1..HARD3).
unsafe impl Send for BlockAddress {}
// SAFETY: null is a pointer.
unsafe impl Zeroes for BlockAddress {}

/// A block that has left the quarantine and belongs to the caller alone.
pub(super) struct Leaver {
    pub(super) block: *mut u8,
    pub(super) known: Known,
    /// The stacks that allocated and freed it.
    pub(super) history: [Option<Here>; 2],
    /// Whether the quarantine is within its limits again.
    pub(super) is_last: bool,
}

/// The block at an address or around it.
pub(super) struct Facts {
    pub(super) block: *mut u8,
    pub(super) known: Known,
    /// The stacks that allocated and freed the block.
    pub(super) history: [Option<Here>; 2],
}

/// A misuse by a write, and the first byte written.
pub(super) struct BadWrite {
    pub(super) misuse: Misuse,
    pub(super) block: *mut u8,
    pub(super) byte: *mut u8,
}

/// All blocks of a hardened heap, under one lock.
pub(crate) struct Blocks {
    table: BlockTable<Known>,
    history: History,
    /// A ring of the blocks in quarantine, mapped for the first of them: `count` blocks, beginning
    /// at `oldest`.
    waiting: MappedValues<BlockAddress>,
    oldest: usize,
    count: usize,
    /// Bytes of the blocks in quarantine.
    bytes: usize,
    /// The blocks that were allocated or freed last, with the oldest at `next_recent`.
    recent: [BlockAddress; RECENT],
    next_recent: usize,
    /// Addresses of blocks of no bytes, and the offset where the search for the next one begins.
    nothing: BlockAddress,
    next_nothing: usize,
}

impl Blocks {
    pub(crate) const fn new() -> Self {
        Self {
            table: BlockTable::new(),
            history: History::new(),
            waiting: MappedValues::NONE,
            oldest: 0,
            count: 0,
            bytes: 0,
            recent: [BlockAddress(ptr::null_mut()); RECENT],
            next_recent: 0,
            nothing: BlockAddress(ptr::null_mut()),
            next_nothing: 0,
        }
    }

    /// Returns the bytes of the blocks in quarantine.
    pub(crate) const fn waiting_bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Returns the entry of the block that starts there.
    pub(super) fn get(&mut self, block: *mut u8) -> Option<Known> {
        self.table.get(block.addr())
    }

    /// Enters a block. Returns the entry of a block that was already there, which only misuse can
    /// cause.
    ///
    /// # Errors
    /// If there is no memory for the entry.
    pub(super) fn enter(
        &mut self,
        block: *mut u8,
        known: Known,
        here: Option<&Here>,
    ) -> Result<Option<Known>, NoMemory> {
        let before = self.table.insert(block.addr(), known)?;
        if let Some(here) = here {
            self.history.allocated(block, here);
        }
        self.remember(block);
        Ok(before)
    }

    /// Allocates an inaccessible block of no bytes. Returns `None` if there is no address for it.
    pub(super) fn alloc_nothing(&mut self, known: Known, here: Option<&Here>) -> Option<*mut u8> {
        if self.nothing.0.is_null() {
            self.nothing =
                BlockAddress(Native.reserve(NOTHING_BYTES, Native.page_bytes())?.as_ptr());
        }
        for _ in 0..NOTHING_TRIES {
            let block = self.nothing.0.wrapping_add(self.next_nothing);
            self.next_nothing = (self.next_nothing + LEAST_ALIGN) % NOTHING_BYTES;
            if self.get(block).is_none() {
                self.table.insert(block.addr(), known).ok()?;
                if let Some(here) = here {
                    self.history.allocated(block, here);
                }
                return Some(block);
            }
        }
        None
    }

    /// Makes a used block the caller's (HARD3). Removes a block without memory from the table.
    ///
    /// # Errors
    /// If no used block starts there.
    pub(super) fn begin_free(
        &mut self,
        block: *mut u8,
        here: Option<&Here>,
    ) -> Result<Known, Misuse> {
        let entry = self.table.get_mut(block.addr()).ok_or(Misuse::NoBlock)?;
        if entry.state != UseState::Used {
            return Err(Misuse::FreedTwice);
        }
        entry.state = UseState::Leaving;
        let known = *entry;
        if let Some(here) = here {
            self.history.freed(block, here);
        }
        if known.is_nothing() {
            self.forget(block);
        }
        Ok(known)
    }

    /// Removes a block that the caller owns from the table, and returns it.
    pub(super) fn forget(&mut self, block: *mut u8) -> Option<Known> {
        self.history.forget(block);
        self.table.remove(block.addr())
    }

    /// Removes a block that has left the quarantine from the table.
    fn leave(&mut self, block: *mut u8, is_last: impl FnOnce(&Self) -> bool) -> Option<Leaver> {
        let history = self.history.of(block);
        let known = self.forget(block)?;
        Some(Leaver {
            block,
            known,
            history,
            is_last: is_last(self),
        })
    }

    /// Puts a block that the caller owns and has filled into quarantine. Returns a block that
    /// leaves in its place.
    pub(super) fn quarantine(&mut self, block: *mut u8) -> Option<Leaver> {
        let known = self.table.get_mut(block.addr())?;
        known.state = UseState::Free;
        let bytes = known.whole_bytes();
        if self.waiting.values().is_empty() {
            match MappedValues::map(QUARANTINE_BLOCKS) {
                Some(waiting) => self.waiting = waiting,
                None => return self.leave(block, |_| true),
            }
        }
        self.bytes += bytes;
        let place = (self.oldest + self.count) % QUARANTINE_BLOCKS;
        // There is room: an excess block was removed before.
        if let Some(slot) = self.waiting.values().get_mut(place) {
            *slot = BlockAddress(block);
        }
        self.count += 1;
        self.remember(block);
        self.excess()
    }

    fn is_over(&self) -> bool {
        self.bytes > QUARANTINE_BYTES || self.count >= QUARANTINE_BLOCKS
    }

    /// Removes the oldest block from the quarantine, if the quarantine exceeds its limits.
    pub(super) fn excess(&mut self) -> Option<Leaver> {
        match self.is_over() {
            true => self.take_oldest(),
            false => None,
        }
    }

    /// Removes the oldest block from the quarantine.
    pub(super) fn take_oldest(&mut self) -> Option<Leaver> {
        if self.count == 0 {
            return None;
        }
        let BlockAddress(block) = *self.waiting.values().get(self.oldest)?;
        self.oldest = (self.oldest + 1) % QUARANTINE_BLOCKS;
        self.count -= 1;
        self.bytes -= self.get(block)?.whole_bytes();
        self.leave(block, |blocks| !blocks.is_over())
    }

    /// Sets the length of a used block in place.
    ///
    /// # Errors
    /// If no used block starts there, or if there was a write outside of it, which is repaired.
    pub(super) fn set_bytes(&mut self, block: *mut u8, bytes: usize) -> Result<(), BadWrite> {
        let known = self.table.get_mut(block.addr());
        let Some(known) = known.filter(|known| known.state == UseState::Used) else {
            return Err(BadWrite {
                misuse: Misuse::ResizedAfterFree,
                block,
                byte: ptr::null_mut(),
            });
        };
        // SAFETY: HARD1: the block does not leave while we hold the lock.
        if let Some(written) = unsafe { mend(block, known, usize::MAX) } {
            return Err(written);
        }
        let added = bytes.saturating_sub(known.bytes);
        // SAFETY: inside the block, and slack until now.
        unsafe { block.wrapping_add(known.bytes).write_bytes(0, added) };
        let granted = known.granted_bytes();
        known.bytes = bytes;
        *known = known.granted(granted);
        // SAFETY: HARD1; memory behind the new end no longer belongs to the program.
        unsafe { fill::fill(block, known) };
        Ok(())
    }

    fn remember(&mut self, block: *mut u8) {
        if let Some(slot) = self.recent.get_mut(self.next_recent) {
            *slot = BlockAddress(block);
        }
        self.next_recent = (self.next_recent + 1) % RECENT;
    }

    /// Checks the blocks that were allocated or freed last. Returns a misuse by a write, which is
    /// repaired.
    pub(super) fn look_back(&mut self) -> Option<BadWrite> {
        self.recent.into_iter().find_map(|BlockAddress(block)| {
            let known = self.get(block)?;
            match known.state {
                UseState::Leaving => None,
                // SAFETY: HARD1, HARD2: the block does not leave while we hold the lock.
                UseState::Used | UseState::Free => unsafe { mend(block, &known, LOOK_BYTES) },
            }
        })
    }

    /// Finds the block at an address, or around it. O(1) if the block starts there, otherwise
    /// O(blocks).
    pub(super) fn facts(&mut self, address: *mut u8) -> Option<Facts> {
        let at = address.addr();
        let is_inside = |(block, known): &(usize, Known)| {
            (block - known.front_bytes()..block + known.granted_bytes()).contains(&at)
        };
        let (block, known) = match self.get(address) {
            Some(known) => (at, known),
            None => self.table.entries().find(is_inside)?,
        };
        let block = address.with_addr(block);
        Some(Facts {
            block,
            known,
            history: self.history.of(block),
        })
    }

    /// Counts the used blocks by the stack that allocated them. Returns the number of such stacks.
    pub(super) fn count_by_place(&mut self) -> usize {
        self.history.count(self.table.entries())
    }

    /// Removes the next stack with counted bytes, and returns it.
    pub(super) fn take_next(&mut self, files: &LoadedFiles) -> Option<Leak> {
        self.history.take_next(files)
    }
}

/// Checks the first `most` bytes of each filled part of a block, and fills it again after a write.
///
/// # Safety
/// The block is as long as its entry says, and does not leave during the call.
pub(super) unsafe fn mend(block: *mut u8, known: &Known, most: usize) -> Option<BadWrite> {
    // SAFETY: the block is as long as its entry says.
    let byte = unsafe { fill::first_written(block, known, most) }?;
    // SAFETY: the block does not leave during the call, and these parts of it do not belong to the
    // program.
    unsafe { fill::fill(block, known) };
    let misuse = match known.state {
        UseState::Free => Misuse::WrittenAfterFree,
        _ if byte < block => Misuse::WrittenBeforeStart,
        _ => Misuse::WrittenPastEnd,
    };
    Some(BadWrite {
        misuse,
        block,
        byte,
    })
}
