//! The hardened heap: every block is known by its address, so that a misuse is found and said. For
//! [`Larder::hardened`](crate::Larder::hardened), and for [`Larder::checking`](crate::Larder::checking), which is the same
//! with a front before each block, free memory that is filled, and the stacks of allocations and frees.
//!
//! No thread has a cache then (LOCAL1), so each verb takes its slow path, and that leads here. A block is one of the
//! plain heap that is at least a byte longer. It has no header: what is known of it stands in a table.
//!
//! ```text
//!   block - front    block            + bytes          + granted
//!    │ front, filled  │ the program's   │ slack, filled  │
//! ```
//!
//! Free blocks of the plain heap are linked through themselves, and whoever writes there can bend the list. The links are
//! masked with a secret, therefore ([`link_changed`]). What a list gives is looked at, too, before the program has it: a
//! block that starts there, is long enough and not in use.
//!
//! # Files
//! `blocks` the blocks that are known, and those in quarantine · `fill` what memory holds that is not the program's ·
//! `history` who allocated and freed each block · `report` what is said · `guarded` some blocks of a heap that is not
//! hardened, with guard pages
//!
//! # Invariants
//! * HARD1 a block of the program is in the table as `Used`, and its front and slack have the fill of its address.
//! * HARD2 a block in quarantine is in the table as `Free`, and all of it is zero; where the
//!   heap is checking, all of it has the fill of its address.
//! * HARD3 the thread that makes a block `Leaving` has it alone, until it puts it into quarantine or takes it out
//!   of the table. It then belongs to the plain heap.
//! * HARD4 the lock of the blocks is held for bookkeeping and while memory of blocks is looked at, and for the system
//!   calls by which the tables grow. No other lock is taken under it, and nothing is said there.
//!
//! Programs that fork while another thread frees: in the child a `Leaving` block stays so for ever.

mod blocks;
mod fill;
pub(crate) mod guarded;
mod history;
pub(crate) mod report;
#[cfg(test)]
mod tests;

use core::alloc::Layout;
use core::ptr;

use crate::cold_path::{alloc_zeroed_plain, no_memory, reclaim};
use crate::config::Config;
use crate::free_without_layout::{find, free_plain};
use crate::os::abort;
use crate::process::PROCESS;

pub(crate) use blocks::Blocks;
use blocks::{Facts, Known, Leaver, State, Written, mend};
use history::Here;
use report::{Found, end_with, report};

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
    WrittenBeforeStart,
    WrittenAfterFree,
    ResizedNoBlock,
    ResizedAfterFree,
    /// The plain heap gives a block that it has not.
    BentList,
    TouchedAfterFree,
    TouchedPastEnd,
    TouchedBeforeStart,
}

impl Misuse {
    const fn words(self) -> &'static str {
        match self {
            Self::NoBlock => "larder: freed an address where no block of this heap starts",
            Self::FreedTwice => "larder: freed a block twice",
            Self::OtherLayout => {
                "larder: freed a block with another layout than it was allocated with"
            }
            Self::WrittenPastEnd => "larder: wrote past the end of a block",
            Self::WrittenBeforeStart => "larder: wrote before the start of a block",
            Self::WrittenAfterFree => "larder: wrote to a block that was freed",
            Self::ResizedNoBlock => "larder: resized an address where no block of this heap starts",
            Self::ResizedAfterFree => "larder: resized a block that was freed",
            Self::BentList => "larder: wrote to free memory, so that it would be given again",
            Self::TouchedAfterFree => "larder: read or wrote a block that was freed",
            Self::TouchedPastEnd => "larder: read or wrote past the end of a block",
            Self::TouchedBeforeStart => "larder: read or wrote before the start of a block",
        }
    }
}

/// Ends the process because the link in a free block is not one that the heap wrote. Locks of the heap are held, so nobody
/// but standard error is told.
#[cold]
pub(crate) fn link_changed(block: *mut u8) -> ! {
    end_with(Misuse::WrittenAfterFree, block)
}

fn with<R>(f: impl FnOnce(&mut Blocks) -> R) -> R {
    PROCESS.hardened.with(f)
}

/// Says what the program did with the block at an address, or around it. Comes back if it is to go on.
#[cold]
fn say(misuse: Misuse, address: *mut u8, here: Option<&Here>) {
    let facts = here.and_then(|_| with(|blocks| blocks.facts(address)));
    let byte = None;
    report(&Found {
        misuse,
        address,
        byte,
        facts,
        here,
    });
}

/// Says where a block was written. Comes back if the program is to go on.
#[cold]
fn say_written(written: &Written, facts: Option<Facts>, here: Option<&Here>) {
    let facts = facts.or_else(|| here.and_then(|_| with(|blocks| blocks.facts(written.block))));
    report(&Found {
        misuse: written.misuse,
        address: written.block,
        byte: Some(written.byte),
        facts,
        here,
    });
}

/// A zeroed block, or null. One of no bytes may not even be read.
#[inline(never)]
pub(crate) fn alloc(bytes: usize, align: usize, config: &Config) -> *mut u8 {
    let here = &Here::in_function_with(&bytes);
    alloc_from(bytes, align, config, here.as_ref())
}

/// A block that C asks for by its length, zeroed; null with `errno` if there is no memory.
#[inline(never)]
pub(crate) fn malloc(bytes: usize, config: &Config) -> *mut u8 {
    let here = &Here::in_function_with(&bytes);
    match alloc_from(bytes, LEAST_ALIGN, config, here.as_ref()) {
        block if block.is_null() => no_memory(),
        block => block,
    }
}

fn alloc_from(bytes: usize, align: usize, config: &Config, here: Option<&Here>) -> *mut u8 {
    match try_alloc(bytes, align, config, here) {
        block if block.is_null() && PROCESS.could_hold(bytes) => {
            make_room(bytes, here);
            try_alloc(bytes, align, config, here)
        }
        block => block,
    }
}

fn try_alloc(bytes: usize, align: usize, config: &Config, here: Option<&Here>) -> *mut u8 {
    let known = Known::new(bytes, align.max(LEAST_ALIGN), config.by_new);
    if bytes == 0
        && let Some(block) = with(|blocks| blocks.alloc_nothing(known, here))
    {
        return block;
    }
    let known = match here {
        Some(_) => known.checked(),
        None => known,
    };
    let inner = bytes.checked_add(known.front_bytes() + 1);
    let inner = inner.and_then(|bytes| Layout::from_size_align(bytes, known.align()).ok());
    let Some(inner) = inner else {
        return ptr::null_mut();
    };
    let start = alloc_zeroed_plain(inner);
    if start.is_null() {
        return start;
    }
    let granted = find(start).map_or(0, |(_, granted)| granted);
    if granted < inner.size() {
        say(Misuse::BentList, start, here);
        abort();
    }
    let block = start.wrapping_add(known.front_bytes());
    let known = known.granted(granted - known.front_bytes());
    // SAFETY: given to us just now, that long.
    unsafe { fill::fill(block, &known) };
    let (written, entered) = with(|blocks| (blocks.look_back(), blocks.enter(block, known, here)));
    if let Some(written) = written {
        say_written(&written, None, here);
    }
    match entered {
        Ok(None) => block,
        Ok(Some(_)) => {
            say(Misuse::BentList, block, here);
            abort()
        }
        Err(_) => {
            // SAFETY: ours, and known to nobody.
            unsafe { free_plain(start) };
            ptr::null_mut()
        }
    }
}

/// Frees a block, which must be of that layout if one is given.
///
/// # Safety
/// `block` is given up by the caller. What it is, is looked at.
#[inline(never)]
pub(crate) unsafe fn free(block: *mut u8, given: Option<Layout>) {
    let here = &Here::in_function_with(&block);
    // SAFETY: the caller's promise.
    unsafe { free_from(block, given, here.as_ref()) };
}

/// # Safety
/// `block` is given up by the caller. What it is, is looked at.
unsafe fn free_from(block: *mut u8, given: Option<Layout>, here: Option<&Here>) {
    let known = match with(|blocks| blocks.begin_free(block, here)) {
        Ok(known) => known,
        // SAFETY: the caller's promise.
        Err(Misuse::NoBlock) if is_early(block) => return unsafe { free_plain(block) },
        Err(misuse) => return say(misuse, block, here),
    };
    if given.is_some_and(|layout| !known.is(layout)) {
        say(Misuse::OtherLayout, block, here);
    }
    if known.is_nothing() {
        return;
    }
    // SAFETY: HARD3: a block that is ours, as long as it is known to be.
    if let Some(written) = unsafe { mend(block, &known, usize::MAX) } {
        say_written(&written, None, here);
    }
    let (start, whole) = (known.start(block), known.whole_bytes());
    if whole >= LONG_BYTES {
        // SAFETY: HARD3.
        unsafe { PROCESS.clear_large(start, whole) };
        with(|blocks| blocks.forget(block));
        // SAFETY: HARD3.
        return unsafe { free_plain(start) };
    }
    // SAFETY: HARD3.
    unsafe { fill::fill(block, &known.free()) };
    let mut leaves = with(|blocks| blocks.quarantine(block));
    while let Some(leaver) = leaves {
        let is_last = leaver.is_last;
        // SAFETY: HARD3: taken out of the table just now.
        unsafe { let_go(leaver, here) };
        leaves = match is_last {
            true => None,
            false => with(Blocks::excess),
        };
    }
}

/// Looks a last time at a block that has left the quarantine, and frees it.
///
/// # Safety
/// The caller has the block alone (HARD3).
unsafe fn let_go(leaver: Leaver, here: Option<&Here>) {
    let Leaver {
        block,
        known,
        history,
        ..
    } = leaver;
    // SAFETY: the caller's promise.
    if let Some(written) = unsafe { mend(block, &known, usize::MAX) } {
        let facts = Facts {
            block,
            known,
            history,
        };
        say_written(&written, Some(facts), here);
    }
    // SAFETY: the caller's promise.
    unsafe { free_plain(known.start(block)) };
}

/// Empties the quarantine and returns idle memory to the system, before a request of `bytes` bytes is refused: the
/// tables have memory of their own, which the system may refuse because of what the plain heap keeps.
#[cold]
fn make_room(bytes: usize, here: Option<&Here>) {
    while let Some(leaver) = with(Blocks::take_oldest) {
        // SAFETY: HARD3: taken out of the table just now.
        unsafe { let_go(leaver, here) };
    }
    reclaim(bytes);
}

/// Whether a block that is not known was allocated before the process could know its configuration.
fn is_early(block: *mut u8) -> bool {
    PROCESS.tuning.had_early_blocks() && find(block).is_some()
}

/// The block with another length and the contents that fit, here or elsewhere; null with `errno` if there is no memory,
/// or no block. It must be of that layout if one is given.
///
/// # Safety
/// `block` is given up by the caller if the answer is not null. What it is, is looked at.
#[inline(never)]
pub(crate) unsafe fn resize(
    block: *mut u8,
    given: Option<Layout>,
    bytes: usize,
    config: &Config,
) -> *mut u8 {
    let here = &Here::in_function_with(&block);
    // SAFETY: the caller's promise.
    match unsafe { resize_from(block, given, bytes, config, here.as_ref()) } {
        moved if moved.is_null() => no_memory(),
        moved => moved,
    }
}

/// # Safety
/// `block` is given up by the caller if the answer is not null. What it is, is looked at.
unsafe fn resize_from(
    block: *mut u8,
    given: Option<Layout>,
    bytes: usize,
    config: &Config,
    here: Option<&Here>,
) -> *mut u8 {
    let refuse = |misuse| {
        say(misuse, block, here);
        ptr::null_mut()
    };
    let known = match with(|blocks| blocks.get(block)) {
        Some(known) if known.state == State::Used => known,
        Some(_) => return refuse(Misuse::ResizedAfterFree),
        None if is_early(block) => Known::new(find(block).map_or(0, |(_, all)| all), 16, false),
        None => return refuse(Misuse::ResizedNoBlock),
    };
    if given.is_some_and(|layout| !known.is(layout)) {
        say(Misuse::OtherLayout, block, here);
    }
    while known.stays(bytes) {
        match with(|blocks| blocks.set_bytes(block, bytes)) {
            Ok(()) => return block,
            Err(written) if written.byte.is_null() => return refuse(written.misuse),
            // It is mended, and its length can be changed.
            Err(written) => say_written(&written, None, here),
        }
    }
    let moved = alloc_from(bytes, known.align(), config, here);
    if !moved.is_null() {
        // SAFETY: two blocks, each that long.
        unsafe { ptr::copy_nonoverlapping(block, moved, known.bytes.min(bytes)) };
        // SAFETY: the caller's promise.
        unsafe { free_from(block, None, here) };
    }
    moved
}

/// Looks whether a block of the program has another length or alignment. Asked for a block of C++'s `new`,
/// says nothing of those that come from elsewhere: a program may have a `new` of its own.
#[cold]
#[inline(never)]
pub(crate) fn check_layout(block: *mut u8, bytes: usize, align: usize, config: &Config) {
    let is_wrong = |known: Known| {
        let is_asked_for = !config.by_new || known.by_new;
        // One of nothing may have been asked for by a caller that makes it one of a byte.
        let is_length = known.bytes.max(1) == bytes.max(1);
        is_asked_for && !(is_length && known.align() == align.max(LEAST_ALIGN))
    };
    let known = with(|blocks| blocks.get(block));
    if known.is_some_and(|known| known.state == State::Used && is_wrong(known)) {
        let here = Here::in_function_with(&bytes);
        say(Misuse::OtherLayout, block, here.as_ref());
    }
}

/// How many bytes the program asked for; `None` if it has no block there.
pub(crate) fn usable_size(block: *mut u8) -> Option<usize> {
    let known = with(|blocks| blocks.get(block))?;
    (known.state == State::Used).then_some(known.bytes)
}
