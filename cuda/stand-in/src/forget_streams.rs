//! Removes destroyed streams from the clocks, which would otherwise grow without end.
//!
//! A clock needs a stream's number as long as an access may be compared with that number: while the
//! stream exists, and while the history of some memory or a freed block of a pool names the stream.
//! The sweep first drops the uses of memory that the host's clock and every queued operation's
//! clock include: all work that is queued now or later is ordered after those uses.

use std::collections::BTreeSet;

use crate::clock::VectorClock;
use crate::driver::SimDriver;

/// Minimum number of removed streams for which a sweep is worth its cost.
const MIN_REMOVED: usize = 64;

/// The counts that decide when the next sweep happens.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    /// Streams removed since the last sweep.
    removed: usize,
    /// Streams that the last sweep found destroyed but still named.
    kept: usize,
}

impl SimDriver {
    /// Counts a removed stream, and occasionally sweeps all clocks. Sweeps are so rare that a
    /// removal costs, on average, no more than the visit of a few clocks.
    pub(crate) fn forget_streams(&mut self) {
        self.sweeps.removed += 1;
        if self.sweeps.removed < MIN_REMOVED.max(self.sweeps.kept) {
            return;
        }
        let mut known = self.host.clone();
        for op in self.queue.ops.values() {
            known.meet(&op.clock);
        }
        let mut named: BTreeSet<usize> = BTreeSet::from([0]);
        self.space.shadows.retain(|_, shadow| {
            shadow.forget(&known);
            shadow.name_streams(&mut named);
            !shadow.is_empty()
        });
        self.pools.name_streams(&mut named);
        let lives = |stream: usize| self.streams.get(stream).is_ok();
        let kept = named.iter().filter(|stream| !lives(**stream)).count();
        named.extend(self.streams.iter().map(|(stream, _)| stream));
        self.sweeps = Sweeps { removed: 0, kept };
        self.each_clock(|clock| clock.keep(|stream| named.contains(&stream)));
    }

    fn each_clock(&mut self, mut act: impl FnMut(&mut VectorClock)) {
        act(&mut self.host);
        self.queue
            .ops
            .values_mut()
            .for_each(|op| act(&mut op.clock));
        self.streams.each(|stream| act(&mut stream.clock));
        self.contexts.each(|context| {
            act(&mut context.ended);
            act(&mut context.ended_blocking);
        });
        self.events.each(|event| {
            if let Some(record) = &mut event.record {
                act(&mut record.clock);
            }
        });
        self.execs.each(|exec| {
            if let Some((_, clock)) = &mut exec.last {
                act(clock);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::config::StandInConfig;
    use crate::driver::SimDriver;
    use crate::queue::{SimStream, Work};

    #[test]
    fn clocks_do_not_grow_with_streams_that_are_gone() {
        let mut driver = SimDriver::new(&StandInConfig {
            devices: 1,
            bytes: 1 << 20,
            seed: None,
            shared: None,
            version: 12_080,
            pinned_bytes: u64::MAX,
            mapping_waits: false,
            capture_rules: crate::capture::CaptureRules::Documented,
            virtual_memory: true,
            stale_aliases: false,
            late_memory: false,
            address_bytes: u64::MAX,
        });
        let context = driver.new_context(0, None);
        let first = driver.contexts.get(context).unwrap().legacy;
        for _ in 0..2000 {
            let handle = driver.handles.next();
            driver.streams.insert(handle, SimStream::new(context, 0));
            // The default stream waits for each of them.
            let op = driver.submit(handle, Work::Nothing).unwrap();
            driver.submit(first, Work::Nothing).unwrap();
            driver.run_for_test(op);
            driver.destroy_stream(handle).unwrap();
        }
        let clock = driver.clock_of_next(first).unwrap();
        assert!(clock.streams() < 500, "{} streams", clock.streams());
    }
}
