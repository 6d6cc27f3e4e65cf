//! The hardened heap: every block is known by its address, so that a misuse is found and ends the process with a
//! line that says what and where. For [`Larder::hardened`](crate::Larder::hardened).
//!
//! No thread has a cache then (LOCAL1), so each verb takes its slow path, and that leads here. A block is one of the
//! plain heap that is at least a byte longer. It has no header: what is known of it stands in a table.
//!
//! ```text
//!   block            + bytes          + granted
//!    │ the program's   │ slack, filled  │
//! ```
//!
//! # Files
//! `blocks` the blocks that are known, and those in quarantine · `fill` what memory holds that is not the program's
//!
//! # Invariants
//! * HARD1 a block of the program is in the table as `Used`, and its slack has the fill of its address.
//! * HARD2 a block in quarantine is in the table as `Free`, and all of it is zero.
//! * HARD3 the thread that makes a block `Leaving` has it alone, until it puts it into quarantine or takes it out
//!   of the table. It then belongs to the plain heap.
//! * HARD4 the lock of the blocks is held for bookkeeping and while memory of blocks is looked at, and for the system
//!   calls by which the table grows. No other lock is taken under it, and nothing fails there.
//!
//! Programs that fork while another thread frees: in the child a `Leaving` block stays so for ever.

mod blocks;
mod fill;
#[cfg(test)]
mod tests;

use core::alloc::Layout;
use core::ptr;

use larder_core::small::SizeClass;

use crate::by_address::{find, free_plain};
use crate::check::fail_at;
use crate::config::Config;
use crate::process::PROCESS;
use crate::slow::alloc_zeroed_plain;

pub(crate) use blocks::Blocks;
use blocks::{Known, Leaver, State};

/// All blocks lie at multiples of this, as C wants it.
const LEAST_ALIGN: usize = 16;
/// Blocks from here on skip the quarantine: their memory goes back to the system at once.
const LONG_BYTES: usize = 1 << 20;
/// A block that shrinks stays where it is as long as its slack is no longer than this.
const MAX_KEPT_SLACK: usize = 64 << 10;

/// What the program did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Misuse {
    NoBlock,
    FreedTwice,
    OtherLayout,
    WrittenPastEnd,
    WrittenAfterFree,
    ResizedNoBlock,
    ResizedAfterFree,
}

impl Misuse {
    const fn words(self) -> &'static [u8] {
        match self {
            Self::NoBlock => b"larder: freed an address where no block of this heap starts",
            Self::FreedTwice => b"larder: freed a block twice",
            Self::OtherLayout => {
                b"larder: freed a block with another layout than it was allocated with"
            }
            Self::WrittenPastEnd => b"larder: wrote past the end of a block",
            Self::WrittenAfterFree => b"larder: wrote to a block that was freed",
            Self::ResizedNoBlock => {
                b"larder: resized an address where no block of this heap starts"
            }
            Self::ResizedAfterFree => b"larder: resized a block that was freed",
        }
    }

    /// Ends the process.
    fn fail(self, block: *mut u8) -> ! {
        fail_at(self.words(), block)
    }
}

fn with<R>(f: impl FnOnce(&mut Blocks) -> R) -> R {
    PROCESS.hardened.with(f)
}

/// A zeroed block, or null. One of no bytes may not even be read.
pub(crate) fn alloc(bytes: usize, align: usize, config: &Config) -> *mut u8 {
    let known = Known::new(bytes, align.max(LEAST_ALIGN), config.by_new);
    if bytes == 0
        && let Some(block) = with(|blocks| blocks.alloc_nothing(known))
    {
        return block;
    }
    let inner = bytes.checked_add(1);
    let inner = inner.and_then(|bytes| Layout::from_size_align(bytes, known.align()).ok());
    let Some(inner) = inner else {
        return ptr::null_mut();
    };
    let block = alloc_zeroed_plain(inner);
    if block.is_null() {
        return block;
    }
    let granted = match SizeClass::of(inner.size(), inner.align()) {
        Some(class) => class.block_bytes(),
        None => find(block).map_or(inner.size(), |(_, bytes)| bytes),
    };
    let known = known.granted(granted);
    // SAFETY: given to us just now, that long.
    unsafe { fill::fill_slack(block, &known) };
    let (damage, entered) = with(|blocks| (blocks.look_back(), blocks.enter(block, known)));
    if let Some((misuse, block)) = damage {
        misuse.fail(block);
    }
    if entered.is_err() {
        // SAFETY: ours, and known to nobody.
        unsafe { free_plain(block) };
        return ptr::null_mut();
    }
    block
}

/// Frees a block, which must be of that layout if one is given.
///
/// # Safety
/// `block` is given up by the caller. What it is, is looked at.
pub(crate) unsafe fn free(block: *mut u8, given: Option<Layout>) {
    let known = match with(|blocks| blocks.begin_free(block)) {
        Ok(known) => known,
        // SAFETY: the caller's promise.
        Err(Misuse::NoBlock) if is_early(block) => return unsafe { free_plain(block) },
        Err(misuse) => misuse.fail(block),
    };
    if given.is_some_and(|layout| !known.is(layout)) {
        Misuse::OtherLayout.fail(block);
    }
    if known.is_nothing() {
        return;
    }
    // SAFETY: HARD3: a block that is ours, as long as it is known to be.
    if !unsafe { fill::is_slack_whole(block, &known, usize::MAX) } {
        Misuse::WrittenPastEnd.fail(block);
    }
    let granted = known.granted_bytes();
    if granted >= LONG_BYTES {
        // SAFETY: HARD3.
        unsafe { PROCESS.clear_large(block, granted) };
        with(|blocks| blocks.forget(block));
        // SAFETY: HARD3.
        return unsafe { free_plain(block) };
    }
    // SAFETY: HARD3.
    unsafe { block.write_bytes(0, granted) };
    let mut leaves = with(|blocks| blocks.quarantine(block));
    while let Some(Leaver {
        block,
        bytes,
        is_last,
    }) = leaves
    {
        // SAFETY: HARD3: taken out of the table just now.
        if !unsafe { fill::is_zero(block, bytes) } {
            Misuse::WrittenAfterFree.fail(block);
        }
        // SAFETY: HARD3.
        unsafe { free_plain(block) };
        leaves = match is_last {
            true => None,
            false => with(Blocks::excess),
        };
    }
}

/// Whether a block that is not known was allocated before the process could know its configuration.
fn is_early(block: *mut u8) -> bool {
    PROCESS.tuning.had_early_blocks() && find(block).is_some()
}

/// The block with another length and the contents that fit, here or elsewhere; null if there is no memory. It
/// must be of that layout if one is given.
///
/// # Safety
/// `block` is given up by the caller if the answer is not null. What it is, is looked at.
pub(crate) unsafe fn resize(
    block: *mut u8,
    given: Option<Layout>,
    bytes: usize,
    config: &Config,
) -> *mut u8 {
    let known = match with(|blocks| blocks.get(block)) {
        Some(known) if known.state == State::Used => {
            if given.is_some_and(|layout| !known.is(layout)) {
                Misuse::OtherLayout.fail(block);
            }
            known
        }
        Some(_) => Misuse::ResizedAfterFree.fail(block),
        None if is_early(block) => Known::new(find(block).map_or(0, |(_, all)| all), 16, false),
        None => Misuse::ResizedNoBlock.fail(block),
    };
    if known.stays(bytes) {
        return match with(|blocks| blocks.set_bytes(block, bytes)) {
            Ok(()) => block,
            Err(misuse) => misuse.fail(block),
        };
    }
    let moved = alloc(bytes, known.align(), config);
    if !moved.is_null() {
        // SAFETY: two blocks, each that long.
        unsafe { ptr::copy_nonoverlapping(block, moved, known.bytes.min(bytes)) };
        // SAFETY: the caller's promise.
        unsafe { free(block, given) };
    }
    moved
}

/// Ends the process if a block of the program has another length or alignment. Asked for a block of C++'s `new`,
/// says nothing of those that come from elsewhere: a program may have a `new` of its own.
#[cold]
pub(crate) fn check_layout(block: *mut u8, bytes: usize, align: usize, config: &Config) {
    let is_wrong = |known: Known| {
        let is_asked_for = !config.by_new || known.by_new;
        // One of nothing may have been asked for by a caller that makes it one of a byte.
        let is_length = known.bytes.max(1) == bytes.max(1);
        is_asked_for && !(is_length && known.align() == align.max(LEAST_ALIGN))
    };
    let known = with(|blocks| blocks.get(block));
    if known.is_some_and(|known| known.state == State::Used && is_wrong(known)) {
        Misuse::OtherLayout.fail(block);
    }
}

/// How many bytes the program asked for; `None` if it has no block there.
pub(crate) fn usable_size(block: *mut u8) -> Option<usize> {
    let known = with(|blocks| blocks.get(block))?;
    (known.state == State::Used).then_some(known.bytes)
}
