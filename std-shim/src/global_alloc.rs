//! [`Larder`]: the process heap as a global allocator.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

use larder_core::small::{CacheBin, SizeClass, ThreadCache};

use crate::cold_path::{self, no_memory, plain};
use crate::config::{Config, HeapMode, OnMisuse};
use crate::free_without_layout::{find, free_without_layout};
use crate::process::{PROCESS, may_start};
use crate::safety::{guard_pages, hardened};
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
/// from the calling thread's cache, in a few instructions and without a lock; larger ones from best
/// fit with coalescing, O(1) behind a lock. They grow in place while there is room; from 2 MiB on
/// their pages then move if the system can do that, and are copied where memory freed lately has
/// room for them. Any thread may free a block. Out of memory is a null pointer, and later calls
/// work. Not to be called from a signal handler.
///
/// A free that cannot be right ends the process with a message. Above 128 KiB that is always
/// detected for an address where no block starts, such as that of a block freed before. Builds with
/// debug assertions also detect small blocks that are foreign, whose layout is not of the size
/// class (above 128 KiB: the granules) they were allocated with, or that are among the 64 that this
/// thread freed last and has not allocated again. Other builds do not check a small free.
///
/// # Configurations
/// One implementation, tuned for five purposes; methods `with_…` change the options of each:
///
/// | | for | freed memory goes back | huge pages |
/// |---|---|---|---|
/// | [`new`](Self::new) | a balance | after 1 s | beyond 8 MiB, where memory is really touched |
/// | [`speed`](Self::speed) | time | after 10 s | beyond 2 MiB, the same |
/// | [`memory`](Self::memory) | little memory | after 50 ms, and before the heap grows | beyond 8 MiB, where large blocks are really touched |
/// | [`hardened`](Self::hardened) | safety | after 1 s | beyond 8 MiB, where memory is really touched |
/// | [`checking`](Self::checking) | finding misuse | after 1 s | the same |
///
/// As all values are one heap, the first that is used decides for the process.
///
/// ```
/// use core::time::Duration;
///
/// use larder::{HugePages, Larder};
///
/// #[global_allocator]
/// static HEAP: Larder = Larder::speed()
///     .with_purge_after(Duration::from_secs(2))
///     .with_huge_pages(HugePages::Never);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Larder(pub(crate) Config);

impl Default for Larder {
    fn default() -> Self {
        Self::new()
    }
}

impl Larder {
    /// Returns the heap of the process, time and memory in balance.
    pub const fn new() -> Self {
        Self(Config::BALANCED)
    }

    /// Returns the heap of the process, tuned for time.
    pub const fn speed() -> Self {
        Self(Config::SPEED)
    }

    /// Returns the heap of the process, tuned for little memory: freed memory goes back within 50
    /// ms, or sooner if the heap grows; if it is allocated again by then, that costs no page fault.
    /// Threads cache a quarter as much as with [`new`](Self::new).
    pub const fn memory() -> Self {
        Self(Config::MEMORY)
    }

    /// Returns a heap that detects misuse: double frees, foreign addresses, writes past the end. It
    /// then prints a line with the misuse and the address on standard error and ends the process,
    /// unless [`on_misuse`](Self::on_misuse) chose something else. It detects:
    ///
    /// * A free or resize of an address where no block starts, or of a freed block; a free with
    ///   another length or alignment than the block has.
    /// * A write past the end of a block, up to where the next block begins: when the block is
    ///   freed or resized, and soon after the write for the two blocks that were allocated or freed
    ///   last.
    /// * A write to a freed block below 1 MiB, unless it writes zeros. Freed blocks are zeroed, and
    ///   wait in a quarantine of 16 MiB or 16,383 blocks before their memory is used again; they
    ///   are checked when they leave it.
    /// * Any access to a block of no bytes.
    ///
    /// All blocks are zeroed when they are allocated. Reads are not detected, nor is a write that
    /// leaps over the bytes which are checked. Costs memory (48 bytes and more for each block, and
    /// the quarantine) and time: a lock that all threads share. Blocks of `Heap`s are not checked,
    /// [`step`](crate::step)s are not planned.
    pub const fn hardened() -> Self {
        Self(Config::HARDENED)
    }

    /// Returns a [hardened](Self::hardened) heap that also reports where misuse comes from: the
    /// block's address, length and alignment, the misuse, and the threads and stacks that found it,
    /// allocated the block, and freed it (on Linux). It also reports that an address lies inside a
    /// block.
    ///
    /// * As many bytes before a block as its alignment, 16 at least, are checked, too; none before
    ///   a block aligned to more than 4096.
    /// * Freed memory below 1 MiB is filled with a byte that is not zero, and a write of zeros to
    ///   it is detected, too.
    ///
    /// [`on_misuse`](Self::on_misuse) sets how the heap reacts, [`with_leaks`](Self::with_leaks)
    /// reports blocks that are not freed. Frames have the names of functions with the feature
    /// `heap-profile`; without it, the names that the program exports, and places for `addr2line`.
    ///
    /// Costs as much as [`hardened`](Self::hardened), a walk of the stack at each call, which is
    /// most of it ([`with_stack_frames`](Self::with_stack_frames)), and memory: 16 bytes and more
    /// before each block, 80 to 160 in a second table, 560 to 1120 for each different stack.
    pub const fn checking() -> Self {
        Self(Config::CHECKING)
    }

    /// Sets how a hardened or checking heap reacts to misuse: with [`OnMisuse::Abort`], until the
    /// environment or the program chooses something else.
    pub fn on_misuse(&self, act: OnMisuse) {
        PROCESS.tuning.apply(&self.0);
        PROCESS.tuning.set_on_misuse(act);
    }

    /// Allocates a block of at least `bytes` bytes, at a multiple of 16, for [`free`](Self::free),
    /// as C's `malloc` does. Returns null and sets `errno` if there is no memory, as do the other
    /// verbs of C.
    #[inline]
    #[must_use]
    pub fn malloc(&self, bytes: usize) -> *mut u8 {
        match pop(c_bin(bytes)) {
            block if block.is_null() => cold_path::malloc(bytes, &self.0),
            block => block,
        }
    }

    /// Allocates a zeroed block, otherwise as [`malloc`](Self::malloc) does.
    #[inline]
    #[must_use]
    pub fn malloc_zeroed(&self, bytes: usize) -> *mut u8 {
        let block = pop(c_bin(bytes));
        if block.is_null() {
            return cold_path::malloc_zeroed(bytes, &self.0);
        }
        // SAFETY: the block is at least that long.
        unsafe { block.write_bytes(0, bytes) };
        block
    }

    /// Frees a block by its address alone, for a few instructions more than a free with the layout.
    /// Does nothing with null. Ends the process with a message for addresses outside the heap,
    /// inside blocks (between 8 KiB and 128 KiB mostly), and for the block of its class that this
    /// thread freed last.
    ///
    /// # Safety
    /// The block is null or one of this heap, from any verb but those of `Heap` values, and the
    /// caller gives it up.
    #[inline]
    pub unsafe fn free(&self, block: *mut u8) {
        if let Some(class) = PROCESS.class_in_first(block)
            && may_start(class, block)
        {
            let cache = tls::cache();
            // SAFETY: the thread's own cache, or one that stays empty (LOCAL1).
            let is_new = unsafe { CacheBin::newest(ThreadCache::bin_of(cache, class)) } != block;
            // SAFETY: the thread's own cache, or one without room (LOCAL1); the block is the caller's.
            if is_new && unsafe { ThreadCache::push(cache, class, block) } {
                return;
            }
        }
        // SAFETY: null or a block of the heap, which the caller gives up and no bin took.
        unsafe { free_without_layout(block) };
    }

    /// Resizes a block, and keeps the contents that fit, as C's `realloc` does. The block stays
    /// where it is if it is long enough and not twice as long as needed. Returns null, and leaves
    /// the block as it was, if there is no memory, or if no block of this heap starts there.
    ///
    /// # Safety
    /// The conditions of [`free`](Self::free). The caller gives the block up if the result is not
    /// null.
    #[must_use]
    pub unsafe fn resize(&self, block: *mut u8, bytes: usize) -> *mut u8 {
        // SAFETY: the caller gives the block up if it gets another. Each of the two finds out
        // whether a block starts there.
        unsafe {
            match PROCESS.tuning.mode() {
                HeapMode::Hardened => return hardened::resize(block, None, bytes, &self.0),
                HeapMode::Guarded if guard_pages::has(block) => {
                    return guard_pages::resize(block, None, bytes, |bytes| self.malloc(bytes));
                }
                HeapMode::Guarded | HeapMode::Plain => {}
            }
        }
        let usable = match PROCESS.class_in_first(block) {
            None | Some(SizeClass::NONE) => match find(block) {
                Some((_, bytes)) => bytes,
                None => return ptr::null_mut(),
            },
            Some(class) => class.block_bytes(),
        };
        if bytes <= usable && bytes > usable / 2 {
            return block;
        }
        // The 8-byte class serves such layouts only.
        let align = if usable == 8 { 8 } else { 16 };
        let moved = match Layout::from_size_align(usable, align) {
            // SAFETY: a layout as long as the block has its class; the size is not 0, and the
            // caller gives the block up.
            Ok(layout) if bytes <= MAX_BYTES => unsafe {
                self.realloc(block, layout, bytes.max(1))
            },
            _ => ptr::null_mut(),
        };
        match moved.is_null() {
            true => no_memory(),
            false => moved,
        }
    }

    /// Reports misuse if the heap is hardened and the block was allocated with another length or
    /// alignment: for callers that free by address and length. Alignments up to 16 count as one.
    /// Does nothing in other heaps, and with addresses where no block starts.
    #[inline(always)]
    pub fn check_layout(&self, block: *mut u8, bytes: usize, align: usize) {
        if PROCESS.tuning.is_hardened() {
            hardened::check_layout(block, bytes, align, &self.0);
        }
    }

    /// Returns how many bytes of a block the program may use: at least as many as it requested, and
    /// exactly as many in a hardened heap. Returns `None` if no block of this heap starts there.
    /// O(1), and no lock; only a hardened heap distinguishes a free block of a span from a used
    /// one.
    pub fn usable_size(&self, block: *const u8) -> Option<usize> {
        let block = block.cast_mut();
        match PROCESS.tuning.mode() {
            HeapMode::Hardened => hardened::usable_size(block),
            HeapMode::Guarded if guard_pages::has(block) => guard_pages::usable_size(block),
            HeapMode::Guarded | HeapMode::Plain => find(block).map(|(_, bytes)| bytes),
        }
    }

    /// Counts the memory of the heap now, after blocks that other threads freed have come back to
    /// their spans. O(heaps x classes + chunks), and a system call for each 2 MiB committed.
    pub fn stats(&self) -> Stats {
        // SAFETY: called by the program, not from inside the heap.
        unsafe { with_local(|local| Stats::count(&PROCESS, local)) }
    }

    /// Returns idle memory to the system; returns how many bytes of it were resident. Flushes the
    /// calling thread's cache; those of other running threads stay (at most 32 KiB of each class,
    /// mostly).
    ///
    /// Costs a walk over everything idle, and the memory comes back by page faults.
    pub fn trim(&self) -> u64 {
        // SAFETY: called by the program, not from inside the heap.
        unsafe { with_local(|local| local.flush(&PROCESS)) };
        PROCESS.trim()
    }
}

/// Returns the calling thread's bin of a common layout in that cache, or `None` for others.
#[inline(always)]
fn common_bin(layout: Layout, cache: fn() -> *mut ThreadCache) -> Option<*mut CacheBin> {
    if !SizeClass::is_common(layout.size(), layout.align()) {
        // Boxed words, where the compiler knows the size.
        return match layout.size() == 8 && layout.align() == 8 {
            true => Some(ThreadCache::bin_of(cache(), SizeClass::EIGHT)),
            false => None,
        };
    }
    Some(ThreadCache::bin_of_common(cache(), layout.size()))
}

/// Pops a block of a bin; null if there is no bin, or no block in it.
#[inline(always)]
fn pop(bin: Option<*mut CacheBin>) -> *mut u8 {
    match bin {
        // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
        Some(bin) => unsafe { CacheBin::pop(bin) },
        None => ptr::null_mut(),
    }
}

/// Maximum length of a block in bytes, so that it fits an address space with its alignment.
const MAX_BYTES: usize = isize::MAX as usize - 15;

/// Returns the calling thread's bin for a size that C requests.
#[inline(always)]
fn c_bin(bytes: usize) -> Option<*mut CacheBin> {
    SizeClass::is_common(bytes, 1).then(|| ThreadCache::bin_of_common(tls::cache(), bytes))
}

// SAFETY: blocks of a class are at least as large and aligned as the layout and in one place at a
// time (SLOT, SPAN, REMOTE, SET); large blocks are chunks of a BFC, which do not overlap (ARENA3). Nothing panics
// or unwinds.
#[cfg(not(miri))]
unsafe impl GlobalAlloc for Larder {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match pop(common_bin(layout, tls::cache)) {
            block if block.is_null() => cold_path::alloc(layout, &self.0),
            block => block,
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if cfg!(not(debug_assertions))
            && let Some(bin) = common_bin(layout, tls::cache_of_frees)
        {
            // SAFETY: the thread's own cache, or one without room (LOCAL1, LOCAL3); the block is the caller's.
            if unsafe { CacheBin::push(bin, block) } {
                return;
            }
        }
        // SAFETY: a block of the heap with this layout, which the caller gives up and no bin took.
        unsafe { cold_path::free(block, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = pop(common_bin(layout, tls::cache));
        if block.is_null() {
            return cold_path::alloc_zeroed(layout, &self.0);
        }
        // SAFETY: the block is at least that long.
        unsafe { block.write_bytes(0, layout.size()) };
        block
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller passes a size that is valid for the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: a block of the heap with this layout, which the caller gives up for another; the
        // new size is not 0.
        unsafe {
            match PROCESS.tuning.mode() {
                HeapMode::Plain => self.realloc_plain(block, layout, new),
                HeapMode::Guarded | HeapMode::Hardened => self.realloc_checked(block, layout, new),
            }
        }
    }
}

impl Larder {
    /// Resizes a block that has no guard pages, in a heap that is not hardened.
    ///
    /// # Safety
    /// `block` is a block of the heap with this layout; `new` has its alignment, and a size that is
    /// not 0. The caller gives the block up if the result is not null.
    #[inline(always)]
    pub(crate) unsafe fn realloc_plain(
        &self,
        block: *mut u8,
        layout: Layout,
        new: Layout,
    ) -> *mut u8 {
        let was_common = SizeClass::is_common(layout.size(), layout.align());
        let stays = match SizeClass::is_common(new.size(), new.align()) {
            true if was_common => {
                SizeClass::of_common(layout.size()) == SizeClass::of_common(new.size())
            }
            // SAFETY: a block of the heap with this layout, which the caller lends for the call.
            false if !was_common => match unsafe { plain::try_resize(block, layout, new) } {
                Some(grown) => return grown,
                None => false,
            },
            _ => false,
        };
        if stays {
            return block;
        }
        // SAFETY: the new size is not 0.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: two blocks, each with as many bytes as its layout; the caller gives the old
            // one up.
            unsafe {
                ptr::copy_nonoverlapping(block, moved, layout.size().min(new.size()));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}
