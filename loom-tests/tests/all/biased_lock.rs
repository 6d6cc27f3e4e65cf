//! Models `BiasedLock`: the owner and a revoker never hold the bins at the same time, and the owner can take them back.

use larder_core::sync::BiasedLock;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU8, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::explore::explore;

/// The interface of the lock and its broken twins.
trait Biased: Send + Sync + 'static {
    fn new() -> Self;
    fn enter(&self) -> bool;
    fn leave(&self);
    fn revoke(&self) -> bool;
    fn restore(&self);
}

/// The effect of `membarrier` on the calling thread. For the other threads, `enter` has a fence in the model.
fn barrier() -> bool {
    fence(Ordering::SeqCst);
    true
}

impl Biased for BiasedLock {
    fn new() -> Self {
        Self::new()
    }

    fn enter(&self) -> bool {
        self.enter()
    }

    fn leave(&self) {
        self.leave();
    }

    fn revoke(&self) -> bool {
        self.revoke(barrier)
    }

    fn restore(&self) {
        self.restore();
    }
}

/// The bins, which one thread at a time may use, and the lock that revokers take first.
struct Bins<B> {
    biased: B,
    lock: Mutex<()>,
    bins: UnsafeCell<u32>,
}

// SAFETY: loom reports two threads that use the bins at once.
unsafe impl<B: Sync> Sync for Bins<B> {}

impl<B: Biased> Bins<B> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            biased: B::new(),
            lock: Mutex::new(()),
            bins: UnsafeCell::new(0),
        })
    }

    fn use_bins(&self) {
        // SAFETY: loom checks that no other thread uses the bins.
        self.bins.with_mut(|bins| unsafe { *bins += 1 });
    }

    /// Uses the bins as the owner does for one block.
    fn own(&self) {
        if self.biased.enter() {
            self.use_bins();
            self.biased.leave();
            return;
        }
        let _lock = self.lock.lock().unwrap();
        self.biased.restore();
        self.use_bins();
    }

    /// Revokes the lock and uses the bins, as a tick does. Returns whether the revocation succeeded.
    fn take(&self) -> bool {
        let _lock = self.lock.lock().unwrap();
        let revoked = self.biased.revoke();
        if revoked {
            self.use_bins();
        }
        revoked
    }
}

fn an_owner_and_a_taker<B: Biased>() {
    explore(|| {
        let bins = Bins::<B>::new();
        let theirs = Arc::clone(&bins);
        let taker = thread::spawn(move || u32::from(theirs.take()) + u32::from(theirs.take()));
        (0..2).for_each(|_| bins.own());
        let taken = taker.join().unwrap();
        bins.own();
        // SAFETY: the other threads have ended.
        bins.bins
            .with(|bins| assert_eq!(unsafe { *bins }, 3 + taken));
    });
}

fn an_owner_and_two_takers<B: Biased>() {
    explore(|| {
        let bins = Bins::<B>::new();
        let takers = [(); 2].map(|()| {
            let theirs = Arc::clone(&bins);
            thread::spawn(move || u32::from(theirs.take()))
        });
        bins.own();
        let taken: u32 = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
        bins.own();
        // SAFETY: the other threads have ended.
        bins.bins
            .with(|bins| assert_eq!(unsafe { *bins }, 2 + taken));
    });
}

/// A copy of the lock that lacks the parts set to `false`.
struct Twin<const BARRIER: bool, const LOOKS_AGAIN: bool, const KEEPS: bool> {
    owner: AtomicU8,
    revoked: AtomicU8,
}

impl<const BARRIER: bool, const LOOKS_AGAIN: bool, const KEEPS: bool> Biased
    for Twin<BARRIER, LOOKS_AGAIN, KEEPS>
{
    fn new() -> Self {
        Self {
            owner: AtomicU8::new(0),
            revoked: AtomicU8::new(0),
        }
    }

    fn enter(&self) -> bool {
        if self.revoked.load(Ordering::Relaxed) != 0 {
            return false;
        }
        self.owner.store(1, Ordering::Relaxed);
        if BARRIER {
            fence(Ordering::SeqCst);
        }
        if !LOOKS_AGAIN || self.revoked.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.leave();
        false
    }

    fn leave(&self) {
        self.owner.store(0, Ordering::Release);
    }

    fn revoke(&self) -> bool {
        if KEEPS && self.revoked.load(Ordering::Relaxed) != 0 {
            return true;
        }
        self.revoked.store(1, Ordering::Relaxed);
        let revoked = barrier() && self.owner.load(Ordering::Acquire) == 0;
        if !revoked {
            self.restore();
        }
        revoked
    }

    fn restore(&self) {
        self.revoked.store(0, Ordering::Relaxed);
    }
}

models! {
    who_has_the_bins_is_alone => an_owner_and_a_taker::<BiasedLock>();
    two_takers_and_the_owner_have_the_bins_in_turn => an_owner_and_two_takers::<BiasedLock>();
    the_twin_with_all_of_it_is_not_rejected => an_owner_and_a_taker::<Twin<true, true, true>>();
    without_the_barrier_both_have_the_bins rejected "Causality violation" =>
        an_owner_and_a_taker::<Twin<false, true, true>>();
    without_a_second_look_both_have_the_bins rejected "Causality violation" =>
        an_owner_and_a_taker::<Twin<true, false, true>>();
    a_failed_revoke_that_undoes_another_gives_the_bins_back_too_early rejected "Causality violation" =>
        an_owner_and_two_takers::<Twin<true, true, false>>();
}
