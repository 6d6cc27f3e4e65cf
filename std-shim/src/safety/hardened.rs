//! The verbs of a hardened heap, which detects misuse with a table of all blocks by address. They
//! are the verbs of [`Larder::hardened`](crate::Larder::hardened) and of
//! [`Larder::checking`](crate::Larder::checking), which also adds a front before each block, fills
//! free memory, and records the stacks of allocations and frees.
//!
//! No thread has a cache in this mode (LOCAL1), so each verb takes its cold path, which leads here.
//! A block lies in a block of the plain heap that is at least a byte longer. It has no header.
//!
//! ```text
//!   block - front    block            + bytes          + granted
//!    │ front, filled  │ the program's   │ slack, filled  │
//! ```
//!
//! Free blocks of the plain heap are linked through themselves, so a write to one can corrupt the
//! list. The links are therefore masked with a secret ([`link_changed`]). A block from a list is
//! also checked before the program gets it: a block must start there, be long enough, and not be in
//! use.
//!
//! # Invariants
//! * HARD1 a block of the program is in the table as `Used`, and its front and slack have the fill
//!   of its address.
//! * HARD2 a block in quarantine is in the table as `Free`, and all of it is zero; where the
//!   heap is checking, all of it has the fill of its address.
//! * HARD3 the thread that makes a block `Leaving` owns it alone, until it puts it into quarantine
//!   or takes it out of the table. After that the block belongs to the plain heap.
//! * HARD4 the lock of the blocks is held for bookkeeping, while the memory of blocks is checked,
//!   and for the system calls with which the tables grow. No other lock is taken under it, and
//!   nothing is reported under it.
//!
//! A block that another thread was freeing during a fork stays `Leaving` in the child.

use core::alloc::Layout;
use core::ptr::{self, NonNull};

use super::blocks::{BadWrite, Blocks, Facts, Known, Leaver, UseState, mend};
use super::history::Here;
use super::report::{FoundMisuse, end_with, report};
use super::{LEAST_ALIGN, Misuse, fill};
use crate::cold_path::{no_memory, plain};
use crate::config::Config;
use crate::free_without_layout::{find, free_plain};
use crate::os::abort;
use crate::process::PROCESS;

/// Minimum length in bytes of blocks that skip the quarantine: their memory returns to the system
/// immediately.
const LONG_BYTES: usize = 1 << 20;

/// Ends the process because the link in a free block is not one that the heap wrote. Locks of the
/// heap are held, so the report goes only to standard error.
#[cold]
pub(crate) fn link_changed(block: *mut u8) -> ! {
    end_with(Misuse::WrittenAfterFree, block)
}

pub(super) fn with<R>(f: impl FnOnce(&mut Blocks) -> R) -> R {
    PROCESS.hardened.with(f)
}

/// Reports a misuse of the block at or around an address. Returns if the program may go on.
#[cold]
fn say(misuse: Misuse, address: *mut u8, here: Option<&Here>) {
    let facts = here.and_then(|_| with(|blocks| blocks.facts(address)));
    let byte = None;
    report(&FoundMisuse {
        misuse,
        address,
        byte,
        facts,
        here,
    });
}

/// Reports a write outside of a block, or after its free. Returns if the program may go on.
#[cold]
fn say_written(written: &BadWrite, facts: Option<Facts>, here: Option<&Here>) {
    let facts = facts.or_else(|| here.and_then(|_| with(|blocks| blocks.facts(written.block))));
    report(&FoundMisuse {
        misuse: written.misuse,
        address: written.block,
        byte: Some(written.byte),
        facts,
        here,
    });
}

/// Allocates a zeroed block. Returns `None` if there is no memory. A block of no bytes must not
/// even be read.
#[cold]
#[inline(never)]
pub(crate) fn alloc(layout: Layout, config: &Config) -> Option<NonNull<u8>> {
    let here = &Here::in_function_with(&layout);
    alloc_from(layout.size(), layout.align(), config, here.as_ref())
}

/// Allocates a zeroed block for C by its length. Returns null with `errno` set if there is no
/// memory.
#[cold]
#[inline(never)]
pub(crate) fn malloc(bytes: usize, config: &Config) -> *mut u8 {
    let here = &Here::in_function_with(&bytes);
    let block = alloc_from(bytes, LEAST_ALIGN, config, here.as_ref());
    block.map_or_else(no_memory, NonNull::as_ptr)
}

fn alloc_from(
    bytes: usize,
    align: usize,
    config: &Config,
    here: Option<&Here>,
) -> Option<NonNull<u8>> {
    let block = try_alloc(bytes, align, config, here);
    if block.is_none() && PROCESS.could_hold(bytes) {
        make_room(bytes, here);
        return try_alloc(bytes, align, config, here);
    }
    block
}

fn try_alloc(
    bytes: usize,
    align: usize,
    config: &Config,
    here: Option<&Here>,
) -> Option<NonNull<u8>> {
    let known = Known::new(bytes, align.max(LEAST_ALIGN), config.by_new);
    if bytes == 0
        && let Some(block) = with(|blocks| blocks.alloc_nothing(known, here))
    {
        return NonNull::new(block);
    }
    let known = match here {
        Some(_) => known.checked(),
        None => known,
    };
    let inner_bytes = bytes.checked_add(known.front_bytes() + 1)?;
    let inner = Layout::from_size_align(inner_bytes, known.align()).ok()?;
    let start = plain::alloc_zeroed(inner)?.as_ptr();
    let granted = find(start).map_or(0, |(_, granted)| granted);
    if granted < inner.size() {
        say(Misuse::BentList, start, here);
        abort();
    }
    let block = start.wrapping_add(known.front_bytes());
    let known = known.granted(granted - known.front_bytes());
    // SAFETY: allocated just now, as long as its entry says.
    unsafe { fill::fill(block, &known) };
    let (written, entered) = with(|blocks| (blocks.look_back(), blocks.enter(block, known, here)));
    if let Some(written) = written {
        say_written(&written, None, here);
    }
    match entered {
        Ok(None) => NonNull::new(block),
        Ok(Some(_)) => {
            say(Misuse::BentList, block, here);
            abort()
        }
        Err(_) => {
            // SAFETY: a block of the plain heap that no other code has seen.
            unsafe { free_plain(start) };
            None
        }
    }
}

/// Frees a block, which must have the layout if one is given.
///
/// # Safety
/// The caller gives `block` up. It may be any address: one without a block is reported.
#[cold]
#[inline(never)]
pub(crate) unsafe fn free(block: *mut u8, given: Option<Layout>) {
    let here = &Here::in_function_with(&block);
    // SAFETY: the caller gives the block up.
    unsafe { free_from(block, given, here.as_ref()) };
}

/// # Safety
/// The conditions of [`free`].
unsafe fn free_from(block: *mut u8, given: Option<Layout>, here: Option<&Here>) {
    let known = match with(|blocks| blocks.begin_free(block, here)) {
        Ok(known) => known,
        // SAFETY: a block of the plain heap starts there, and the caller gives it up.
        Err(Misuse::NoBlock) if is_early(block) => return unsafe { free_plain(block) },
        Err(misuse) => return say(misuse, block, here),
    };
    if given.is_some_and(|layout| !known.is(layout)) {
        say(Misuse::OtherLayout, block, here);
    }
    if known.is_nothing() {
        return;
    }
    // SAFETY: HARD3: this thread owns the block alone, which is as long as its entry says.
    if let Some(written) = unsafe { mend(block, &known, usize::MAX) } {
        say_written(&written, None, here);
    }
    let (start, whole) = (known.start(block), known.whole_bytes());
    if whole >= LONG_BYTES {
        // SAFETY: HARD3: this thread owns the block alone, and `whole` is its length.
        unsafe { PROCESS.clear_large(start, whole) };
        with(|blocks| blocks.forget(block));
        // SAFETY: HARD3: out of the table, the block is the plain heap's.
        return unsafe { free_plain(start) };
    }
    // SAFETY: HARD3: this thread owns the block alone.
    unsafe { fill::fill(block, &known.free()) };
    let mut leaves = with(|blocks| blocks.quarantine(block));
    while let Some(leaver) = leaves {
        let is_last = leaver.is_last;
        // SAFETY: HARD3: taken out of the table just now, so this thread owns it alone.
        unsafe { let_go(leaver, here) };
        leaves = match is_last {
            true => None,
            false => with(Blocks::excess),
        };
    }
}

/// Checks a block that has left the quarantine one last time, and frees it.
///
/// # Safety
/// The caller owns the block alone (HARD3).
unsafe fn let_go(leaver: Leaver, here: Option<&Here>) {
    let Leaver {
        block,
        known,
        history,
        ..
    } = leaver;
    // SAFETY: the caller owns the block alone, which is as long as its entry says.
    if let Some(written) = unsafe { mend(block, &known, usize::MAX) } {
        let facts = Facts {
            block,
            known,
            history,
        };
        say_written(&written, Some(facts), here);
    }
    // SAFETY: HARD3: out of the table, the block is the plain heap's.
    unsafe { free_plain(known.start(block)) };
}

/// Empties the quarantine, flushes the cache and purges, in the hope that a request of `bytes`
/// bytes can then be served. The tables have memory of their own, which the system may refuse
/// because of the plain heap's idle memory.
#[cold]
fn make_room(bytes: usize, here: Option<&Here>) {
    while let Some(leaver) = with(Blocks::take_oldest) {
        // SAFETY: HARD3: taken out of the table just now, so this thread owns it alone.
        unsafe { let_go(leaver, here) };
    }
    plain::reclaim(bytes);
}

/// Returns whether a block that is not in the table was allocated before the configuration was
/// known.
fn is_early(block: *mut u8) -> bool {
    PROCESS.tuning.had_early_blocks() && find(block).is_some()
}

/// Resizes a block, in place or elsewhere. Returns null with `errno` set if there is no memory, or
/// if no block starts there. The block must have the layout if one is given.
///
/// # Safety
/// The caller gives `block` up if the result is not null. It may be any address: one without a
/// block is reported.
#[inline(never)]
pub(crate) unsafe fn resize(
    block: *mut u8,
    given: Option<Layout>,
    bytes: usize,
    config: &Config,
) -> *mut u8 {
    let here = &Here::in_function_with(&block);
    // SAFETY: the caller gives the block up if it gets another.
    let resized = unsafe { resize_from(block, given, bytes, config, here.as_ref()) };
    resized.map_or_else(no_memory, NonNull::as_ptr)
}

/// # Safety
/// The conditions of [`resize`].
unsafe fn resize_from(
    block: *mut u8,
    given: Option<Layout>,
    bytes: usize,
    config: &Config,
    here: Option<&Here>,
) -> Option<NonNull<u8>> {
    let refuse = |misuse| {
        say(misuse, block, here);
        None
    };
    let known = match with(|blocks| blocks.get(block)) {
        Some(known) if known.state == UseState::Used => known,
        Some(_) => return refuse(Misuse::ResizedAfterFree),
        None if is_early(block) => Known::new(find(block).map_or(0, |(_, all)| all), 16, false),
        None => return refuse(Misuse::ResizedNoBlock),
    };
    if given.is_some_and(|layout| !known.is(layout)) {
        say(Misuse::OtherLayout, block, here);
    }
    while known.stays(bytes) {
        match with(|blocks| blocks.set_bytes(block, bytes)) {
            Ok(()) => return NonNull::new(block),
            Err(written) if written.byte.is_null() => return refuse(written.misuse),
            // The write is repaired; the next try can change the length.
            Err(written) => say_written(&written, None, here),
        }
    }
    let moved = alloc_from(bytes, known.align(), config, here)?;
    // SAFETY: two blocks, each with as many bytes; the caller gives the old one up.
    unsafe {
        ptr::copy_nonoverlapping(block, moved.as_ptr(), known.bytes.min(bytes));
        free_from(block, None, here);
    }
    Some(moved)
}

/// Reports a used block that has another length or alignment. For C++'s `delete`, checks only
/// blocks that `new` allocated, because a program may have a `new` of its own.
#[cold]
#[inline(never)]
pub(crate) fn check_layout(block: *mut u8, bytes: usize, align: usize, config: &Config) {
    let is_wrong = |known: Known| {
        let is_asked_for = !config.by_new || known.by_new;
        // A caller may turn a request for no bytes into a request for one byte.
        let is_length = known.bytes.max(1) == bytes.max(1);
        is_asked_for && !(is_length && known.align() == align.max(LEAST_ALIGN))
    };
    let known = with(|blocks| blocks.get(block));
    if known.is_some_and(|known| known.state == UseState::Used && is_wrong(known)) {
        let here = Here::in_function_with(&bytes);
        say(Misuse::OtherLayout, block, here.as_ref());
    }
}

/// Returns the bytes that the program requested; `None` if it has no block there.
pub(crate) fn usable_size(block: *mut u8) -> Option<usize> {
    let known = with(|blocks| blocks.get(block))?;
    (known.state == UseState::Used).then_some(known.bytes)
}
