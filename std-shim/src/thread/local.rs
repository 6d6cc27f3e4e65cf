//! [`Local`]: the heap state of one thread, and the slow paths of its verbs.
//!
//! ```text
//!   Fresh ──a few slow paths──► Borrowing ──► Attached (has a heap, cache in use) ──thread ends──► Borrowing
//! ```
//! A thread is Borrowing while its last destructors run, and while the system is asked to report
//! its end. It may then still allocate and free: it borrows a heap for each such call, so that
//! nothing depends on the order of destructors, nothing leaks, and a system that allocates inside
//! that request does not recurse here. A Fresh thread also borrows a few times, because its call
//! may be the last of its life, after its end has been reported.
//!
//! # Invariants
//! * LOCAL1 `cache` is the cache of the thread's heap if the thread is Attached and the heap is not
//!   hardened. Otherwise it is [`NO_CACHE`], which is always empty and has no room, so that every
//!   verb takes its slow path.
//! * LOCAL2 an Attached thread owns its heap (HEAP2) and parks it when it ends.
//! * LOCAL3 `cache_of_frees` is `cache`, or [`NO_CACHE`] if some blocks have guard pages: a free
//!   with a layout then takes its slow path, which checks the address.

use core::cell::UnsafeCell;
use core::ptr;

use larder_core::small::{
    CLASSES, CacheBin, Chain, Fresh, Pages, RemoteQueue, SizeClass, Span, SpanSet, ThreadCache,
};

use crate::config::HeapMode;
use crate::os::Os;
use crate::process::{PagesOf, Process, ThreadHeap};
use crate::thread::end::ExitHook;

/// Milliseconds after which a thread in a slow path flushes its cache again. A block that is only
/// freed into a cache and allocated from there stays where it is, so spans that the program no
/// longer needs would never become empty. A refill from spans takes blocks of the span that was
/// full most recently, and the other spans drain.
const CACHE_MS: u64 = 128;

/// Maximum number of cached blocks that one slow path returns during a flush. Each costs one or two
/// cache misses; all together cost some ten microseconds.
const FLUSHED: usize = 128;

/// A shared, always empty cache: read by all threads, never written.
#[repr(transparent)]
pub(crate) struct NoCache(UnsafeCell<ThreadCache>);

// SAFETY: it is never written (LOCAL1).
unsafe impl Sync for NoCache {}

/// The cache of threads without a heap.
pub(crate) static NO_CACHE: NoCache = NoCache(UnsafeCell::new(ThreadCache::always_empty()));

/// The heap state of one thread. The fast paths read the first two fields and nothing else.
#[repr(C)]
pub(crate) struct Local {
    pub(crate) cache: *mut ThreadCache,
    /// The cache that frees with a layout use (LOCAL3).
    pub(crate) cache_of_frees: *mut ThreadCache,
    /// The heap of an Attached thread, or null.
    heap: *const ThreadHeap,
    borrows: bool,
    /// Whether the thread's stack is being walked.
    walking: bool,
    /// The [`period`] of the last flush, or the one in which the thread got the cache.
    period: u8,
    /// Number of classes at the end of the cache that the current flush has not reached.
    unflushed: u8,
    /// Number of calls that requested a heap and borrowed one.
    loans: u8,
    /// Frees with a layout since the last flush for guard pages.
    frees: u32,
}

/// A stage in the life of a thread.
enum ThreadState {
    Fresh,
    Attached(&'static ThreadHeap),
    Borrowing,
}

impl Local {
    /// Creates the state of a thread that has not allocated yet.
    pub(crate) const fn new() -> Self {
        Self {
            cache: NO_CACHE.0.get(),
            cache_of_frees: NO_CACHE.0.get(),
            heap: ptr::null(),
            borrows: false,
            walking: false,
            period: 0,
            unflushed: 0,
            loans: 0,
            frees: 0,
        }
    }

    fn state(&self) -> ThreadState {
        // SAFETY: null, or a heap, which is never freed.
        match unsafe { self.heap.as_ref() } {
            Some(heap) => ThreadState::Attached(heap),
            None if self.borrows => ThreadState::Borrowing,
            None => ThreadState::Fresh,
        }
    }

    /// Sets whether the thread's stack is being walked. Returns the previous value.
    pub(crate) fn set_walking(&mut self, walking: bool) -> bool {
        core::mem::replace(&mut self.walking, walking)
    }

    /// Returns whether the thread's stack is being walked, or names of functions are looked up.
    pub(crate) const fn is_walking(&self) -> bool {
        self.walking
    }

    /// Counts a free. Returns true for every `of`-th free.
    pub(crate) const fn counts_free(&mut self, of: u32) -> bool {
        self.frees += 1;
        let is_last = self.frees >= of;
        if is_last {
            self.frees = 0;
        }
        is_last
    }

    /// Returns whether the block is one of the last that this thread freed. O(1), a few dozen
    /// accesses.
    pub(crate) fn has(&self, class: SizeClass, block: *mut u8) -> bool {
        let mut has = false;
        self.with_cache(|cache| {
            // SAFETY: a cache holds free blocks (SLOT1).
            has = unsafe { cache.has(class, block) };
        });
        has
    }

    /// Allocates a block when its bin is empty.
    pub(crate) fn refill<O: Os>(
        &mut self,
        class: SizeClass,
        process: &'static Process<O>,
    ) -> Option<Fresh> {
        self.with_parts(process, |owner, set, cache, pages| {
            let bin = cache.of(class);
            // An adopted cache may have a block.
            // SAFETY: a cache holds free blocks (SLOT1).
            let block = unsafe { CacheBin::pop_linked(bin, set.links()) };
            if let Some(block) = ptr::NonNull::new(block) {
                let clean = false;
                return Some(Fresh { block, clean });
            }
            // SAFETY: the heap's own remote-free queue, and the cache that goes with it.
            unsafe { set.refill(owner, class, cache, pages) }
        })
        .flatten()
    }

    /// Frees a block when its bin is full or the thread has no bin. Returns the bytes that went
    /// beyond the bin, including blocks moved out of it.
    ///
    /// # Safety
    /// `block` is a block of this class, given up by the caller.
    pub(crate) unsafe fn free_slow<O: Os>(
        &mut self,
        class: SizeClass,
        block: *mut u8,
        process: &'static Process<O>,
    ) -> usize {
        let passed_blocks = self.with_parts(process, |owner, set, cache, pages| {
            // An adopted cache may have room.
            // SAFETY: a block of the bin's class, which the caller gives up.
            if unsafe { CacheBin::push_linked(cache.of(class), block, set.links()) } {
                return 0;
            }
            let had = cache.len(class);
            // SAFETY: the heap's own remote-free queue, and the cache that goes with it.
            unsafe { set.make_room(owner, class, cache, pages) };
            let bin = cache.of(class);
            let passed = had - bin.len();
            // SAFETY: a block of the bin's class, which the caller gives up and the bin did not
            // take before.
            if unsafe { CacheBin::push_linked(bin, block, set.links()) } {
                return passed;
            }
            // SAFETY: still the caller's block.
            unsafe { set.free(owner, block, pages) };
            passed + 1
        });
        let passed_blocks = passed_blocks.unwrap_or_else(|| {
            // There is no memory for a heap for this thread: the block goes to its owner.
            // SAFETY: the caller's block.
            unsafe { give_to_owner(block, process) };
            1
        });
        passed_blocks * class.block_bytes()
    }

    /// Starts flushing the cache if that is due, once in [`CACHE_MS`]. The cache of a hardened heap
    /// is not flushed: such a heap follows no link of a block that was not checked.
    fn begin_flush<O: Os>(&mut self, process: &Process<O>) {
        if process.tuning.is_hardened() {
            return;
        }
        let period = period(&process.os);
        if core::mem::replace(&mut self.period, period) != period {
            self.unflushed = CLASSES as u8;
        }
    }

    /// Ends the thread: its heap goes to the pool with the blocks in its cache, except large ones and
    /// those of other heaps' spans.
    pub(crate) fn end<O: Os>(&mut self, process: &'static Process<O>) {
        let state = self.state();
        // A hardened heap follows no link before it has checked the block.
        if !process.tuning.is_hardened() {
            self.with_own(process, |owner, set, cache| {
                SpanSet::flush_large(cache, &mut process.pages());
                // SAFETY: the set's own remote-free queue, and the cache that goes with it.
                unsafe { set.flush_foreign(owner, cache, &mut process.pages()) };
            });
        }
        *self = Self {
            borrows: true,
            ..Self::new()
        };
        if let ThreadState::Attached(heap) = state {
            // SAFETY: the thread's own heap (LOCAL2), no longer used by it.
            unsafe { process.park(heap) };
            process.purger.thread_ended();
            process.divide_cache_bytes();
        }
    }

    /// Flushes the cache and receives blocks that others freed.
    pub(crate) fn flush<O: Os>(&mut self, process: &'static Process<O>) {
        self.with_own(process, |owner, set, cache| {
            // SAFETY: the set's own remote-free queue, and the cache that goes with it.
            unsafe { set.flush(owner, cache, &mut process.pages()) };
        });
    }

    /// Frees the large blocks in the cache.
    pub(crate) fn flush_large<O: Os>(&mut self, process: &'static Process<O>) {
        // SAFETY: the thread's own cache, or one that stays empty (LOCAL1).
        if unsafe { ThreadCache::large_bytes(self.cache) } > 0 {
            self.with_own(process, |_, _, cache| {
                SpanSet::flush_large(cache, &mut process.pages());
            });
        }
    }

    /// Caches a large block that [`Process::cache`] did not take, if that was because another thread
    /// has taken others from this thread, or because this thread has more than its share. Returns
    /// whether the block is cached.
    ///
    /// # Safety
    /// If a block starts there, the caller gives it up.
    pub(crate) unsafe fn cache_large<O: Os>(
        &mut self,
        block: *mut u8,
        process: &'static Process<O>,
    ) -> bool {
        let cache_of_frees = self.cache_of_frees;
        // SAFETY: the thread's own cache, or one without room (LOCAL1, LOCAL3).
        let has_more = unsafe { ThreadCache::large_bytes(cache_of_frees) } > process.large_share();
        if has_more {
            // There are more threads than before, or the process is near a memory limit.
            self.flush_large(process);
        }
        // SAFETY: the thread's own cache, or one without room (LOCAL1, LOCAL3).
        let has_lost = unsafe { ThreadCache::has_lost_long(cache_of_frees) };
        match self.state() {
            // Other caches are not used (LOCAL3).
            ThreadState::Attached(heap)
                if (has_more || has_lost) && ptr::eq(heap.cache(), cache_of_frees) =>
            {
                // SAFETY: the thread's own heap (LOCAL2).
                unsafe { heap.restore_long() };
                // SAFETY: the thread's own cache; the caller gives the block up.
                unsafe { process.cache(cache_of_frees, block) > 0 }
            }
            _ => false,
        }
    }

    /// Flushes the parts of the cache and of the transfer caches behind it whose turn it is, for a
    /// block of `bytes` bytes.
    pub(crate) fn flush_some<O: Os>(&mut self, bytes: usize, process: &'static Process<O>) {
        self.with_own(process, |owner, set, cache| {
            if set.flush_is_due() {
                // SAFETY: the set's own remote-free queue, and the cache that goes with it.
                unsafe { set.flush_some(owner, cache, bytes, &mut process.pages()) };
            }
        });
    }

    /// Runs `f` with the cache of an Attached thread.
    fn with_cache(&self, f: impl FnOnce(&ThreadCache)) {
        if let ThreadState::Attached(heap) = self.state() {
            // SAFETY: the cache of the thread's own heap (LOCAL2), whose lock is held (HEAP4).
            let run = |_, _: &mut SpanSet| f(unsafe { &*heap.cache() });
            // SAFETY: the set is not used.
            unsafe { heap.with(run) };
        }
    }

    /// Runs `f` with a set for an Attached thread, the set's remote-free queue, and the thread's
    /// cache.
    fn with_own<O: Os>(
        &self,
        process: &'static Process<O>,
        mut f: impl FnMut(*const RemoteQueue, &mut SpanSet, &mut ThreadCache),
    ) {
        if let ThreadState::Attached(heap) = self.state() {
            process.wait_for_fork();
            let run = |owner, set: &mut SpanSet| {
                // SAFETY: the cache of the thread's own heap (LOCAL2), all of which belongs to the
                // thread here (HEAP4).
                f(owner, set, unsafe { &mut *heap.cache() });
            };
            // SAFETY: the thread's own heap (LOCAL2).
            unsafe { process.pool.with_set(heap, run) };
        }
    }

    /// Returns the number of cached blocks of a class.
    pub(crate) fn ready_blocks(&self, class: SizeClass) -> usize {
        let mut blocks = 0;
        self.with_cache(|cache| blocks = cache.len(class));
        blocks
    }

    /// Returns the heap of an attached thread, or null.
    pub(crate) const fn heap(&self) -> *const ThreadHeap {
        self.heap
    }

    /// Adopts a heap for a Fresh thread that has requested one `loans` times before. The thread is
    /// Borrowing until [`attach`](Self::attach). Returns `None` for other threads, or if there is
    /// no memory for a heap.
    pub(crate) fn begin_attach<O: Os>(
        &mut self,
        loans: u8,
        process: &'static Process<O>,
    ) -> Option<&'static ThreadHeap> {
        let ThreadState::Fresh = self.state() else {
            return None;
        };
        // Does not apply to the first thread, which cannot be ending.
        if self.loans < loans && process.purger.threads() > 0 {
            self.loans += 1;
            return None;
        }
        let heap = process.adopt()?;
        self.borrows = true;
        Some(heap)
    }

    /// Makes the heap of `begin_attach` the thread's own, if the system reports the thread's end.
    /// Otherwise the thread stays Borrowing, or is Fresh again if the system may report its end
    /// later.
    pub(crate) fn attach<O: Os>(
        &mut self,
        heap: &'static ThreadHeap,
        hook: ExitHook,
        process: &'static Process<O>,
    ) {
        if hook == ExitHook::Yes {
            process.purger.thread_began();
            process.divide_cache_bytes();
            self.heap = heap;
            self.period = period(&process.os);
            if !process.tuning.is_hardened() {
                self.cache = heap.cache();
            }
            if process.tuning.mode() == HeapMode::Plain {
                self.cache_of_frees = heap.cache();
            }
            self.borrows = false;
        } else {
            self.borrows = hook == ExitHook::Never;
            // SAFETY: from `begin_attach`, which adopted it for this thread.
            unsafe { process.park(heap) };
        }
    }

    /// Runs `f` with the parts of the thread's heap and its cache, after flushing part of the cache
    /// if that is due ([`CACHE_MS`]). Returns `None` if there is no memory for a heap.
    #[cold]
    #[inline(never)]
    fn with_parts<O: Os, R>(
        &mut self,
        process: &'static Process<O>,
        mut f: impl FnMut(*const RemoteQueue, &mut SpanSet, &mut ThreadCache, &mut PagesOf<O>) -> R,
    ) -> Option<R> {
        process.wait_for_fork();
        let mut pages = process.pages();
        let mut run = |heap: &'static ThreadHeap, unflushed: &mut u8| {
            let run = |owner, set: &mut SpanSet| {
                // SAFETY: the caller owns the heap, whose lock is held, and uses its cache only
                // here.
                let cache = unsafe { &mut *heap.cache() };
                if *unflushed > 0 {
                    let (from, mut left) = (CLASSES - usize::from(*unflushed), FLUSHED);
                    // SAFETY: the heap's own remote-free queue, and the cache that goes with it.
                    let next = unsafe { set.flush_from(from, owner, cache, &mut left, &mut pages) };
                    *unflushed = (CLASSES - next) as u8;
                }
                f(owner, set, cache, &mut pages)
            };
            // SAFETY: the caller owns the heap.
            unsafe { process.pool.with_set(heap, run) }
        };
        if let ThreadState::Attached(heap) = self.state() {
            self.begin_flush(process);
            return Some(run(heap, &mut self.unflushed));
        }
        // Adopts a heap for this one call.
        let heap = process.adopt()?;
        let result = run(heap, &mut 0);
        // SAFETY: adopted above.
        unsafe { process.park(heap) };
        Some(result)
    }
}

/// Returns the current period of [`CACHE_MS`].
fn period(os: &impl Os) -> u8 {
    // The period may wrap around.
    (os.coarse_ms() / CACHE_MS) as u8
}

/// Frees a block without a heap.
///
/// # Safety
/// `block` is a block with a class, given up by the caller.
unsafe fn give_to_owner<O: Os>(block: *mut u8, process: &'static Process<O>) {
    let mut pages = process.pages();
    match pages.span_of(block) {
        // SAFETY: a block of this span, the caller's.
        Some(span) => unsafe { Span::give_remote(span.as_ptr(), Chain::one(block.cast())) },
        // SAFETY: a block outside all spans was allocated by `alloc_block`, and is the caller's to
        // free.
        None => unsafe { pages.free_block(block) },
    }
}

const _: () = assert!(size_of::<Local>() <= 64, "thread-local memory is scarce");
const _: () = assert!(!core::mem::needs_drop::<Local>());
