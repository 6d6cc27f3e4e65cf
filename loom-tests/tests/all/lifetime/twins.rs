//! Broken twins of the four protocols: each with the one line wrong that the checker must notice.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::lifetime::world::explore;

const LINKS: [u64; 3] = [0, 0, 1];

/// L1 without the lock: looks at the top, then writes what lay below it.
struct Stack(AtomicU64);

impl Stack {
    fn pop(&self) -> u64 {
        let top = self.0.load(Ordering::SeqCst);
        self.0.store(LINKS[top as usize], Ordering::SeqCst);
        top
    }
}

#[test]
#[should_panic(expected = "given twice")]
fn broken_twin_l1_a_stack_without_its_lock_is_found() {
    explore(|| {
        let stack = Arc::new(Stack(AtomicU64::new(2)));
        let other = Arc::clone(&stack);
        let thread = thread::spawn(move || other.pop());
        assert_ne!(stack.pop(), thread.join().unwrap(), "given twice");
    });
}

const ON: u64 = 1;
const ROUNDING: u64 = 2;

/// L2 without the swap: looks whether lives are recorded, then says that a round is due.
fn stop(switch: &AtomicU64) -> bool {
    let on = switch.load(Ordering::SeqCst) == ON;
    if on {
        switch.store(ROUNDING, Ordering::SeqCst);
    }
    on
}

#[test]
#[should_panic(expected = "two rounds")]
fn broken_twin_l2_a_store_instead_of_the_swap_is_found() {
    explore(|| {
        let switch = Arc::new(AtomicU64::new(ON));
        let other = Arc::clone(&switch);
        let thread = thread::spawn(move || stop(&other));
        let mine = stop(&switch);
        assert!(!(mine && thread.join().unwrap()), "two rounds");
    });
}

/// L3: a plan, and the word that says it is there, with this order.
fn publish(order: Ordering) {
    explore(move || {
        let plan = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let other = Arc::clone(&plan);
        let thread = thread::spawn(move || {
            other.0.store(4096, Ordering::Relaxed);
            other.1.store(1, order);
        });
        if plan.1.load(Ordering::Acquire) == 1 {
            assert_eq!(plan.0.load(Ordering::Relaxed), 4096, "half a plan");
        }
        thread.join().unwrap();
    });
}

#[test]
fn twin_l3_a_plan_that_is_released_is_whole() {
    publish(Ordering::Release);
}

#[test]
#[should_panic(expected = "half a plan")]
fn broken_twin_l3_a_plan_that_is_not_released_is_found() {
    publish(Ordering::Relaxed);
}

const SLAB: u64 = 0x1000;

/// L3 with upstream's question at a free: is there a plan? And not: is the block of the plan?
#[test]
#[should_panic(expected = "in a bin")]
fn broken_twin_l3_a_free_that_asks_for_the_state_instead_of_the_address_is_found() {
    explore(|| {
        let inited = Arc::new(AtomicU64::new(0));
        let of_backend = 0x9000;
        let other = Arc::clone(&inited);
        let thread = thread::spawn(move || other.store(1, Ordering::Release));
        let to_bin = inited.load(Ordering::Acquire) == 1;
        assert!(
            !to_bin || of_backend == SLAB,
            "a block of the backend in a bin"
        );
        thread.join().unwrap();
    });
}

const CLOSED: u64 = 1 << 62;

/// L4's gate: how one enters is what differs.
struct Gate {
    word: AtomicU64,
    released: AtomicU64,
}

impl Gate {
    fn release_if_empty(&self, word: u64) {
        if word == CLOSED {
            self.released.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn use_by(&self, enter: fn(&AtomicU64) -> bool) {
        if enter(&self.word) {
            assert_eq!(
                self.released.load(Ordering::SeqCst),
                0,
                "used after release"
            );
            let left = self.word.fetch_sub(1, Ordering::AcqRel) - 1;
            self.release_if_empty(left);
        }
    }
}

fn enter_and_close(enter: fn(&AtomicU64) -> bool) {
    explore(move || {
        let gate = Arc::new(Gate {
            word: AtomicU64::new(0),
            released: AtomicU64::new(0),
        });
        let other = Arc::clone(&gate);
        let thread = thread::spawn(move || {
            let left = other.word.fetch_or(CLOSED, Ordering::AcqRel) | CLOSED;
            other.release_if_empty(left);
        });
        gate.use_by(enter);
        thread.join().unwrap();
        assert_eq!(gate.released.load(Ordering::SeqCst), 1, "released once");
    });
}

fn swap_in(word: &AtomicU64) -> bool {
    let mut now = word.load(Ordering::Acquire);
    while now & CLOSED == 0 {
        match word.compare_exchange(now, now + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(seen) => now = seen,
        }
    }
    false
}

fn look_then_count(word: &AtomicU64) -> bool {
    let open = word.load(Ordering::Acquire) & CLOSED == 0;
    if open {
        word.fetch_add(1, Ordering::AcqRel);
    }
    open
}

#[test]
fn twin_l4_a_gate_entered_by_a_swap_passes() {
    enter_and_close(swap_in);
}

#[test]
#[should_panic(expected = "release")]
fn broken_twin_l4_a_gate_looked_at_and_then_entered_is_found() {
    enter_and_close(look_then_count);
}
