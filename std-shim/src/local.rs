//! [`Local`]: what one thread keeps at hand, and the slow paths of its verbs.
//!
//! ```text
//!   Fresh ──first slow path──► Attached (has a heap, bins in use) ──thread ends──► Ended
//! ```
//! A thread is Ended while its last destructors run. They may still allocate and free: then a heap
//! is borrowed for that one call, so that nothing depends on the order of destructors and nothing
//! is left behind.
//!
//! # Invariants
//! * T1 the bins of a thread that is not Attached are all zero.
//! * T2 an Attached thread owns its heap (H2) and will park it when it ends, or is Ended at once.

use std::ptr::{self, NonNull};

use larder_core::small::{Bins, Chain, Fresh, Mailbox, Pages, Parts, SizeClass, Span};

use crate::os::Os;
use crate::process::{Heap, PagesOf, Process};

/// What one thread keeps at hand. All zero at first.
pub(crate) struct Local {
    bins: Bins,
    state: State,
}

/// Where the thread is in its life.
#[derive(Clone, Copy)]
enum State {
    Fresh,
    Attached(&'static Heap),
    Ended,
}

impl Local {
    /// The local part of a thread that has not allocated yet.
    pub(crate) const fn new() -> Self {
        Self {
            bins: Bins::EMPTY,
            state: State::Fresh,
        }
    }

    /// Takes a ready block, or null.
    #[inline(always)]
    pub(crate) fn pop(&mut self, class: SizeClass) -> *mut u8 {
        // SAFETY: bins hold free blocks (L1).
        unsafe { self.bins.of(class).pop() }
    }

    /// Puts a block in its bin; `false` if there is no room.
    ///
    /// # Safety
    /// `block` is a block of this class, given up by the caller.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, class: SizeClass, block: *mut u8) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.bins.of(class).push(block) }
    }

    /// Whether the block is one of the last that this thread freed. O(1), a few dozen accesses.
    pub(crate) fn has(&self, class: SizeClass, block: *mut u8) -> bool {
        // SAFETY: bins hold free blocks (L1).
        unsafe { self.bins.has(class, block) }
    }

    /// Finds a block when the bin is empty.
    pub(crate) fn refill<O: Os>(
        &mut self,
        class: SizeClass,
        process: &'static Process<O>,
        at_exit: impl FnOnce() -> bool,
    ) -> Option<Fresh> {
        self.with_parts(process, at_exit, |owner, parts, bins, pages| {
            let bin = bins.of(class);
            // Adopted bins may have a block.
            // SAFETY: bins hold free blocks (L1).
            if let Some(block) = NonNull::new(unsafe { bin.pop() }) {
                let clean = false;
                return Some(Fresh { block, clean });
            }
            // SAFETY: the heap's own mailbox, and bins that go with it.
            unsafe { parts.set.refill(owner, class, bin, pages) }
        })
        .flatten()
    }

    /// Frees a block when its bin is full.
    ///
    /// # Safety
    /// As [`push`](Self::push).
    pub(crate) unsafe fn free_slow<O: Os>(
        &mut self,
        class: SizeClass,
        block: *mut u8,
        process: &'static Process<O>,
        at_exit: impl FnOnce() -> bool,
    ) {
        let done = self.with_parts(process, at_exit, |owner, parts, bins, pages| {
            let bin = bins.of(class);
            // SAFETY: the heap's own mailbox, and bins that go with it.
            unsafe { parts.set.make_room(owner, class, bin, pages) };
            // SAFETY: the caller's promise.
            if !unsafe { bin.push(block) } {
                // SAFETY: still the caller's block.
                unsafe { parts.set.free(owner, block, pages) };
            }
        });
        if done.is_none() {
            // No memory for a heap of our own: the block's owner gets it.
            // SAFETY: the caller's block.
            unsafe { give_to_owner(block, process) };
        }
    }

    /// Ends the thread: its heap goes to the pool with the bins.
    pub(crate) fn end<O: Os>(&mut self, process: &'static Process<O>) {
        if let State::Attached(heap) = self.state {
            process.pool.park(heap, self.bins.take_all());
        }
        self.state = State::Ended;
    }

    /// Empties the bins and receives what others freed.
    pub(crate) fn flush<O: Os>(&mut self, process: &'static Process<O>) {
        let Local { bins, state } = self;
        if let State::Attached(heap) = state {
            heap.with(|owner, parts| {
                // SAFETY: the heap's own mailbox, and bins that go with it.
                unsafe { parts.set.flush(owner, bins, &mut PagesOf(process)) };
            });
        }
    }

    /// Blocks of a class that lie ready in this thread.
    pub(crate) const fn ready_blocks(&self, class: SizeClass) -> usize {
        self.bins.len(class)
    }

    /// The heap of an attached thread, or null.
    pub(crate) fn heap(&self) -> *const Heap {
        match self.state {
            State::Attached(heap) => heap,
            _ => ptr::null(),
        }
    }

    /// Runs `f` with the parts of the thread's heap and the bins that go with it. `None` if there
    /// is no memory for a heap. `at_exit` arranges for [`end`](Self::end) to be called; if it
    /// cannot, the thread is Ended at once.
    #[cold]
    #[inline(never)]
    fn with_parts<O: Os, R>(
        &mut self,
        process: &'static Process<O>,
        at_exit: impl FnOnce() -> bool,
        f: impl FnOnce(*const Mailbox, &mut Parts, &mut Bins, &mut PagesOf<O>) -> R,
    ) -> Option<R> {
        if let State::Fresh = self.state {
            self.attach(process, at_exit)?;
        }
        let mut pages = PagesOf(process);
        if let State::Attached(heap) = self.state {
            let bins = &mut self.bins;
            return Some(heap.with(|owner, parts| f(owner, parts, bins, &mut pages)));
        }
        let (heap, mut bins) = process.adopt()?;
        let result = heap.with(|owner, parts| f(owner, parts, &mut bins, &mut pages));
        process.pool.park(heap, bins);
        Some(result)
    }

    /// Gets a heap for a thread that has none.
    fn attach<O: Os>(
        &mut self,
        process: &'static Process<O>,
        at_exit: impl FnOnce() -> bool,
    ) -> Option<()> {
        let (heap, bins) = process.adopt()?;
        if !at_exit() {
            process.pool.park(heap, bins);
            self.state = State::Ended;
            return Some(());
        }
        self.bins = bins;
        let place = &raw mut self.bins;
        heap.with(|_, parts| parts.bins = place);
        self.state = State::Attached(heap);
        Some(())
    }
}

/// Frees a block without a heap.
///
/// # Safety
/// `block` is a block with a class, given up by the caller.
unsafe fn give_to_owner<O: Os>(block: *mut u8, process: &'static Process<O>) {
    let mut pages = PagesOf(process);
    match pages.span_of(block) {
        // SAFETY: a block of this span, the caller's.
        Some(span) => unsafe { Span::give_remote(span.as_ptr(), Chain::one(block.cast())) },
        // SAFETY: what lies in no span was given singly.
        None => unsafe { pages.free_block(block) },
    }
}
