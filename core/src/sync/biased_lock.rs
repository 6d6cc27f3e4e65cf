//! [`BiasedLock`]: a lock that its owner takes without a locked instruction, and that others revoke.

use super::{AtomicU8, Ordering, light_barrier};

const FREE: u8 = 0;
const TAKEN: u8 = 1;

/// A lock that belongs to one thread. The owner takes it by a store and a load. Whoever wants it besides, one at
/// a time and under another lock, revokes it: all threads execute a barrier then, as `membarrier` has them do.
/// It stays revoked until the owner takes that other lock and has it back.
///
/// * BIASED1 while the owner is between [`enter`](Self::enter) and [`leave`](Self::leave), no
///   [`revoke`](Self::revoke) answers `true`.
/// * BIASED2 from a revoke that answered `true` to the next [`restore`](Self::restore), every `enter` answers `false`.
///
/// The owner writes `owner` and then reads `revoked`; who revokes writes `revoked` and then reads `owner`.
/// With a barrier between both, one of them sees the other. The owner's is left to the other side: it only keeps the
/// compiler from changing the order. The idea is Dekker's algorithm made asymmetric (Dice, Huang and Yang 2001).
#[derive(Debug)]
pub struct BiasedLock {
    owner: AtomicU8,
    revoked: AtomicU8,
}

impl BiasedLock {
    /// The owner's.
    #[cfg(not(larder_loom))]
    pub const fn new() -> Self {
        Self {
            owner: AtomicU8::new(FREE),
            revoked: AtomicU8::new(FREE),
        }
    }

    /// The owner's.
    #[cfg(larder_loom)]
    pub fn new() -> Self {
        Self {
            owner: AtomicU8::new(FREE),
            revoked: AtomicU8::new(FREE),
        }
    }

    /// One that is revoked for ever, and is never written to.
    #[cfg(not(larder_loom))]
    pub const fn nobodys() -> Self {
        Self {
            owner: AtomicU8::new(FREE),
            revoked: AtomicU8::new(TAKEN),
        }
    }

    /// Takes the lock, as its owner. `false` if it is revoked: then the owner takes the other lock.
    #[inline(always)]
    pub fn enter(&self) -> bool {
        // Relaxed, here and below: the barriers order it, and the other lock what else was written.
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

    /// Gives the lock back, after an `enter` that answered `true`.
    #[inline(always)]
    pub fn leave(&self) {
        // Release: who revokes sees what the owner wrote.
        self.owner.store(FREE, Ordering::Release);
    }

    /// Takes the lock from its owner, unless that one has just taken it. `barrier` has all threads execute a barrier,
    /// and says whether they did. The caller holds the other lock.
    pub fn revoke(&self, barrier: impl FnOnce() -> bool) -> bool {
        if self.revoked.load(Ordering::Relaxed) != FREE {
            // To restore it below would give it to the owner without the other lock.
            return true;
        }
        self.revoked.store(TAKEN, Ordering::Relaxed);
        // Acquire: what the owner wrote before it left is seen.
        let revoked = barrier() && self.owner.load(Ordering::Acquire) == FREE;
        if !revoked {
            self.restore();
        }
        revoked
    }

    /// Gives the lock to its owner. The caller holds the other lock.
    #[inline]
    pub fn restore(&self) {
        self.revoked.store(FREE, Ordering::Relaxed);
    }

    /// Makes it the next owner's, where the last one is gone.
    pub(crate) fn pass_on(&mut self) {
        *self = Self::new();
    }
}

impl Default for BiasedLock {
    fn default() -> Self {
        Self::new()
    }
}
