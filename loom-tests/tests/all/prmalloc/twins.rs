//! Broken twins of the four protocols, each with one wrong line that loom must find.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::prmalloc::world::explore;

const LINKS: [u64; 3] = [0, 0, 1];

/// L1 without the lock: reads the top, then stores the block below it.
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

/// L2 without the lock: reads whether lifetimes are recorded, then marks a round as due.
fn stop(switch: &AtomicU64) -> bool {
    let on = switch.load(Ordering::SeqCst) == ON;
    if on {
        switch.store(ROUNDING, Ordering::SeqCst);
    }
    on
}

#[test]
#[should_panic(expected = "two rounds")]
fn broken_twin_l2_a_round_begun_without_the_lock_is_found() {
    explore(|| {
        let switch = Arc::new(AtomicU64::new(ON));
        let other = Arc::clone(&switch);
        let thread = thread::spawn(move || stop(&other));
        let mine = stop(&switch);
        assert!(!(mine && thread.join().unwrap()), "two rounds");
    });
}

/// Models L3: a thread sets whether a plan serves, and the address of its slab, in one critical section or in two.
fn install(sections: u64) {
    explore(move || {
        let plan = Arc::new(Mutex::new((false, 0)));
        let other = Arc::clone(&plan);
        let thread = thread::spawn(move || {
            if sections == 2 {
                other.lock().unwrap().0 = true;
            }
            *other.lock().unwrap() = (true, 4096);
        });
        let (serves, slab) = *plan.lock().unwrap();
        assert!(!serves || slab == 4096, "half a plan");
        thread.join().unwrap();
    });
}

const SLAB: u64 = 0x1000;

/// L3 with upstream's check at a free, which tests whether there is a plan rather than whether the block belongs to it.
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

/// Models L4: the last free of a former plan's blocks releases its slabs. A free counts the blocks in use, and decides
/// whether it is the last, in one critical section or in two.
fn drain(sections: u64) {
    explore(move || {
        let (used, released) = (Arc::new(Mutex::new(2)), Arc::new(AtomicU64::new(0)));
        let free = move |used: &Mutex<u64>, released: &AtomicU64| {
            let mut left = used.lock().unwrap();
            *left -= 1;
            let is_last = if sections == 2 {
                drop(left);
                *used.lock().unwrap() == 0
            } else {
                *left == 0
            };
            if is_last {
                released.fetch_add(1, Ordering::SeqCst);
            }
        };
        let other = (Arc::clone(&used), Arc::clone(&released));
        let thread = thread::spawn(move || free(&other.0, &other.1));
        free(&used, &released);
        thread.join().unwrap();
        assert_eq!(released.load(Ordering::SeqCst), 1, "released once");
    });
}

models! {
    twin_l3_a_plan_that_serves_with_its_slab_is_whole => install(1);
    broken_twin_l3_a_plan_that_serves_before_its_slab_is_there_is_found rejected "half a plan" => install(2);
    twin_l4_the_last_block_counted_and_noticed_by_one_lock_passes => drain(1);
    broken_twin_l4_a_last_block_that_two_threads_notice_is_found rejected "released once" => drain(2);
}
