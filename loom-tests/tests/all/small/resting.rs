//! Models the purger's rest (PURGE1, PURGE2, PURGE4 to PURGE6): freed memory is never left without a thread that ticks,
//! and a forked child inherits no half-done step. The model copies the process heap's `purge/purger.rs` and its fork
//! handlers, with numbers in place of memory. Each break must be found.

use larder_core::sync::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// The purge thread waits or has ended. A thread that frees memory in this state must tick itself.
const RESTING: u32 = 0;
const TICKING: u32 = 1;
/// The delay is infinite.
const OFF: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Break {
    Nothing,
    /// The purger reads whether memory is idle, then stores `RESTING`.
    LookThenRest,
    /// A free reads the state before it frees the memory.
    ReadThenFree,
    /// The purger releases the lock in the middle of a step, while it holds memory to discard.
    HalfStep,
    /// A forked child keeps its parent's state, as if the child had a thread that ticks.
    StateKept,
    /// The purger counts the threads, then stores `RESTING`.
    CountThenRest,
    /// The purger reads the delay only before it stores `OFF`.
    DelayThenOff,
    /// The program changes the delay and reads the state without a fence in between.
    DelayWithoutFence,
}

/// The memory under the lock that frees, ticks and forks take.
struct Memory {
    idle: u32,
    /// Memory that the purger has taken in order to discard it.
    held: u32,
}

struct Heap {
    broken: Break,
    state: AtomicU32,
    memory: Mutex<Memory>,
}

impl Heap {
    fn new(broken: Break, state: u32, idle: u32) -> Arc<Self> {
        Arc::new(Self {
            broken,
            state: AtomicU32::new(state),
            memory: Mutex::new(Memory { idle, held: 0 }),
        })
    }

    /// Frees memory. Returns whether the caller must tick.
    fn free(&self) -> bool {
        let early = self.state.load(Ordering::Relaxed);
        self.memory.lock().unwrap().idle += 1;
        let state = match self.broken {
            Break::ReadThenFree => early,
            _ => self.state.load(Ordering::Relaxed),
        };
        state == RESTING && self.change(RESTING, TICKING)
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    fn tick(&self) {
        let mut memory = self.memory.lock().unwrap();
        memory.held = std::mem::take(&mut memory.idle);
        if self.broken == Break::HalfStep {
            drop(memory);
            memory = self.memory.lock().unwrap();
        }
        memory.held = 0;
    }

    fn has_idle(&self) -> bool {
        self.memory.lock().unwrap().idle > 0
    }

    /// Goes to rest. Returns `false` if the ticks must continue.
    fn rest(&self) -> bool {
        if self.broken == Break::LookThenRest {
            let idle = self.has_idle();
            if !idle {
                self.state.store(RESTING, Ordering::Relaxed);
            }
            return !idle;
        }
        self.state.store(RESTING, Ordering::Relaxed);
        !(self.has_idle() && self.change(RESTING, TICKING))
    }

    /// Runs the purger: ticks until nothing is idle.
    fn run(&self) {
        loop {
            self.tick();
            if self.rest() {
                return;
            }
        }
    }
}

/// Models a free while the purger goes to rest: one of the two threads sees the freed memory.
fn free_beside_rest(broken: Break) {
    loom::model(move || {
        let heap = Heap::new(broken, TICKING, 0);
        let other = Arc::clone(&heap);
        let ticking = thread::spawn(move || other.run());
        if heap.free() {
            heap.run();
        }
        ticking.join().unwrap();
        assert!(!heap.has_idle(), "memory was forgotten");
        assert_eq!(heap.state.load(Ordering::Relaxed), RESTING);
    });
}

/// Models a fork during a tick, after which the child frees memory: the child inherits no held memory, and ticks
/// itself.
fn fork_beside_tick(broken: Break) {
    loom::model(move || {
        let heap = Heap::new(broken, TICKING, 1);
        let other = Arc::clone(&heap);
        let ticking = thread::spawn(move || other.run());
        // The handler holds the lock; the child is a copy of the memory at this moment.
        let memory = heap.memory.lock().unwrap();
        let held = memory.held;
        let child = Heap::new(broken, heap.state.load(Ordering::Relaxed), memory.idle);
        drop(memory);
        ticking.join().unwrap();
        assert_eq!(held, 0, "the child has a block that nobody frees");
        if broken != Break::StateKept {
            child.change(TICKING, RESTING);
        }
        if child.free() {
            child.run();
        }
        assert!(!child.has_idle(), "memory was forgotten");
    });
}

/// Models the end of the last thread with a heap while the purger begins to wait: the purger sees the thread's end, or
/// is woken.
fn end_beside_rest(broken: Break) {
    loom::model(move || {
        let heap = Heap::new(broken, TICKING, 0);
        let threads = Arc::new(AtomicU32::new(1));
        let (other, count) = (Arc::clone(&heap), Arc::clone(&threads));
        let purging = thread::spawn(move || {
            let early = count.load(Ordering::Relaxed);
            other.state.store(RESTING, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let left = match broken {
                Break::CountThenRest => early,
                _ => count.load(Ordering::Relaxed),
            };
            if left == 0 {
                other.change(RESTING, TICKING);
            }
        });
        threads.fetch_sub(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if threads.load(Ordering::Relaxed) == 0 {
            heap.change(RESTING, TICKING);
        }
        purging.join().unwrap();
        let state = heap.state.load(Ordering::Relaxed);
        assert_eq!(state, TICKING, "the purger waits for nobody");
    });
}

/// Models a finite delay that the program sets while the purger turns off for an infinite one: the ticks do not stay
/// off.
fn delay_beside_off(broken: Break) {
    loom::model(move || {
        let heap = Heap::new(broken, TICKING, 0);
        let is_finite = Arc::new(AtomicU32::new(0));
        let (other, delay) = (Arc::clone(&heap), Arc::clone(&is_finite));
        let purging = thread::spawn(move || {
            other.change(TICKING, OFF);
            fence(Ordering::SeqCst);
            if broken != Break::DelayThenOff && delay.load(Ordering::Relaxed) > 0 {
                other.change(OFF, RESTING);
            }
        });
        is_finite.store(1, Ordering::Relaxed);
        if broken != Break::DelayWithoutFence {
            fence(Ordering::SeqCst);
        }
        heap.change(OFF, RESTING);
        purging.join().unwrap();
        let state = heap.state.load(Ordering::Relaxed);
        assert_eq!(state, RESTING, "ticks stay off");
    });
}

models! {
    a_delay_that_changes_while_the_purger_turns_off_is_seen => delay_beside_off(Break::Nothing);
    broken_twin_a_delay_read_before_the_state_is_written_is_found rejected "ticks stay off" =>
        delay_beside_off(Break::DelayThenOff);
    broken_twin_a_delay_set_without_a_fence_is_found rejected "ticks stay off" =>
        delay_beside_off(Break::DelayWithoutFence);
    a_purger_that_goes_to_wait_sees_the_last_thread_end_or_is_woken => end_beside_rest(Break::Nothing);
    broken_twin_a_count_before_the_wait_is_found rejected "the purger waits for nobody" =>
        end_beside_rest(Break::CountThenRest);
    what_is_freed_while_the_purger_goes_to_rest_is_seen_by_one_of_both => free_beside_rest(Break::Nothing);
    a_child_has_no_half_done_step_and_ticks_by_itself => fork_beside_tick(Break::Nothing);
    broken_twin_a_look_before_the_rest_is_found rejected "memory was forgotten" =>
        free_beside_rest(Break::LookThenRest);
    broken_twin_a_state_read_before_the_free_is_found rejected "memory was forgotten" =>
        free_beside_rest(Break::ReadThenFree);
    broken_twin_a_step_in_two_halves_is_found rejected "a block that nobody frees" =>
        fork_beside_tick(Break::HalfStep);
    broken_twin_a_child_that_waits_for_its_parents_thread_is_found rejected "memory was forgotten" =>
        fork_beside_tick(Break::StateKept);
}
