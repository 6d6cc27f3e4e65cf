//! The turns of a slot: one thread builds what all see, a builder that gives up is followed by another, and
//! nobody sees half a value.

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

/// Who may build, as the model wants it and as the broken twins have it.
trait Turns: Send + Sync + 'static {
    fn new() -> Self;
    /// Runs `build` if it is this thread's turn; `build` says whether there is a value. Gives whether there is
    /// one afterwards.
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

/// Looks first and marks later: two threads may both see an empty slot.
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

/// Says that the value is there before it is.
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

/// Publishes without an order.
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

/// A slot: the value lies beside the turn.
struct Slot<T> {
    turns: T,
    value: UnsafeCell<u32>,
    built: AtomicUsize,
}

// SAFETY: whoever reaches the value has the right to by the turns; loom checks it.
unsafe impl<T: Sync> Sync for Slot<T> {}
// SAFETY: the turns give one thread at a time the value; loom checks it.
unsafe impl<T: Send> Send for Slot<T> {}

impl<T: Turns> Slot<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            turns: T::new(),
            value: UnsafeCell::new(0),
            built: AtomicUsize::new(0),
        })
    }

    /// What a request does: the first `refusals` builds find a driver that refuses.
    fn request(&self, refusals: usize) -> bool {
        let there = self.turns.build(|| {
            let earlier = self.built.fetch_add(1, Ordering::Relaxed);
            if earlier < refusals {
                return false;
            }
            // SAFETY: loom says if somebody else is here.
            self.value.with_mut(|value| unsafe { *value += 7 });
            true
        });
        if there {
            // SAFETY: loom says if somebody writes.
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
            // One of them was refused, and the other built it.
            1 => assert!(mine != theirs && builds == 2),
            _ => assert!(!mine && !theirs && builds == 2),
        }
    });
}

#[test]
fn l9_two_first_requests_build_once_and_see_the_same() {
    two_requests::<BuildTurn>(0);
}

#[test]
fn l9_a_builder_that_is_refused_is_followed_by_another() {
    two_requests::<BuildTurn>(1);
    two_requests::<BuildTurn>(2);
}

#[test]
#[should_panic]
fn l9_broken_a_slot_that_is_marked_after_the_look_is_built_twice() {
    two_requests::<LooksFirst>(0);
}

#[test]
#[should_panic]
fn l9_broken_a_slot_that_says_too_early_shows_half_a_value() {
    two_requests::<SaysTooEarly>(0);
}

#[test]
#[should_panic]
fn l9_broken_a_slot_without_an_order_shows_half_a_value() {
    two_requests::<Relaxed>(0);
}
