//! [`BiasedLock`]: a lock that its owner takes without a locked instruction, and that other threads can revoke.

use super::{AtomicU8, Ordering, light_barrier};

const FREE: u8 = 0;
const TAKEN: u8 = 1;

/// A lock that belongs to one thread. The owner takes it with a store and a load. Another thread can revoke the lock
/// while it holds a second lock, which all revokers share. To do so, it makes all threads execute a barrier, as
/// `membarrier` does. The lock stays revoked until the owner takes the second lock and restores this one.
///
/// * BIASED1 while the owner is between [`enter`](Self::enter) and [`leave`](Self::leave), no
///   [`revoke`](Self::revoke) returns `true`.
/// * BIASED2 from a revoke that returned `true` to the next [`restore`](Self::restore), every `enter` returns
///   `false`.
///
/// The owner writes `owner` and then reads `revoked`; the revoker writes `revoked` and then reads `owner`. If there is
/// a barrier between the write and the read in both threads, at least one of them sees the other's write. The owner's
/// side is only a compiler fence, which the revoker's barrier makes a full one. The idea is an asymmetric Dekker
/// algorithm (Dice, Huang and Yang 2001).
#[derive(Debug)]
pub struct BiasedLock {
    owner: AtomicU8,
    revoked: AtomicU8,
}

impl BiasedLock {
    /// Creates a lock that is not revoked.
    #[cfg(not(larder_loom))]
    pub const fn new() -> Self {
        Self {
            owner: AtomicU8::new(FREE),
            revoked: AtomicU8::new(FREE),
        }
    }

    /// Creates a lock that is not revoked.
    #[cfg(larder_loom)]
    pub fn new() -> Self {
        Self {
            owner: AtomicU8::new(FREE),
            revoked: AtomicU8::new(FREE),
        }
    }

    /// Creates a lock that is always revoked and never written.
    #[cfg(not(larder_loom))]
    pub const fn always_revoked() -> Self {
        Self {
            owner: AtomicU8::new(FREE),
            revoked: AtomicU8::new(TAKEN),
        }
    }

    /// Returns whether the lock is revoked. A hint, except for the holder of the second lock.
    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed) != FREE
    }

    /// Takes the lock, as its owner. Returns `false` if the lock is revoked; the owner must then take the second lock.
    #[inline(always)]
    pub fn enter(&self) -> bool {
        // Relaxed, here and below: the barriers order these two words, and the second lock orders all other data.
        if self.revoked.load(Ordering::Relaxed) != FREE {
            return false;
        }
        self.owner.store(TAKEN, Ordering::Relaxed);
        light_barrier();
        if self.revoked.load(Ordering::Relaxed) == FREE {
            return true;
        }
        self.leave();
        false
    }

    /// Releases the lock, after an `enter` that returned `true`.
    #[inline(always)]
    pub fn leave(&self) {
        // Release: the revoker sees the owner's writes.
        self.owner.store(FREE, Ordering::Release);
    }

    /// Revokes the lock, unless the owner has taken it. Returns whether the lock is revoked. `barrier` makes all
    /// threads execute a barrier, and returns whether they did. The caller must hold the second lock.
    pub fn revoke(&self, barrier: impl FnOnce() -> bool) -> bool {
        if self.revoked.load(Ordering::Relaxed) != FREE {
            // If the code below restored the lock, the owner could enter without the second lock.
            return true;
        }
        self.revoked.store(TAKEN, Ordering::Relaxed);
        // Acquire: sees the writes that the owner made before it left.
        let revoked = barrier() && self.owner.load(Ordering::Acquire) == FREE;
        if !revoked {
            self.restore();
        }
        revoked
    }

    /// Returns the lock to its owner. The caller must hold the second lock.
    #[inline]
    pub fn restore(&self) {
        self.revoked.store(FREE, Ordering::Relaxed);
    }

    /// Passes the lock to the next owner, once the previous owner is gone.
    pub(crate) fn pass_on(&mut self) {
        *self = Self::new();
    }
}

impl Default for BiasedLock {
    fn default() -> Self {
        Self::new()
    }
}
