//! Models `LockWord`, a lock whose waiters sleep: it has one holder at a time (LOCK1), and every sleeper is woken
//! (LOCK2).

use larder_core::Wait;
use larder_core::sync::{AtomicU32, LockWord, Ordering, Taken};
use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::explore::explore;

loom::lazy_static! {
    /// The kernel's queue of sleepers: a thread checks the word and sleeps in one step.
    static ref BED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

/// A wait that sleeps like a futex.
struct Sleeps;

fn lie_down(look: impl FnOnce() -> bool) {
    let night = BED.0.lock().unwrap();
    if look() {
        drop(BED.1.wait(night).unwrap());
    }
}

fn wake_one() {
    let _night = BED.0.lock().unwrap();
    BED.1.notify_one();
}

impl Wait for Sleeps {
    const SLEEPS: bool = true;

    fn wait() {
        thread::yield_now();
    }

    fn sleep(word: &AtomicU32, seen: u32) {
        lie_down(|| word.load(Ordering::Relaxed) == seen);
    }

    fn wake(_: &AtomicU32) {
        wake_one();
    }
}

/// The interface of the lock and its broken twins.
trait Lock: Send + Sync + 'static {
    fn new() -> Self;
    fn lock(&self);
    fn unlock(&self);
}

impl Lock for LockWord {
    fn new() -> Self {
        Self::new()
    }

    fn lock(&self) {
        assert_eq!(self.lock::<Sleeps>(), Taken::Mine);
    }

    fn unlock(&self) {
        self.unlock::<Sleeps>();
    }
}

/// Nothing in the copy of the protocol is broken.
const SOUND: u8 = 0;
/// A thread that slept takes the lock without the mark for other sleepers.
const FORGETS_OTHERS: u8 = 1;
/// A thread sleeps without checking the word again.
const LIES_DOWN_BLIND: u8 = 2;
/// The holder frees the lock before it checks for sleepers.
const LOOKS_TOO_LATE: u8 = 3;
/// The lock is taken in two steps.
const TAKES_IN_TWO: u8 = 4;

struct Copy<const BREAK: u8>(AtomicU32);

impl<const BREAK: u8> Copy<BREAK> {
    fn take(&self, to: u32) -> bool {
        if BREAK == TAKES_IN_TWO {
            let free = self.0.load(Ordering::Acquire) == 0;
            if free {
                self.0.store(to, Ordering::Relaxed);
            }
            return free;
        }
        (self.0)
            .compare_exchange(0, to, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

impl<const BREAK: u8> Lock for Copy<BREAK> {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn lock(&self) {
        let mut take_as = 1;
        loop {
            if self.take(take_as) {
                return;
            }
            let seen = self.0.load(Ordering::Relaxed);
            let awaited = seen == 3
                || seen == 1
                    && (self.0)
                        .compare_exchange(1, 3, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok();
            if awaited {
                lie_down(|| BREAK == LIES_DOWN_BLIND || self.0.load(Ordering::Relaxed) == 3);
                if BREAK != FORGETS_OTHERS {
                    take_as = 3;
                }
            }
        }
    }

    fn unlock(&self) {
        let before = match BREAK {
            LOOKS_TOO_LATE => {
                self.0.store(0, Ordering::Release);
                self.0.load(Ordering::Relaxed)
            }
            _ => self.0.swap(0, Ordering::Release),
        };
        if before & 2 != 0 {
            wake_one();
        }
    }
}

/// Models threads that each add 1 to a shared number. Loom reports a waiter that is never woken (as a deadlock), and an
/// access that the lock does not order.
fn add<L: Lock>(threads: usize) {
    explore(move || {
        // Leaked, because a deadlock ends the model while threads still use it.
        let shared: &'static (L, UnsafeCell<usize>) =
            Box::leak(Box::new((L::new(), UnsafeCell::new(0))));
        let add = |shared: &(L, UnsafeCell<usize>)| {
            shared.0.lock();
            shared.1.with_mut(|number| {
                // SAFETY: loom reports another thread in here.
                unsafe { *number += 1 };
            });
            shared.0.unlock();
        };
        let others: Vec<_> = (1..threads)
            .map(|_| thread::spawn(move || add(shared)))
            .collect();
        add(shared);
        for other in others {
            other.join().unwrap();
        }
        // SAFETY: the other threads have ended.
        shared
            .1
            .with(|number| assert_eq!(unsafe { *number }, threads));
    });
}

models! {
    two_threads_hold_the_lock_one_after_another => add::<LockWord>(2);
    no_sleeper_is_forgotten_among_three_threads => add::<LockWord>(3);
    a_copy_without_a_break_passes => add::<Copy<SOUND>>(3);
    a_thread_that_forgets_other_sleepers_is_found rejected "deadlock" => add::<Copy<FORGETS_OTHERS>>(3);
    a_thread_that_lies_down_without_a_look_is_found rejected "deadlock" => add::<Copy<LIES_DOWN_BLIND>>(2);
    a_holder_that_looks_too_late_is_found rejected "deadlock" => add::<Copy<LOOKS_TOO_LATE>>(2);
    a_lock_that_is_taken_in_two_steps_is_found rejected "" => add::<Copy<TAKES_IN_TWO>>(2);
}
