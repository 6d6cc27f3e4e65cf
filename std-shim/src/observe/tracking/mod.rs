//! [`Tracking`]: a decorator that counts the allocations of the sections of code that request it.
//!
//! ```text
//!   thread ── stack: frame ─► frame ─► ...      a frame is where a scope counts on this thread
//!                      └──────────┴──► node    counters, kept by references
//!   block of a scope ── table, by address ──► node
//! ```
//!
//! # Files
//! * `scope` the public types: [`Scope`], [`ScopeHandle`], [`Entered`], [`Scoped`], [`uncounted`]
//! * `stack` the scopes that a thread is in
//! * `node` the counters of one scope
//! * `blocks` the scope of each block
//!
//! # Invariants
//! * TRACK1 a frame is its thread's alone. The stack's numbers increase upward, and a number is
//!   never used again on its thread, so a scope that ends too late finds no frame.
//! * TRACK2 a node lives as long as it has a reference: a guard, a handle, a frame, a node begun
//!   inside it, or a live block in the table.
//! * TRACK3 a block is entered in the table before its allocation returns and is removed before its
//!   free begins, so an address never stands for two blocks.
//!
//! # Why it cannot re-enter itself
//! Nodes and frames come from `System`, the table lies in pages from the system, and the thread's
//! stack looks empty while an event is counted.

mod blocks;
mod node;
mod scope;
mod stack;
#[cfg(test)]
mod tests;

use std::alloc::{GlobalAlloc, Layout};

use node::NodeRef;

pub use node::{ScopeCounts, ScopeReport};
pub use scope::{Entered, Scope, ScopeHandle, Scoped, uncounted};

/// An allocator that counts, for each [`Scope`], the requests to `A` inside it.
///
/// ```
/// use larder::{Larder, Scope, Tracking};
///
/// #[global_allocator]
/// static HEAP: Tracking<Larder> = Tracking::new(Larder::new());
///
/// let scope = Scope::begin();
/// let kept = vec![0_u8; 200];
/// drop(vec![0_u8; 100]);
/// let report = scope.report();
/// assert_eq!(report.total.allocated_bytes, 300);
/// assert_eq!(report.total.high_water_bytes, 300);
/// assert_eq!(report.total.live_bytes, 200);
/// # drop(kept);
/// ```
///
/// # What is counted, and where
/// * An allocation is counted for the innermost scope of its thread and for all scopes around that
///   one ([`ScopeReport`] has both counts).
/// * A free, on any thread, is counted for the scope of its block, even after that scope has ended.
///   If a block that belongs to no scope is freed inside a scope, the free counts there as foreign.
/// * A realloc, in place or not, is counted as the allocation of a new block and the free of the
///   old one. If it fails, it counts as a failure, and the block stays in its scope.
/// * Sizes are the requested sizes.
///
/// All values of this type count for the same scopes. Blocks must be freed through the decorator
/// that allocated them.
///
/// # Cost
/// In a thread without a scope, an allocation costs one load of a thread-local and a branch, and a
/// free costs one more relaxed load while no block of any scope is live. Every other call costs a
/// search in a table behind one of 64 locks and, inside a scope, a few atomic additions for that
/// scope and each scope around it. A block of a scope takes 24 to 48 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tracking<A> {
    inner: A,
}

impl<A> Tracking<A> {
    /// Wraps `inner`.
    pub const fn new(inner: A) -> Self {
        Self { inner }
    }

    /// Returns the wrapped allocator.
    pub const fn inner(&self) -> &A {
        &self.inner
    }
}

/// Returns whether frees on this thread currently need no counting.
#[inline(always)]
fn idle() -> bool {
    !stack::is_inside() && !blocks::any()
}

/// Counts an allocation of `bytes` bytes.
#[cold]
#[inline(never)]
fn count_alloc(bytes: usize, alloc: impl FnOnce() -> *mut u8) -> *mut u8 {
    stack::counting(|node| {
        let block = alloc();
        match node {
            Some(node) if block.is_null() => node.failed(),
            Some(node) => follow(block, bytes, node),
            None => {}
        }
        block
    })
}

/// Counts a new block, and enters it in the table.
fn follow(block: *mut u8, bytes: usize, node: &NodeRef) {
    node.allocated(bytes);
    keep(block, bytes, node.clone());
}

/// Enters a counted block in the table.
fn keep(block: *mut u8, bytes: usize, node: NodeRef) {
    if let Err(node) = blocks::enter(block, node) {
        node.lost(bytes);
    }
}

/// Counts the free, inside `here`, of a block whose table entry had the node `owner`.
fn count_freed(owner: Option<NodeRef>, bytes: usize, here: Option<&NodeRef>) {
    match (owner, here) {
        (Some(owner), _) => owner.freed(bytes),
        (None, Some(here)) => here.freed_foreign(),
        (None, None) => {}
    }
}

#[cold]
#[inline(never)]
fn count_free(block: *mut u8, bytes: usize, free: impl FnOnce()) {
    stack::counting(|node| {
        count_freed(blocks::take(block), bytes, node);
        free();
    });
}

#[cold]
#[inline(never)]
fn count_realloc(
    block: *mut u8,
    (old, new): (usize, usize),
    realloc: impl FnOnce() -> *mut u8,
) -> *mut u8 {
    stack::counting(|node| {
        // Before the realloc: afterwards its address may be another thread's new block (TRACK3).
        let owner = blocks::take(block);
        let moved = realloc();
        if moved.is_null() {
            if let Some(owner) = owner {
                keep(block, old, owner);
            }
            if let Some(node) = node {
                node.failed();
            }
            return moved;
        }
        let follow = || node.map(|node| follow(moved, new, node));
        if moved == block {
            // The two blocks were never live at the same time.
            count_freed(owner, old, node);
            follow();
        } else {
            follow();
            count_freed(owner, old, node);
        }
        moved
    })
}

// SAFETY: every block is `A`'s own, requested and freed with the caller's own layouts, and only its
// address is used for counting, as a number. Nothing here panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Tracking<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's, and not empty.
        let alloc = || unsafe { self.inner.alloc(layout) };
        if stack::is_inside() {
            return count_alloc(layout.size(), alloc);
        }
        alloc()
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's, and not empty.
        let alloc = || unsafe { self.inner.alloc_zeroed(layout) };
        if stack::is_inside() {
            return count_alloc(layout.size(), alloc);
        }
        alloc()
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is `A`'s, has this layout, and the caller gives it up.
        let free = || unsafe { self.inner.dealloc(block, layout) };
        if idle() {
            return free();
        }
        count_free(block, layout.size(), free);
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // SAFETY: the block is `A`'s and has this layout; the new size is valid for it.
        let realloc = || unsafe { self.inner.realloc(block, layout, new_bytes) };
        if idle() {
            return realloc();
        }
        count_realloc(block, (layout.size(), new_bytes), realloc)
    }
}
