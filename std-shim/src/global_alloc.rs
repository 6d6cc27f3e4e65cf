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
/// All values of this type are the same heap, that of the process. Small blocks (up to 128 KiB)
/// come from the calling thread's cache, in a few instructions and without a lock. Larger blocks
/// come from best fit with coalescing, O(1) behind a lock. A thread caches up to eight blocks of at
/// most 8 MiB that it freed last, for requests of nearly the same length. A large block grows in place while there
/// is room. Then the pages of a block of at least 2 MiB are moved, if the system can do that,
/// unless recently freed memory has room for a copy. Any thread may free a block. A call that finds
/// no memory returns a null pointer, and later calls work. The heap must not be called from a
/// signal handler.
///
/// A free that cannot be right ends the process with a message. For a layout above 128 KiB, an
/// address where no block starts, such as that of a block freed before, is always detected. Builds
/// with debug assertions also detect foreign small blocks, frees with a layout of another size
/// class (above 128 KiB: another number of granules) than that of the allocation, and small blocks
/// among the 64 that this thread freed last and has not allocated again. Other builds do not check
/// the free of a small block.
///
/// # Configurations
/// The five configurations tune one implementation; the methods `with_…` change the options of
/// each:
///
/// | | for | freed memory goes back | huge pages |
/// |---|---|---|---|
/// | [`new`](Self::new) | a balance | after 1 s | beyond 8 MiB, where memory is really touched |
/// | [`speed`](Self::speed) | time | after 10 s | beyond 2 MiB, the same |
/// | [`memory`](Self::memory) | little memory | after 50 ms, and before the heap grows | beyond 8 MiB, where large blocks are really touched |
/// | [`hardened`](Self::hardened) | safety | after 1 s | beyond 8 MiB, where memory is really touched |
/// | [`checking`](Self::checking) | finding misuse | after 1 s | the same |
///
/// Because all values are one heap, the first value that is used decides for the process.
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
    /// Returns the heap of the process, with time and memory in balance.
    pub const fn new() -> Self {
        Self(Config::BALANCED)
    }

    /// Returns the heap of the process, tuned for time.
    pub const fn speed() -> Self {
        Self(Config::SPEED)
    }

    /// Returns the heap of the process, tuned for little memory: freed memory goes back to the
    /// system within 50 ms, or sooner if the heap grows. Memory that is allocated again before it
    /// goes back costs no page fault. Threads cache a quarter as much as with [`new`](Self::new).
    pub const fn memory() -> Self {
        Self(Config::MEMORY)
    }

    /// Returns a heap that detects misuse, such as double frees, foreign addresses and writes past
    /// the end. It then prints a line with the kind of misuse and the address on standard error and
    /// ends the process, unless [`on_misuse`](Self::on_misuse) has chosen something else. It
    /// detects:
    ///
    /// * A free or resize of an address where no block starts, or of a freed block; a free with a
    ///   length or an alignment that is not the block's.
    /// * A write past the end of a block, up to where the next block begins. It is found when the
    ///   block is freed or resized; for the two blocks that were allocated or freed last, it is
    ///   found soon after the write.
    /// * A write to a freed block below 1 MiB, unless it writes zeros. Freed blocks are zeroed, and
    ///   wait in a quarantine of 16 MiB or 16,383 blocks before their memory is used again. They
    ///   are checked when they leave the quarantine.
    /// * Any access to a block of no bytes.
    ///
    /// All blocks are zeroed when they are allocated. Reads are not detected, nor is a write that
    /// skips the checked bytes. The cost is memory (at least 48 bytes for each block, and the
    /// quarantine) and time (a lock that all threads share). Blocks of `Heap`s are not checked, and
    /// [`step`](crate::step)s are not planned.
    pub const fn hardened() -> Self {
        Self(Config::HARDENED)
    }

    /// Returns a [hardened](Self::hardened) heap that also reports where misuse comes from: the
    /// block's address, length and alignment, the kind of misuse, and (on Linux) the threads and
    /// stacks that found the misuse, allocated the block and freed the block. It also reports if an
    /// address lies inside a block.
    ///
    /// * The bytes before a block are checked, too: as many as its alignment, and at least 16; none
    ///   before a block aligned to more than 4096.
    /// * Freed memory below 1 MiB is filled with a byte that is not zero, and a write of zeros to
    ///   it is detected, too.
    ///
    /// [`on_misuse`](Self::on_misuse) sets how the heap reacts; [`with_leaks`](Self::with_leaks)
    /// reports blocks that are not freed. With the feature `heap-profile`, frames have the names of
    /// functions; without it, they have the names that the program exports, and locations for
    /// `addr2line`.
    ///
    /// Costs as much as [`hardened`](Self::hardened), and a walk of the stack at each call, which
    /// is most of the time ([`with_stack_frames`](Self::with_stack_frames) limits it). It also
    /// costs memory: at least 16 bytes before each block, 80 to 160 bytes per block in a second
    /// table, and 560 to 1120 bytes for each distinct stack.
    pub const fn checking() -> Self {
        Self(Config::CHECKING)
    }

    /// Sets how a hardened or checking heap reacts to misuse. It reacts with [`OnMisuse::Abort`]
    /// until the environment or the program chooses something else.
    pub fn on_misuse(&self, act: OnMisuse) {
        PROCESS.tuning.apply(&self.0);
        PROCESS.tuning.set_on_misuse(act);
    }

    /// Allocates a block of at least `bytes` bytes, at a multiple of 16, for [`free`](Self::free),
    /// as C's `malloc` does. Returns null and sets `errno` if there is no memory, as the other
    /// functions of C do.
    #[inline]
    #[must_use]
    pub fn malloc(&self, bytes: usize) -> *mut u8 {
        match pop(c_bin(bytes)) {
            block if block.is_null() => cold_path::malloc(bytes, &self.0),
            block => block,
        }
    }

    /// Allocates a zeroed block as [`malloc`](Self::malloc) does.
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

    /// Frees a block by its address alone, which takes a few instructions more than a free with the
    /// layout. Does nothing with null. Ends the process with a message if the address is outside
    /// the heap, lies inside a block (some addresses inside blocks of 8 KiB to 128 KiB are not
    /// detected), or is that of the last block of its class that this thread freed.
    ///
    /// # Safety
    /// The block is null or a block of this heap that does not come from a `Heap` value, and the
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
    /// where it is if it is long enough and less than twice as long as needed. Returns null and
    /// leaves the block unchanged if there is no memory or if no block of this heap starts there.
    ///
    /// # Safety
    /// The conditions of [`free`](Self::free). The caller gives the block up if the result is not
    /// null.
    #[must_use]
    pub unsafe fn resize(&self, block: *mut u8, bytes: usize) -> *mut u8 {
        // SAFETY: the caller gives the block up if it gets another. Either resize finds out whether
        // a block starts there.
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
            Some(SizeClass::NONE) => PROCESS.bytes_at(block).or_else(|| Some(find(block)?.1)),
            Some(class) => Some(class.block_bytes()),
            None => find(block).map(|(_, bytes)| bytes),
        };
        let Some(usable) = usable else {
            return ptr::null_mut();
        };
        if bytes <= usable && bytes > usable / 2 {
            return block;
        }
        // The 8-byte class serves only layouts aligned to 8.
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
    /// alignment. This is for callers that free by address and length. Alignments up to 16 count as
    /// the same. Does nothing in other heaps, or if no block starts at the address.
    #[inline(always)]
    pub fn check_layout(&self, block: *mut u8, bytes: usize, align: usize) {
        if PROCESS.tuning.is_hardened() {
            hardened::check_layout(block, bytes, align, &self.0);
        }
    }

    /// Returns how many bytes of a block the program may use: at least as many as it requested, and
    /// exactly as many in a hardened heap. Returns `None` if no block of this heap starts there.
    /// O(1), without a lock. Only a hardened heap distinguishes a free block of a span from a used
    /// one.
    pub fn usable_size(&self, block: *const u8) -> Option<usize> {
        let block = block.cast_mut();
        match PROCESS.tuning.mode() {
            HeapMode::Hardened => hardened::usable_size(block),
            HeapMode::Guarded if guard_pages::has(block) => guard_pages::usable_size(block),
            HeapMode::Guarded | HeapMode::Plain => find(block).map(|(_, bytes)| bytes),
        }
    }

    /// Counts the memory of the heap. First returns blocks that other threads freed to their spans.
    /// O(heaps x classes + chunks), and a system call for each 2 MiB committed.
    pub fn stats(&self) -> Stats {
        // SAFETY: called by the program, not from inside the heap.
        unsafe { with_local(|local| Stats::count(&PROCESS, local)) }
    }

    /// Returns idle memory to the system. The result is the number of bytes of it that were
    /// resident. Flushes the calling thread's cache; other running threads keep theirs (usually at
    /// most 32 KiB of each class).
    ///
    /// Costs a walk over all idle memory, and page faults when that memory is used again.
    pub fn trim(&self) -> u64 {
        // SAFETY: called by the program, not from inside the heap.
        unsafe { with_local(|local| local.flush(&PROCESS)) };
        PROCESS.trim()
    }
}

/// Returns the bin of a common layout in the given cache of the calling thread; `None` for other
/// layouts.
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

/// Pops a block from a bin. Returns null if there is no bin, or no block in it.
#[inline(always)]
fn pop(bin: Option<*mut CacheBin>) -> *mut u8 {
    match bin {
        // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
        Some(bin) => unsafe { CacheBin::pop(bin) },
        None => ptr::null_mut(),
    }
}

/// Maximum length of a block in bytes: with its alignment it still fits the address space.
const MAX_BYTES: usize = isize::MAX as usize - 15;

/// Returns the calling thread's bin for a size that C requests.
#[inline(always)]
fn c_bin(bytes: usize) -> Option<*mut CacheBin> {
    SizeClass::is_common(bytes, 1).then(|| ThreadCache::bin_of_common(tls::cache(), bytes))
}

// SAFETY: blocks of a class are at least as large and as aligned as the layout, and each is in one
// place at a time (SLOT, SPAN, REMOTE, SET); large blocks are chunks of a BFC, which do not overlap
// (ARENA3). Nothing panics or unwinds.
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
