//! The time that kernels take, for tests of programs that run ahead of the device.
//!
//! Initially, a kernel takes only the time of its body, and events use the system's time. Once a
//! test has set how long kernels take, or moved the time, events use the *device's time*: a number
//! that stands still while the program runs, and moves when a test moves it or a thread waits for
//! work. A kernel begins when everything before it is over and the schedule allows it (the eager
//! schedule immediately), and its body runs when its time has passed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{OpId, Schedule, Work, WorkQueue};
use crate::driver::{Session, SimDriver};

/// The device's time, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Time {
    start: Instant,
    /// Current time, or `None` if the system's time is used.
    now: Option<u64>,
    /// Duration of kernels, by name.
    kernels: BTreeMap<String, u64>,
    /// Time in which at least one kernel ran, by device.
    busy: BTreeMap<usize, u64>,
}

impl Time {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            now: None,
            kernels: BTreeMap::new(),
            busy: BTreeMap::new(),
        }
    }

    /// Returns the time that an event records.
    pub(super) fn reading(&self) -> Duration {
        self.now
            .map_or_else(|| self.start.elapsed(), Duration::from_nanos)
    }

    /// Returns the end of work that begins now.
    pub(super) fn end_of(&self, takes: u64) -> u64 {
        self.now.unwrap_or(0).saturating_add(takes)
    }

    /// Returns the duration of `work`.
    pub(super) fn taken_by(&self, work: &Work) -> u64 {
        match work {
            Work::Kernel(launch) => self.kernels.get(&launch.name).copied().unwrap_or(0),
            _ => 0,
        }
    }

    /// Sets the duration of kernels of this name.
    pub(crate) fn set_kernel(&mut self, name: String, ns: u64) {
        self.now.get_or_insert(0);
        self.kernels.insert(name, ns);
    }

    /// Returns the time during which a device ran kernels.
    pub(crate) fn busy(&self, device: usize) -> u64 {
        self.busy.get(&device).copied().unwrap_or(0)
    }
}

impl WorkQueue {
    /// Returns whether the time of a ready operation has passed.
    fn is_over(&self, op: OpId) -> bool {
        let now = self.time.now.unwrap_or(0);
        self.ops.get(&op).is_none_or(|entry| entry.ends <= now)
    }

    /// Returns the operation to run next.
    pub(super) fn choose(&mut self) -> Option<OpId> {
        let over: Vec<OpId> = match self.time.now {
            None => self.ready.iter().map(|(_, op)| *op).collect(),
            Some(_) => {
                let ready = self.ready.iter().map(|(_, op)| *op);
                ready.filter(|op| self.is_over(*op)).collect()
            }
        };
        let index = match &mut self.schedule {
            _ if over.is_empty() => return None,
            Schedule::Eager => 0,
            Schedule::Deferred(random) => random.below(over.len()),
        };
        over.get(index).copied()
    }
}

impl SimDriver {
    /// Returns the next time at which a running kernel ends.
    fn next_end(&self) -> Option<u64> {
        let now = self.queue.time.now?;
        let ready = self.queue.ready.iter();
        let ends = ready.filter_map(|(_, op)| Some(self.queue.ops.get(op)?.ends));
        ends.filter(|end| *end > now).min()
    }

    /// Advances the time to `to`. No kernel begins or ends in between.
    fn pass_to(&mut self, to: u64) {
        let now = self.queue.time.now.replace(to).unwrap_or(0);
        let running = |op: &OpId| {
            let entry = self.queue.ops.get(op)?;
            let context = self.contexts.get(entry.context).ok()?;
            (entry.ends > now).then_some(context.device)
        };
        let ready = self.queue.ready.iter();
        let mut devices: Vec<usize> = ready.filter_map(|(_, op)| running(op)).collect();
        devices.sort_unstable();
        devices.dedup();
        for device in devices {
            *self.queue.time.busy.entry(device).or_default() += to - now;
        }
    }

    /// Advances the time to the next end of a kernel. Returns false if no kernel is running.
    pub(super) fn pass_to_next_end(&mut self) -> bool {
        let next = self.next_end();
        if let Some(next) = next {
            self.pass_to(next);
        }
        next.is_some()
    }
}

impl Session {
    /// Lets time pass on the device. Returns the new time.
    pub(crate) fn advance(&mut self, ns: u64) -> u64 {
        let to = self.queue.time.end_of(ns);
        self.progress();
        while self.next_end().is_some_and(|next| next <= to) {
            self.pass_to_next_end();
            self.progress();
        }
        self.pass_to(to);
        to
    }
}
