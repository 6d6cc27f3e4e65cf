//! [`Larder`]: the process heap as a global allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::time::Duration;

use larder_core::small::{CacheBin, SizeClass, ThreadCache};

use crate::config::{Config, HugePages};
use crate::process::PROCESS;
use crate::slow::{alloc_any, alloc_zeroed_any, bin_of, free_any, realloc_other};
use crate::stats::Stats;
use crate::thread::{tls, with_local};

/// The process heap.
///
/// ```
/// use larder::Larder;
///
/// #[global_allocator]
/// static HEAP: Larder = Larder::new();
///
/// let words: Vec<String> = "one two three".split(' ').map(String::from).collect();
/// assert_eq!(words.len(), 3);
/// assert!(HEAP.stats().live_bytes > 0);
/// ```
///
/// All values of this type are the same heap, that of the process. Small blocks (up to 128 KiB) come
/// from a list that the thread keeps at hand, in a few instructions and without a lock; larger ones
/// from best fit with coalescing, O(1) behind a lock. They grow in place while there is room; from
/// 2 MiB on their pages then move if the system can do that, and are copied where memory freed lately
/// has room for them. A block may be freed by any thread. Out of memory is a null pointer, and later
/// calls work. Not to be called from a signal handler.
///
/// A free that cannot be right ends the process with a message. Above 128 KiB that is always found
/// for an address where no block starts, such as that of a block freed before. In builds with debug
/// assertions also: small blocks that are none of the heap, whose layout is not of the size class
/// (above 128 KiB: the granules) they were allocated with, or that are among the 64 that this thread
/// freed last and has not given again. Else a small free is not looked at.
///
/// # Configurations
/// One implementation, tuned for three purposes; the constants of each can be changed by `with_…`:
///
/// | | for | freed memory goes back | huge pages |
/// |---|---|---|---|
/// | [`new`](Self::new) | a balance | after 1 s | beyond 8 MiB, where memory is really touched |
/// | [`speed`](Self::speed) | time | after 10 s | beyond 2 MiB, the same |
/// | [`memory`](Self::memory) | little memory | at once | never |
///
/// All values being one heap, the one that is asked first decides for the process.
///
/// ```
/// use std::time::Duration;
///
/// use larder::{HugePages, Larder};
///
/// #[global_allocator]
/// static HEAP: Larder = Larder::speed()
///     .with_purge_after(Duration::from_secs(2))
///     .with_huge_pages(HugePages::Never);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Larder(Config);

impl Default for Larder {
    fn default() -> Self {
        Self::new()
    }
}

impl Larder {
    /// The heap of the process, time and memory in balance.
    pub const fn new() -> Self {
        Self(Config::BALANCED)
    }

    /// The heap of the process, tuned for time.
    pub const fn speed() -> Self {
        Self(Config::SPEED)
    }

    /// The heap of the process, tuned for little memory.
    pub const fn memory() -> Self {
        Self(Config::MEMORY)
    }

    /// Keeps freed memory for so long at most, and half as long at least, before it goes back to
    /// the system: zero for as soon as may be, `Duration::MAX` for ever. In whole milliseconds,
    /// rounded up.
    #[must_use]
    pub const fn with_purge_after(self, delay: Duration) -> Self {
        Self(Config {
            purge_ms: Config::millis(delay),
            ..self.0
        })
    }

    /// Whether the heap may have a thread of its own that gives memory back while the program
    /// does nothing. Without it that happens when the program next needs or frees much. It is started
    /// when 2 MiB have been freed, sleeps for half the delay between two looks, and ends when nothing
    /// is idle; signals do not reach it. A program that must stay single-threaded (for `unshare` or
    /// `setns`) or forbids itself to start threads says `false`.
    #[must_use]
    pub const fn with_background_purge(self, background: bool) -> Self {
        Self(Config {
            background,
            ..self.0
        })
    }

    /// When huge pages are asked for.
    #[must_use]
    pub const fn with_huge_pages(self, huge_pages: HugePages) -> Self {
        Self(Config {
            huge_pages,
            ..self.0
        })
    }

    /// What the heap holds now. O(heaps x classes + chunks), and a system call for each 2 MiB committed. What was
    /// freed by other threads than those that allocated it goes back first.
    pub fn stats(&self) -> Stats {
        // SAFETY: called by the program, not from inside the heap.
        unsafe { with_local(|local| Stats::count(&PROCESS, local)) }
    }

    /// Gives memory that nobody uses back to the system; returns the bytes that were in memory. Empties what this thread keeps at hand; what other running threads keep stays
    /// (at most 32 KiB of each class, mostly).
    ///
    /// Costs a walk over everything idle, and the memory comes back by page faults.
    pub fn trim(&self) -> u64 {
        // SAFETY: called by the program, not from inside the heap.
        unsafe { with_local(|local| local.flush(&PROCESS)) };
        PROCESS.trim()
    }
}

/// The calling thread's bin of a common layout, or `None` for others.
#[inline(always)]
fn common_bin(layout: Layout) -> Option<*mut CacheBin> {
    if !SizeClass::is_common(layout.size(), layout.align()) {
        // Boxed words: for sizes that the compiler knows.
        return match layout.size() == 8 && layout.align() == 8 {
            true => Some(bin_of(SizeClass::EIGHT)),
            false => None,
        };
    }
    Some(ThreadCache::place_of_common(tls::cache(), layout.size()))
}

// SAFETY: blocks of a class are at least as large and aligned as the layout and in one place at a
// time (SLOT, SPAN, REMOTE, SET); large blocks are chunks of a BFC, which do not overlap (ARENA3). Nothing panics
// or unwinds.
#[cfg(not(miri))]
unsafe impl GlobalAlloc for Larder {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(bin) = common_bin(layout) {
            // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
            let block = unsafe { CacheBin::pop(bin) };
            if !block.is_null() {
                return block;
            }
        }
        alloc_any(&self.0, layout)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if cfg!(not(debug_assertions))
            && let Some(bin) = common_bin(layout)
        {
            // SAFETY: the thread's own cache, or one without room (LOCAL1); the block is the caller's.
            if unsafe { CacheBin::push(bin, block) } {
                return;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { free_any(block, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(bin) = common_bin(layout) {
            // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
            let block = unsafe { CacheBin::pop(bin) };
            if !block.is_null() {
                // SAFETY: the block is at least that long.
                unsafe { block.write_bytes(0, layout.size()) };
                return block;
            }
        }
        alloc_zeroed_any(&self.0, layout)
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that is valid for the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let was_common = SizeClass::is_common(layout.size(), layout.align());
        let stays = match SizeClass::is_common(new.size(), new.align()) {
            true if was_common => {
                SizeClass::of_common(layout.size()) == SizeClass::of_common(new.size())
            }
            // SAFETY: the caller's promise.
            false if !was_common => match unsafe { realloc_other(block, layout, new) } {
                Some(grown) => return grown,
                None => false,
            },
            _ => false,
        };
        if stays {
            return block;
        }
        // SAFETY: the caller's promise.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both blocks hold that many bytes, and are two.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size)) };
            // SAFETY: the caller's promise; the contents have moved.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}
