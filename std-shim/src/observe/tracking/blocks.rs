//! The scope of each live block: tables by address, each with its own lock.
//!
//! A lock is held while its table grows, which takes a system call. Waiting threads sleep. A
//! holder takes no other lock, and a fork takes all the locks in order.

use std::sync::Once;

use larder_core::Locked;
use larder_core::sync::{AtomicUsize, Ordering};

use super::node::{NodeRef, ScopeNode};
use crate::block_table::{BlockTable, Zeroes};
use crate::thread::wait::{OF_SCOPES, Sleep};

/// A reference to a node, as stored in the table.
#[derive(Clone, Copy)]
struct Owner(*mut ScopeNode);

// SAFETY: a node may be reached by any thread (it is Sync).
unsafe impl Send for Owner {}
// SAFETY: its only field is a pointer, and null is a pointer.
unsafe impl Zeroes for Owner {}

type Shard = Locked<BlockTable<Owner>, Sleep<OF_SCOPES>>;

static SHARDS: [Shard; 64] = [const { Locked::new(BlockTable::new()) }; 64];

/// Number of shards with a block. Relaxed: a thread that frees a block learned of the block
/// from the thread that entered it, and a shard is counted while it has a block.
static OCCUPIED: AtomicUsize = AtomicUsize::new(0);

fn shard_of(block: *mut u8) -> &'static Shard {
    // These are not the bits that the table uses, which are the uppermost bits of the same
    // product.
    let spread = (block.addr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    &SHARDS[(spread >> 20) as usize % SHARDS.len()]
}

/// Returns whether any block of a scope is live.
#[inline(always)]
pub(super) fn any() -> bool {
    OCCUPIED.load(Ordering::Relaxed) > 0
}

/// Enters a block.
///
/// # Errors
/// The node, if there is no memory for a larger table.
pub(super) fn enter(block: *mut u8, node: NodeRef) -> Result<(), NodeRef> {
    let raw = node.into_raw();
    let before = shard_of(block).with(|table| {
        let first = table.is_empty();
        let before = table.insert(block.addr(), Owner(raw));
        if first && before.is_ok() {
            OCCUPIED.fetch_add(1, Ordering::Relaxed);
        }
        before
    });
    // A previous entry belongs to a block that was not freed through the decorator.
    let gone = match before {
        Ok(before) => before.map_or(std::ptr::null_mut(), |owner| owner.0),
        Err(_) => raw,
    };
    // SAFETY: that reference is no longer in the table.
    match (before, unsafe { NodeRef::from_raw(gone) }) {
        (Err(_), Some(node)) => Err(node),
        _ => Ok(()),
    }
}

/// Removes a block. Returns its scope's node.
pub(super) fn take(block: *mut u8) -> Option<NodeRef> {
    if !any() {
        return None;
    }
    let owner = shard_of(block).with(|table| {
        let owner = table.remove(block.addr())?;
        if table.is_empty() {
            OCCUPIED.fetch_sub(1, Ordering::Relaxed);
        }
        Some(owner)
    })?;
    // SAFETY: the table's reference, which was just removed from it.
    unsafe { NodeRef::from_raw(owner.0) }
}

/// Registers the fork handlers of the locks when the first scope begins.
pub(super) fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: functions of this library. If they cannot be registered, a child forked while
        // other threads count may hang; nothing here can prevent that.
        #[cfg(unix)]
        unsafe {
            libc::pthread_atfork(Some(lock_all), Some(unlock_all), Some(unlock_all))
        };
    });
}

#[cfg(unix)]
extern "C" fn lock_all() {
    for shard in &SHARDS {
        // SAFETY: the lock is released in `unlock_all`.
        unsafe { shard.word() }.keep::<Sleep<OF_SCOPES>>();
    }
    Sleep::<OF_SCOPES>::keep_locks(true);
}

#[cfg(unix)]
extern "C" fn unlock_all() {
    Sleep::<OF_SCOPES>::keep_locks(false);
    for shard in &SHARDS {
        // SAFETY: taken by `lock_all`.
        let lock = unsafe { shard.word() };
        if lock.release_kept() {
            lock.wake_one::<Sleep<OF_SCOPES>>();
        }
    }
}
