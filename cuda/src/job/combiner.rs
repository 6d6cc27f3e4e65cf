//! [`Combiner`]: a value that one thread at a time works on, while no lock is held. A thread that finds the
//! value taken may leave its work to the thread that has it (flat combining).
//!
//! COMB1 The value is in its place, or one thread has it and returns it, even after a panic.
//! COMB2 A thread that finds the value taken may leave: the thread that has it works once more before
//! returning it, and so sees everything that happened before the other thread left.
//! COMB3 No thread waits for itself: a thread that has the value and requests it again, from a callback,
//! leaves.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use crate::driver::locked;

#[derive(Debug)]
pub(super) struct Combiner<T> {
    state: Mutex<CombinerState<T>>,
    back: Condvar,
}

#[derive(Debug)]
struct CombinerState<T> {
    value: Option<T>,
    holder: Option<ThreadId>,
    /// Whether a thread has left its work to the holder (COMB2).
    again: bool,
}

/// The value, taken by this thread. Dropping this returns the value (COMB1).
struct Working<'d, T> {
    combiner: &'d Combiner<T>,
    value: Option<T>,
}

impl<T> Combiner<T> {
    pub(super) const fn new(value: T) -> Self {
        Self {
            state: Mutex::new(CombinerState {
                value: Some(value),
                holder: None,
                again: false,
            }),
            back: Condvar::new(),
        }
    }

    /// Runs `work` once no other thread has the value, and then `again` until no thread has left in the
    /// meantime. If this thread already has the value, returns `None` and leaves `again` to the work under
    /// way (COMB3).
    pub(super) fn work<R>(
        &self,
        work: impl FnOnce(&mut T) -> R,
        again: impl FnMut(&mut T),
    ) -> Option<R> {
        self.take(true)?.run(work, again)
    }

    /// Runs `work`, and repeats it until no thread has left in the meantime. Leaves if the value is taken. Returns
    /// whether it ran.
    pub(super) fn work_or_leave(&self, work: impl Fn(&mut T)) -> bool {
        let working = self.take(false);
        working.is_some_and(|working| working.run(&work, &work).is_some())
    }

    fn take(&self, waits: bool) -> Option<Working<'_, T>> {
        let me = thread::current().id();
        let mut state = locked(&self.state);
        loop {
            if let Some(value) = state.value.take() {
                state.holder = Some(me);
                return Some(Working {
                    combiner: self,
                    value: Some(value),
                });
            }
            if !waits || state.holder == Some(me) {
                state.again = true;
                return None;
            }
            state = self
                .back
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Working<'_, T> {
    fn run<R>(
        mut self,
        work: impl FnOnce(&mut T) -> R,
        mut again: impl FnMut(&mut T),
    ) -> Option<R> {
        let answer = work(self.value.as_mut()?);
        while !self.put_back() {
            again(self.value.as_mut()?);
        }
        Some(answer)
    }

    /// Returns the value to its place and returns true. If a thread has left in the meantime, keeps the value
    /// and returns false.
    fn put_back(&mut self) -> bool {
        let mut state = locked(&self.combiner.state);
        if core::mem::take(&mut state.again) {
            return false;
        }
        state.value = self.value.take();
        state.holder = None;
        drop(state);
        self.combiner.back.notify_all();
        true
    }
}

impl<T> Drop for Working<'_, T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            // After a panic the next holder does the work that others left.
            let mut state = locked(&self.combiner.state);
            state.value = Some(value);
            state.holder = None;
            drop(state);
            self.combiner.back.notify_all();
        }
    }
}
