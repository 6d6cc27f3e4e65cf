//! Chooses which operation runs next, and waits for operations.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use larder_cuda_abi::Code;

use super::{HostCall, OpId, Schedule, SimStream, Work};
use crate::driver::{Session, SimDriver};

/// Maximum time that a thread sleeps before it checks again.
const NAP: Duration = Duration::from_millis(100);

impl SimDriver {
    /// Removes a finished operation from the queue.
    fn finish(&mut self, op: OpId) {
        let Some(entry) = self.queue.ops.remove(&op) else {
            return;
        };
        self.queue.take_ready(entry.stream, op);
        for follower in entry.followers {
            let Some(waiting) = self.queue.ops.get_mut(&follower) else {
                continue;
            };
            waiting.waits -= 1;
            let stream = waiting.stream;
            let known = self.streams.get(stream);
            if known.is_ok_and(|known| known.queue.front() == Some(&follower)) {
                self.queue.make_ready(stream, follower);
            }
        }
        if let Ok(stream) = self.streams.get_mut(entry.stream) {
            stream.queue.pop_front();
            match stream.queue.front() {
                Some(next) => self.queue.make_ready(entry.stream, *next),
                None => self.remove_idle_stream(entry.stream),
            }
        }
    }

    /// Runs operations up to `op`, none of which may be a host function.
    #[cfg(test)]
    pub(crate) fn run_for_test(&mut self, op: OpId) {
        while !self.queue.done(op) {
            let (_, next) = *self.queue.ready.first().expect("an operation");
            let host = self.run(next);
            assert!(host.is_none());
        }
    }

    /// Runs one operation. A host function is not run but returned for the caller to call.
    fn run(&mut self, op: OpId) -> Option<HostCall> {
        let entry = self.queue.ops.get_mut(&op)?;
        let (context, stream) = (entry.context, entry.stream);
        let work = std::mem::replace(&mut entry.work, Work::Nothing);
        if self.alive(context).is_err() {
            // Work of a failed context no longer runs.
            self.finish(op);
            return None;
        }
        if let Work::Host(call) = work {
            self.queue.take_ready(stream, op);
            return Some(call);
        }
        if let Err(code) = self.do_work(op, work) {
            self.fail_context(context, code);
        }
        self.finish(op);
        None
    }
}

impl Session {
    /// Runs one ready operation. Returns false if there is none.
    fn step(&mut self) -> bool {
        let Some(op) = self.queue.choose() else {
            return false;
        };
        if let Some(call) = self.run(op) {
            self.call_host(op, call);
        }
        true
    }

    /// Calls a host function on a thread of its own, without the lock.
    fn call_host(&mut self, op: OpId, call: HostCall) {
        let spawned = thread::Builder::new().spawn(move || {
            crate::thread::set_closed(true);
            // SAFETY: by FFI2 the function may be called with this data, once for each run, on any
            // thread.
            unsafe { (call.function)(call.data as *mut std::ffi::c_void) };
            crate::thread::set_closed(false);
            let mut session = Self::begin();
            session.finish(op);
            session.progress();
            session.changed();
        });
        if spawned.is_err() {
            let context = self.queue.ops.get(&op).map(|entry| entry.context);
            self.finish(op);
            if let Some(context) = context {
                self.fail_context(context, Code::OPERATING_SYSTEM);
            }
            return;
        }
        if matches!(self.queue.schedule, Schedule::Deferred(_)) {
            let patience = self.queue.host_patience;
            let deadline = patience.map(|patience| Instant::now() + patience);
            while !self.queue.done(op) {
                let left = deadline.map_or(NAP, |deadline| {
                    deadline.saturating_duration_since(Instant::now())
                });
                if left.is_zero() {
                    return;
                }
                self.wait(left);
            }
        }
    }

    /// Runs all ready operations, in the eager schedule.
    pub(crate) fn progress(&mut self) {
        while matches!(self.queue.schedule, Schedule::Eager) && self.step() {}
    }

    /// In the deferred schedule, randomly runs some queued work: one operation or more in every
    /// fourth call on average.
    pub(crate) fn chance(&mut self) {
        loop {
            let Schedule::Deferred(random) = &mut self.queue.schedule else {
                return;
            };
            if random.below(4) != 0 || !self.step() {
                return;
            }
        }
    }

    /// In the deferred schedule, runs one operation because the program queries the state of work,
    /// so that a program that polls makes progress.
    pub(crate) fn asked(&mut self) {
        if matches!(self.queue.schedule, Schedule::Deferred(_)) {
            self.step();
        }
    }

    /// Runs work, lets time pass or waits for host functions, until `done`.
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&SimDriver) -> bool) {
        while !done(self) {
            if !self.step() && !self.pass_to_next_end() {
                self.wait(NAP);
            }
        }
    }

    /// Waits for the newest operations of these streams, which are then ordered before the host's
    /// work.
    pub(crate) fn sync_streams(&mut self, streams: &[usize]) -> Result<(), Code> {
        let known: Vec<&SimStream> = streams
            .iter()
            .filter_map(|stream| self.streams.get(*stream).ok())
            .collect();
        let mut newest: Vec<OpId> = known.iter().map(|stream| stream.newest).collect();
        newest.retain(|op| !self.queue.done(*op));
        let contexts: BTreeSet<usize> = known.iter().map(|stream| stream.context).collect();
        // The clocks are read before the wait, because the host does not wait for work that other
        // threads submit later.
        let mut clock = self.host.clone();
        for stream in streams {
            let Ok(known) = self.streams.get(*stream) else {
                continue;
            };
            clock.join_stream(*stream, &known.clock);
            if known.is_legacy {
                clock.join(&self.contexts.get(known.context)?.ended_blocking);
            }
        }
        self.run_until(|driver| {
            while newest.last().is_some_and(|op| driver.queue.done(*op)) {
                newest.pop();
            }
            newest.is_empty()
        });
        self.host.join(&clock);
        self.settle_pools();
        for context in contexts {
            self.alive(context)?;
        }
        Ok(())
    }

    /// Waits for all work queued in a context.
    pub(crate) fn sync_context(&mut self, context: usize) -> Result<(), Code> {
        let streams = self.streams_of(context);
        let ended = self.contexts.get(context)?.ended.clone();
        let outcome = self.sync_streams(&streams);
        self.host.join(&ended);
        outcome?;
        self.alive(context)
    }

    /// Waits for all work queued on a device.
    pub(crate) fn sync_device(&mut self, device: usize) {
        for context in self.contexts.all(|context| context.device == device) {
            // The context reports a failure.
            let _ = self.sync_context(context);
        }
    }

    /// Waits for one operation.
    pub(crate) fn sync_op(&mut self, op: OpId, stream: usize) -> Result<(), Code> {
        let stream = self.streams.get(stream)?;
        // The clock is read before the wait, during which other threads may submit more work.
        let (clock, context) = (stream.clock.clone(), stream.context);
        self.run_until(|driver| driver.queue.done(op));
        self.host.join(&clock);
        self.alive(context)
    }
}
