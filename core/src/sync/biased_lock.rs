//! [`BiasedLock`]: a lock that its owner takes without a locked instruction, and that other threads revoke.

use super::{AtomicU8, Ordering, light_barrier};

const FREE: u8 = 0;
const TAKEN: u8 = 1;

/// A lock that belongs to one thread. The owner takes it by a store and a load. Another thread, one at a time and under
/// another lock, revokes it: it makes all threads execute a barrier, as `membarrier` does. The lock stays revoked until
/// the owner takes that other lock and restores it.
///
/// * BIASED1 while the owner is between [`enter`](Self::enter) and [`leave`](Self::leave), no
///   [`revoke`](Self::revoke) returns `true`.
/// * BIASED2 from a revoke that returned `true` to the next [`restore`](Self::restore), every `enter` returns
///   `false`.
///
/// The owner writes `owner` and then reads `revoked`; the revoker writes `revoked` and then reads `owner`. With a
/// barrier between each pair, one of them sees the other's write. The owner's half of the barrier only keeps the
/// compiler from changing the order; the revoker makes it whole. The idea is Dekker's algorithm made asymmetric
/// (Dice, Huang and Yang 2001).
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

    /// Takes the lock, as its owner. Returns `false` if it is revoked: the owner then takes the other lock.
    #[inline(always)]
    pub fn enter(&self) -> bool {
        // Relaxed, here and below: the barriers order these two words, and the other lock all other data.
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

    /// Takes the lock from its owner, unless the owner is inside. `barrier` makes all threads execute a barrier, and
    /// returns whether they did. The caller holds the other lock.
    pub fn revoke(&self, barrier: impl FnOnce() -> bool) -> bool {
        if self.revoked.load(Ordering::Relaxed) != FREE {
            // Restoring it below would let the owner enter without the other lock.
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

    /// Returns the lock to its owner. The caller holds the other lock.
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
