//! Models `BuildTurn`: one thread builds the value, another thread tries if the build fails, and no thread reads a
//! half-built value.

use larder_core::Wait;
use larder_core::sync::BuildTurn;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use loom::thread;

use crate::explore::explore;

struct Yield;

impl Wait for Yield {
    fn wait() {
        thread::yield_now();
    }
}

/// The interface of the turns and their broken twins.
trait Turns: Send + Sync + 'static {
    fn new() -> Self;
    /// If it is this thread's turn, runs `build`, which returns whether it made the value. Returns whether there is a
    /// value afterwards.
    fn build(&self, build: impl FnOnce() -> bool) -> bool;
}

impl Turns for BuildTurn {
    fn new() -> Self {
        Self::new()
    }

    fn build(&self, build: impl FnOnce() -> bool) -> bool {
        match self.begin::<Yield>() {
            None => true,
            Some(turn) => {
                let built = build();
                if built {
                    turn.done();
                }
                built
            }
        }
    }
}

/// Reads the state first and writes it later, so two threads may find the slot empty.
struct LooksFirst(AtomicU8);

impl Turns for LooksFirst {
    fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    fn build(&self, build: impl FnOnce() -> bool) -> bool {
        if self.0.load(Ordering::Acquire) == 2 {
            return true;
        }
        let built = build();
        if built {
            self.0.store(2, Ordering::Release);
        }
        built
    }
}

/// Marks the value as built before it is.
struct SaysTooEarly(AtomicU8);

impl Turns for SaysTooEarly {
    fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    fn build(&self, build: impl FnOnce() -> bool) -> bool {
        let mine = self
            .0
            .compare_exchange(0, 2, Ordering::AcqRel, Ordering::Acquire);
        mine.is_err() || build()
    }
}

/// Publishes the value without an ordering.
struct Relaxed(AtomicU8);

impl Turns for Relaxed {
    fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    fn build(&self, build: impl FnOnce() -> bool) -> bool {
        loop {
            let found = self
                .0
                .compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
            match found {
                Ok(_) => {
                    let built = build();
                    self.0.store(if built { 2 } else { 0 }, Ordering::Relaxed);
                    return built;
                }
                Err(2) => return true,
                Err(_) => thread::yield_now(),
            }
        }
    }
}

/// A slot: the turns, and the value that they guard.
struct Slot<T> {
    turns: T,
    value: UnsafeCell<u32>,
    built: AtomicUsize,
}

// SAFETY: the turns decide which thread may use the value; loom checks it.
unsafe impl<T: Sync> Sync for Slot<T> {}
// SAFETY: the turns allow one thread at a time to use the value; loom checks it.
unsafe impl<T: Send> Send for Slot<T> {}

impl<T: Turns> Slot<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            turns: T::new(),
            value: UnsafeCell::new(0),
            built: AtomicUsize::new(0),
        })
    }

    /// Builds or reads the value; the first `refusals` builds fail.
    fn request(&self, refusals: usize) -> bool {
        let there = self.turns.build(|| {
            let earlier = self.built.fetch_add(1, Ordering::Relaxed);
            if earlier < refusals {
                return false;
            }
            // SAFETY: loom reports another thread that uses the value.
            self.value.with_mut(|value| unsafe { *value += 7 });
            true
        });
        if there {
            // SAFETY: loom reports a thread that writes the value.
            let value = self.value.with(|value| unsafe { *value });
            assert_eq!(value, 7, "built once, and seen whole");
        }
        there
    }
}

fn two_requests<T: Turns>(refusals: usize) {
    explore(move || {
        let slot = Slot::<T>::new();
        let other = {
            let slot = slot.clone();
            thread::spawn(move || slot.request(refusals))
        };
        let mine = slot.request(refusals);
        let theirs = other.join().unwrap();
        let builds = slot.built.load(Ordering::Relaxed);
        match refusals {
            0 => assert!(mine && theirs && builds == 1),
            // One build was refused, and the other thread's succeeded.
            1 => assert!(mine != theirs && builds == 2),
            _ => assert!(!mine && !theirs && builds == 2),
        }
    });
}

models! {
    l9_two_first_requests_build_once_and_see_the_same => two_requests::<BuildTurn>(0);
    l9_a_builder_that_is_refused_is_followed_by_another =>
        { two_requests::<BuildTurn>(1); two_requests::<BuildTurn>(2) };
    l9_broken_a_slot_that_is_marked_after_the_look_is_built_twice rejected "" => two_requests::<LooksFirst>(0);
    l9_broken_a_slot_that_says_too_early_shows_half_a_value rejected "" => two_requests::<SaysTooEarly>(0);
    l9_broken_a_slot_without_an_order_shows_half_a_value rejected "" => two_requests::<Relaxed>(0);
}
