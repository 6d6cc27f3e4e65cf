//! [`ScopeNode`]: the counters of one scope, and their references.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use larder_core::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The counts of one scope. Bytes are requested bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ScopeCounts {
    /// Blocks allocated.
    pub allocations: u64,
    /// Bytes of these blocks.
    pub allocated_bytes: u64,
    /// Allocated blocks that are not freed yet.
    pub live_blocks: u64,
    /// Bytes of the live blocks.
    pub live_bytes: u64,
    /// The peak of [`live_bytes`](Self::live_bytes).
    pub high_water_bytes: u64,
    /// Allocations and reallocs that returned null.
    pub failures: u64,
    /// Frees, inside the scope, of blocks that were allocated in no scope.
    pub foreign_frees: u64,
    /// Bytes of the scope's blocks that were freed after its end.
    pub freed_after_end_bytes: u64,
    /// Blocks that are not followed, because there was no memory to record their scope. They count
    /// as allocated but not as live.
    pub lost_blocks: u64,
}

/// The counts of a [`Scope`](crate::Scope) so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ScopeReport {
    /// The counts of the scope without the scopes begun inside it.
    pub own: ScopeCounts,
    /// The counts of the scope with all scopes begun inside it.
    pub total: ScopeCounts,
    /// Whether the scope's guard has been dropped or no longer counts.
    pub ended: bool,
    /// Whether a scope around this one ended first, or this scope's guard was forgotten. Since
    /// then, nothing has been counted here on that thread.
    pub cut_short: bool,
}

impl fmt::Display for ScopeReport {
    /// Writes the total on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = &self.total;
        write!(
            f,
            "{} blocks of {} bytes, at most {} bytes at once; {} blocks of {} bytes live",
            total.allocations,
            total.allocated_bytes,
            total.high_water_bytes,
            total.live_blocks,
            total.live_bytes
        )?;
        let rest = [
            (total.freed_after_end_bytes, "bytes freed after the end"),
            (total.foreign_frees, "frees of blocks from outside"),
            (total.failures, "failures"),
            (total.lost_blocks, "blocks not followed"),
        ];
        for (count, what) in rest.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "; {count} {what}")?;
        }
        f.write_str(if self.cut_short { "; cut short" } else { "" })
    }
}

/// [`ScopeCounts`] while counting. Every access is relaxed: each number is exact, and a reader
/// that needs all numbers of one moment has joined the counting threads.
#[derive(Default)]
struct ScopeCounters {
    allocations: AtomicU64,
    allocated_bytes: AtomicU64,
    live_blocks: AtomicU64,
    live_bytes: AtomicU64,
    high_water_bytes: AtomicU64,
    failures: AtomicU64,
    foreign_frees: AtomicU64,
    freed_after_end_bytes: AtomicU64,
    lost_blocks: AtomicU64,
}

fn add(counter: &AtomicU64, number: u64) -> u64 {
    counter.fetch_add(number, Ordering::Relaxed) + number
}

impl ScopeCounters {
    fn allocated(&self, bytes: u64) {
        add(&self.allocations, 1);
        add(&self.allocated_bytes, bytes);
        add(&self.live_blocks, 1);
        let live = add(&self.live_bytes, bytes);
        self.high_water_bytes.fetch_max(live, Ordering::Relaxed);
    }

    fn gone(&self, bytes: u64) {
        self.live_blocks.fetch_sub(1, Ordering::Relaxed);
        self.live_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn counts(&self) -> ScopeCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ScopeCounts {
            allocations: read(&self.allocations),
            allocated_bytes: read(&self.allocated_bytes),
            live_blocks: read(&self.live_blocks),
            live_bytes: read(&self.live_bytes),
            high_water_bytes: read(&self.high_water_bytes),
            failures: read(&self.failures),
            foreign_frees: read(&self.foreign_frees),
            freed_after_end_bytes: read(&self.freed_after_end_bytes),
            lost_blocks: read(&self.lost_blocks),
        }
    }
}

const ENDED: u32 = 1;
const CUT_SHORT: u32 = 2;

/// The counters of one scope, reached through a [`NodeRef`].
pub(super) struct ScopeNode {
    /// Number of [`NodeRef`]s (TRACK2).
    refs: AtomicUsize,
    /// The scope inside which this one was begun.
    parent: Option<NodeRef>,
    own: ScopeCounters,
    total: ScopeCounters,
    flags: AtomicU32,
}

impl ScopeNode {
    /// Runs `f` for the scope's own counters, and for the totals of the scope and of all scopes
    /// around it. Passes whether the counters' scope has ended.
    fn each(&self, f: impl Fn(&ScopeCounters, bool)) {
        f(&self.own, self.has(ENDED));
        let mut node = Some(self);
        while let Some(here) = node {
            f(&here.total, here.has(ENDED));
            node = here.parent.as_deref();
        }
    }

    pub(super) fn allocated(&self, bytes: usize) {
        self.each(|counters, _| counters.allocated(bytes as u64));
    }

    pub(super) fn freed(&self, bytes: usize) {
        self.each(|counters, ended| {
            counters.gone(bytes as u64);
            if ended {
                add(&counters.freed_after_end_bytes, bytes as u64);
            }
        });
    }

    /// Counts a block that is no longer followed.
    pub(super) fn lost(&self, bytes: usize) {
        self.each(|counters, _| {
            counters.gone(bytes as u64);
            add(&counters.lost_blocks, 1);
        });
    }

    pub(super) fn failed(&self) {
        self.each(|counters, _| {
            add(&counters.failures, 1);
        });
    }

    pub(super) fn freed_foreign(&self) {
        self.each(|counters, _| {
            add(&counters.foreign_frees, 1);
        });
    }

    pub(super) fn end(&self) {
        self.flags.fetch_or(ENDED, Ordering::Relaxed);
    }

    pub(super) fn cut_short(&self) {
        self.flags.fetch_or(ENDED | CUT_SHORT, Ordering::Relaxed);
    }

    fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    pub(super) fn report(&self) -> ScopeReport {
        ScopeReport {
            own: self.own.counts(),
            total: self.total.counts(),
            ended: self.has(ENDED),
            cut_short: self.has(CUT_SHORT),
        }
    }
}

/// Number of nodes that exist, for tests.
#[cfg(test)]
pub(super) static EXISTING: AtomicUsize = AtomicUsize::new(0);

/// A counted reference to a [`ScopeNode`] (TRACK2).
pub(super) struct NodeRef(NonNull<ScopeNode>);

// SAFETY: counters are atomic, and the thread that drops the last reference frees the node.
unsafe impl Send for NodeRef {}
// SAFETY: counters are atomic, and the thread that drops the last reference frees the node.
unsafe impl Sync for NodeRef {}

impl NodeRef {
    const LAYOUT: Layout = Layout::new::<ScopeNode>();

    /// Creates a node with nothing counted. Returns `None` if there is no memory.
    pub(super) fn new(parent: Option<Self>) -> Option<Self> {
        // SAFETY: the layout has a size.
        let place = unsafe { System.alloc(Self::LAYOUT) };
        let place = NonNull::new(place.cast::<ScopeNode>())?;
        // SAFETY: as large and aligned as requested, and ours.
        unsafe {
            place.write(ScopeNode {
                refs: AtomicUsize::new(1),
                parent,
                own: ScopeCounters::default(),
                total: ScopeCounters::default(),
                flags: AtomicU32::new(0),
            });
        }
        #[cfg(test)]
        EXISTING.fetch_add(1, Ordering::Relaxed);
        Some(Self(place))
    }

    /// Converts the reference to a plain pointer, for [`from_raw`](Self::from_raw).
    pub(super) const fn into_raw(self) -> *mut ScopeNode {
        let node = self.0.as_ptr();
        std::mem::forget(self);
        node
    }

    /// Returns the reference that `into_raw` converted, or `None` for null.
    ///
    /// # Safety
    /// Called at most once for each `into_raw`.
    pub(super) unsafe fn from_raw(node: *mut ScopeNode) -> Option<Self> {
        NonNull::new(node).map(Self)
    }
}

impl Deref for NodeRef {
    type Target = ScopeNode;

    fn deref(&self) -> &ScopeNode {
        // SAFETY: TRACK2: this reference keeps the node alive.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for NodeRef {
    fn clone(&self) -> Self {
        // Relaxed: this reference keeps the node alive.
        self.refs.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Drop for NodeRef {
    /// Drops the reference. O(1), and one step for each enclosing scope that only this one kept
    /// alive.
    fn drop(&mut self) {
        let mut node = self.0;
        loop {
            // SAFETY: TRACK2: the reference is counted.
            let refs = unsafe { &node.as_ref().refs };
            // Release: the counts of this reference come before the free; acquire: so do those of
            // all others.
            if refs.fetch_sub(1, Ordering::AcqRel) > 1 {
                return;
            }
            // SAFETY: this was the last reference, so no other code reaches the node.
            let gone = unsafe { node.read() };
            // SAFETY: from `System` with this layout, and moved out.
            unsafe { System.dealloc(node.as_ptr().cast(), Self::LAYOUT) };
            #[cfg(test)]
            EXISTING.fetch_sub(1, Ordering::Relaxed);
            let Some(parent) = gone.parent else {
                return;
            };
            // A loop instead of the parent's own drop, because scopes may be nested deeply.
            node = parent.0;
            std::mem::forget(parent);
        }
    }
}
