//! [`Larder`]: the process heap as a global allocator.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use core::time::Duration;

use larder_core::small::{CacheBin, SizeClass, ThreadCache};

use crate::cold_path::{self, no_memory, plain};
use crate::config::{Config, HugePages, Mode, OnMisuse};
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
/// One implementation, tuned for five purposes; the constants of each can be changed by `with_…`:
///
/// | | for | freed memory goes back | huge pages |
/// |---|---|---|---|
/// | [`new`](Self::new) | a balance | after 1 s | beyond 8 MiB, where memory is really touched |
/// | [`speed`](Self::speed) | time | after 10 s | beyond 2 MiB, the same |
/// | [`memory`](Self::memory) | little memory | after 50 ms, and before the heap grows | beyond 8 MiB, where large blocks are really touched |
/// | [`hardened`](Self::hardened) | safety | after 1 s | beyond 8 MiB, where memory is really touched |
/// | [`checking`](Self::checking) | finding misuse | after 1 s | the same |
///
/// All values being one heap, the one that is asked first decides for the process.
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
    /// The heap of the process, time and memory in balance.
    pub const fn new() -> Self {
        Self(Config::BALANCED)
    }

    /// The heap of the process, tuned for time.
    pub const fn speed() -> Self {
        Self(Config::SPEED)
    }

    /// The heap of the process, tuned for little memory: what is freed goes back within 50 ms, or sooner if the heap
    /// grows, and what is taken again by then costs no page fault. Threads keep a quarter as much at hand as with
    /// [`new`](Self::new).
    pub const fn memory() -> Self {
        Self(Config::MEMORY)
    }

    /// The heap of the process, which finds what the program does wrong with its blocks: the process ends with a line
    /// on standard error that says what was done to which address, unless [`on_misuse`](Self::on_misuse) chose something
    /// else.
    ///
    /// * A free or resize of an address where no block starts, or of a block that was freed; a free with another
    ///   length or alignment than the block has.
    /// * A write past the end of a block, up to where the next block begins. Seen when the block is freed or
    ///   resized; soon after, for one of the two blocks that came or went last.
    /// * A write to a freed block below 1 MiB, unless it writes zeros. Freed blocks are zeroed, and wait until 16 MiB or
    ///   16,383 of them do before their memory is used again; they are looked at then.
    /// * Any access to a block of no bytes.
    ///
    /// All blocks are zeroed when they are allocated. Reads are not seen, nor is a write that leaps over what is
    /// known to be nobody's. Costs memory (48 bytes and more for each block, and the 16 MiB) and time: a lock that
    /// all threads share. Blocks of `Heap`s are not looked at, [`step`](crate::step)s are not planned.
    pub const fn hardened() -> Self {
        Self(Config::HARDENED)
    }

    /// The hardened heap, which also says where misuse comes from. Its report has the block's address, length and
    /// alignment, what is wrong with it, and the thread and stack that found it, allocated the block, and freed it
    /// (on Linux). An address inside a block is said to be so.
    ///
    /// * As many bytes before a block as its alignment, 16 at least, are looked at, too; none above 4096.
    /// * Freed memory below 1 MiB is filled with a byte that is not zero, and a write of zeros to it is found, too.
    ///
    /// [`on_misuse`](Self::on_misuse) says what happens then, [`with_leaks`](Self::with_leaks) has the blocks said that
    /// are not freed. Frames have the names of functions with the feature `heap-profile`; without it, the names that the
    /// program exports, and places for `addr2line`.
    ///
    /// Costs what [`hardened`](Self::hardened) costs, a walk of the stack at each call, which is most of it
    /// ([`with_stack_frames`](Self::with_stack_frames)), and memory: 16 bytes and more before each block, 80 to 160 in a
    /// second table, 560 to 1120 for each different stack.
    pub const fn checking() -> Self {
        Self(Config::CHECKING)
    }

    /// Says what happens from now on when the heap finds misuse, where it is hardened or checking.
    /// [`OnMisuse::Abort`], until the environment or the program says something else.
    pub fn on_misuse(&self, act: OnMisuse) {
        PROCESS.tuning.apply(&self.0);
        PROCESS.tuning.set_on_misuse(act);
    }

    /// Keeps so many frames of each stack that is kept, the innermost; 16 in each configuration, 32 at most. With 0 no stack
    /// is walked.
    #[must_use]
    pub const fn with_stack_frames(self, frames: u32) -> Self {
        Self(Config {
            stack_frames: frames,
            ..self.0
        })
    }

    /// Whether a checking heap says at the end of the process what is not freed, by the stacks that allocated it, the
    /// longest first. On Linux, after the functions of `atexit` and the destructors of static values. Many programs free
    /// nothing at their end.
    #[must_use]
    pub const fn with_leaks(self, leaks: bool) -> Self {
        Self(Config { leaks, ..self.0 })
    }

    /// Whether the heap says at the end of the process, on standard error, what it holds and the most that the process had
    /// in memory. On Linux, after the functions of `atexit` and the destructors of static values; a program that has closed
    /// standard error by then says nothing.
    #[must_use]
    pub const fn with_stats(self, stats: bool) -> Self {
        Self(Config { stats, ..self.0 })
    }

    /// Gives guard pages to one in so many blocks up to a page less 16 bytes; 0 for none, as in each configuration. Not
    /// where the heap is hardened or checking.
    ///
    /// Such a block lies alone in a page between two that nobody may touch, at its end or its start. Who reads or writes
    /// past that side ends by a fault; who writes on the other is found when it is freed, as are double frees. Freed, its
    /// page may not be touched until those of all others that are free have been used again; there are 256. They are chosen
    /// where a thread needs more than it has at hand. A free with a layout takes a slower path then, which looks at the
    /// address, and once in so many of them the thread gives up what it has at hand, so that blocks are chosen which a loop
    /// frees and allocates again and again; those of `malloc` and [`free`](Self::free) seldom are.
    #[must_use]
    pub const fn with_guard_pages(self, one_in: u32) -> Self {
        Self(Config {
            guard_one_in: one_in,
            ..self.0
        })
    }

    /// Whether a report explains the fault that ends a program at a guard page: whose block it was, and who allocated and
    /// freed it. On Linux. Takes a handler of `SIGSEGV` when the first block is chosen, and gives it back at the first
    /// fault of any kind, which happens again then: the program ends as it would have.
    #[must_use]
    pub const fn with_fault_reports(self, explains_faults: bool) -> Self {
        Self(Config {
            explains_faults,
            ..self.0
        })
    }

    /// This heap, as C++'s `new` asks it for blocks: hardened, [`check_layout`](Self::check_layout) looks at
    /// such blocks only.
    #[must_use]
    pub const fn by_new(self) -> Self {
        Self(Config {
            by_new: true,
            ..self.0
        })
    }

    /// Keeps freed memory for so long at most, and half as long at least, before it goes back to
    /// the system: in whole milliseconds, rounded up. `Duration::MAX` is for ever, and less than 50 ms counts as
    /// 50 ms. A heap that keeps it for 100 ms at most also gives back, before it grows, as much of what was freed
    /// only now.
    #[must_use]
    pub const fn with_purge_after(self, delay: Duration) -> Self {
        Self(Config {
            purge_ms: Config::millis(delay),
            ..self.0
        })
    }

    /// Whether the heap may have a thread of its own that gives memory back while the program
    /// does nothing. Without it that happens when the program next needs much, and also, for what was
    /// freed only now, before the heap grows. An allocation starts the thread once 8 MiB are in use. It sleeps for half
    /// the delay between two looks while anything is idle, then until 2 MiB were freed, and ends when less than 8 MiB are
    /// in use or no other thread uses the heap. Signals do not reach it, and it keeps to the processors of the main
    /// thread. A program that must stay single-threaded (for `unshare` or
    /// `setns`) or forbids itself to start threads says `false`.
    #[must_use]
    pub const fn with_background_purge(self, background: bool) -> Self {
        Self(Config {
            background,
            ..self.0
        })
    }

    /// Lets whoever starts the program change the configuration, by variables of the environment. They are read when the
    /// heap is first asked for more than a thread has at hand. A value that is not understood is
    /// said on standard error and ignored; all are, where the program has rights that its user has not.
    ///
    /// | variable | values |
    /// |---|---|
    /// | `LARDER_MODE` | `balanced`, `speed`, `memory`, `hardened` or `checking`: what [`new`](Self::new), [`speed`](Self::speed), [`memory`](Self::memory), [`hardened`](Self::hardened) and [`checking`](Self::checking) choose |
    /// | `LARDER_PURGE_AFTER` | milliseconds, or `never` |
    /// | `LARDER_BACKGROUND_PURGE` | `yes` or `no` |
    /// | `LARDER_HUGE_PAGES` | MiB from which on they are asked for, or `never` |
    /// | `LARDER_ON_MISUSE` | `abort` or `report`: an [`OnMisuse`] |
    /// | `LARDER_LEAKS` | `yes` or `no`: [`with_leaks`](Self::with_leaks) |
    /// | `LARDER_STATS` | `yes` or `no`: [`with_stats`](Self::with_stats) |
    /// | `LARDER_STACK_FRAMES` | a number up to 32: [`with_stack_frames`](Self::with_stack_frames) |
    /// | `LARDER_GUARD` | a number above 0, or `never`: [`with_guard_pages`](Self::with_guard_pages) |
    /// | `LARDER_GUARD_FAULTS` | `yes` or `no`: [`with_fault_reports`](Self::with_fault_reports) |
    #[cfg(unix)]
    #[must_use]
    pub const fn with_environment(self) -> Self {
        Self(Config {
            environment: true,
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

    /// A block of at least `bytes` bytes, at a multiple of 16, that [`free`](Self::free) takes: what C calls
    /// `malloc`. Null if there is no memory; `errno` says so then, as it does for the other verbs of C below.
    #[inline]
    #[must_use]
    pub fn malloc(&self, bytes: usize) -> *mut u8 {
        if let Some(bin) = c_bin(bytes) {
            // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
            let block = unsafe { CacheBin::pop(bin) };
            if !block.is_null() {
                return block;
            }
        }
        cold_path::malloc(bytes, &self.0)
    }

    /// A zeroed block, else like that of [`malloc`](Self::malloc).
    #[inline]
    #[must_use]
    pub fn malloc_zeroed(&self, bytes: usize) -> *mut u8 {
        if let Some(bin) = c_bin(bytes) {
            // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
            let block = unsafe { CacheBin::pop(bin) };
            if !block.is_null() {
                // SAFETY: the block is at least that long.
                unsafe { block.write_bytes(0, bytes) };
                return block;
            }
        }
        cold_path::malloc_zeroed(bytes, &self.0)
    }

    /// Frees a block by its address alone, which costs a few instructions more than a free with the
    /// layout. Null is no block, and stays so. Ends the process with a message for addresses outside the heap, inside
    /// blocks (between 8 KiB and 128 KiB mostly), and for the block of its class that this thread freed last.
    ///
    /// # Safety
    /// The block is one of this heap, from whichever of its verbs but those of the values of `Heap`, and
    /// given up by the caller.
    #[inline]
    pub unsafe fn free(&self, block: *mut u8) {
        if let Some(class) = PROCESS.class_in_first(block)
            && may_start(class, block)
        {
            let cache = tls::cache();
            // SAFETY: the thread's own cache, or one that stays empty (LOCAL1).
            let is_new = unsafe { CacheBin::newest(ThreadCache::place(cache, class)) } != block;
            // SAFETY: the thread's own cache, or one without room (LOCAL1); the block is the caller's.
            if is_new && unsafe { ThreadCache::push(cache, class, block) } {
                return;
            }
        }
        // SAFETY: null or a block of the heap, which the caller gives up and no bin took.
        unsafe { free_without_layout(block) };
    }

    /// The block with another length and the contents that fit, here or elsewhere: what C calls `realloc`. It stays
    /// where it is if it is long enough and not twice as long as needed. Null if there is no memory, or no
    /// block of this heap starts there; the block is as it was then.
    ///
    /// # Safety
    /// The conditions of [`free`](Self::free). The block is given up if the answer is not null.
    #[must_use]
    pub unsafe fn resize(&self, block: *mut u8, bytes: usize) -> *mut u8 {
        // SAFETY: the caller gives the block up if it gets another. Each of the two finds out
        // whether a block starts there.
        unsafe {
            match PROCESS.tuning.mode() {
                Mode::Hardened => return hardened::resize(block, None, bytes, &self.0),
                Mode::Guarded if guard_pages::has(block) => {
                    return guard_pages::resize(block, None, bytes, |bytes| self.malloc(bytes));
                }
                Mode::Guarded | Mode::Plain => {}
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

    /// Finds misuse if the heap is hardened and a block that the program has was allocated with
    /// another length or alignment: for callers that free by address and length. Alignments up to 16 count as one. Does
    /// nothing else.
    #[inline(always)]
    pub fn check_layout(&self, block: *mut u8, bytes: usize, align: usize) {
        if PROCESS.tuning.is_hardened() {
            hardened::check_layout(block, bytes, align, &self.0);
        }
    }

    /// How many bytes of a block the program may use: at least as many as it asked for; hardened, as many. `None` if
    /// no block of this heap starts there. O(1), and no lock; free blocks of a span are
    /// not told from others, unless the heap is hardened.
    pub fn usable_size(&self, block: *const u8) -> Option<usize> {
        let block = block.cast_mut();
        match PROCESS.tuning.mode() {
            Mode::Hardened => hardened::usable_size(block),
            Mode::Guarded if guard_pages::has(block) => guard_pages::usable_size(block),
            Mode::Guarded | Mode::Plain => find(block).map(|(_, bytes)| bytes),
        }
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

/// The calling thread's bin of a common layout in that cache, or `None` for others.
#[inline(always)]
fn common_bin(layout: Layout, cache: fn() -> *mut ThreadCache) -> Option<*mut CacheBin> {
    if !SizeClass::is_common(layout.size(), layout.align()) {
        // Boxed words: for sizes that the compiler knows.
        return match layout.size() == 8 && layout.align() == 8 {
            true => Some(ThreadCache::place(cache(), SizeClass::EIGHT)),
            false => None,
        };
    }
    Some(ThreadCache::place_of_common(cache(), layout.size()))
}

/// No block is longer: with its alignment an address space holds it.
const MAX_BYTES: usize = isize::MAX as usize - 15;

/// The calling thread's bin for a size that C asks for.
#[inline(always)]
fn c_bin(bytes: usize) -> Option<*mut CacheBin> {
    SizeClass::is_common(bytes, 1).then(|| ThreadCache::place_of_common(tls::cache(), bytes))
}

// SAFETY: blocks of a class are at least as large and aligned as the layout and in one place at a
// time (SLOT, SPAN, REMOTE, SET); large blocks are chunks of a BFC, which do not overlap (ARENA3). Nothing panics
// or unwinds.
#[cfg(not(miri))]
unsafe impl GlobalAlloc for Larder {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(bin) = common_bin(layout, tls::cache) {
            // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
            let block = unsafe { CacheBin::pop(bin) };
            if !block.is_null() {
                return block;
            }
        }
        cold_path::alloc(layout, &self.0)
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
        if let Some(bin) = common_bin(layout, tls::cache) {
            // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
            let block = unsafe { CacheBin::pop(bin) };
            if !block.is_null() {
                // SAFETY: the block is at least that long.
                unsafe { block.write_bytes(0, layout.size()) };
                return block;
            }
        }
        cold_path::alloc_zeroed(layout, &self.0)
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller passes a size that is valid for the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: a block of the heap with this layout, which the caller gives up for another; the
        // new size is not 0.
        unsafe {
            match PROCESS.tuning.mode() {
                Mode::Plain => self.realloc_plain(block, layout, new),
                Mode::Guarded | Mode::Hardened => self.realloc_watched(block, layout, new),
            }
        }
    }
}

impl Larder {
    /// Resizes a block that has no guard pages, in a heap that is not hardened.
    ///
    /// # Safety
    /// `block` is a block of the heap with this layout; `new` has its alignment, and a size that is
    /// not 0. The caller gives the block up if the answer is not null.
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
