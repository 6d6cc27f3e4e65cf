//! [`Combiner`]: something that one thread at a time works on, with no lock held while it does.
//!
//! T1 The thing is on the desk, or one thread has it. Whoever has it puts it back, after a panic too.
//! T2 Who finds it taken may leave: whoever has it works again before it is put back, so what was brought
//! about before the leaving is seen by a look that begins after it.
//! T3 Nobody waits for itself: a thread that has the thing and comes back, from a callback, leaves.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use crate::driver::locked;

#[derive(Debug)]
pub(super) struct Combiner<T> {
    state: Mutex<State<T>>,
    back: Condvar,
}

#[derive(Debug)]
struct State<T> {
    value: Option<T>,
    holder: Option<ThreadId>,
    /// Somebody left (T2).
    again: bool,
}

/// Has the thing; puts it back when dropped (T1).
struct Working<'d, T> {
    combiner: &'d Combiner<T>,
    value: Option<T>,
}

impl<T> Combiner<T> {
    pub(super) const fn new(value: T) -> Self {
        Self {
            state: Mutex::new(State {
                value: Some(value),
                holder: None,
                again: false,
            }),
            back: Condvar::new(),
        }
    }

    /// Works, and then `again` as often as others left meanwhile. Waits for the thing if another thread has
    /// it. `None` from inside the work of this thread, which does it again (T3).
    pub(super) fn work<R>(
        &self,
        work: impl FnOnce(&mut T) -> R,
        again: impl FnMut(&mut T),
    ) -> Option<R> {
        self.take(true)?.run(work, again)
    }

    /// Works, once and as often as others left meanwhile; leaves if another thread has the thing.
    pub(super) fn work_or_leave(&self, work: impl Fn(&mut T)) {
        if let Some(working) = self.take(false) {
            working.run(&work, &work);
        }
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

    /// Puts the thing back, unless somebody left; then it is worked on again.
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
            // A panic: what others left is for the next to see.
            let mut state = locked(&self.combiner.state);
            state.value = Some(value);
            state.holder = None;
            drop(state);
            self.combiner.back.notify_all();
        }
    }
}
