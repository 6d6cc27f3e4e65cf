//! One more run of a replay, in which everything is written down for PyTorch's viewer.

use super::{Contender, ContenderSpec, DriverCalls, Options, Replay, ReplayScript, Slot};
use crate::snapshot::{Place, Snapshot};
use larder_trace::{Event, Trace};

/// Replays `trace` once more and gives all that happened, up to a refusal. An error says what `allocator` does
/// not tell of its memory, or tells wrong.
pub(crate) fn record(
    spec: &ContenderSpec,
    trace: &Trace,
    options: &Options,
) -> Result<Snapshot, String> {
    let replay = Replay {
        spec,
        trace,
        script: ReplayScript::new(trace, options.passes, options.repeat),
        plans: options.plans,
        watch: &|_| {},
    };
    replay.recorded_run(options.device_bytes)
}

/// What changes whenever held memory does.
type Mark = (u64, u64, u64, Option<DriverCalls>);

fn mark(contender: &dyn Contender) -> Mark {
    (
        contender.reserved_bytes(),
        contender.driver_allocations(),
        contender.driver_frees(),
        contender.driver_calls(),
    )
}

impl Replay<'_> {
    fn recorded_run(&self, device_bytes: Option<u64>) -> Result<Snapshot, String> {
        let mut contender = self.build(device_bytes);
        let mut slots = vec![Slot::default(); self.trace.allocations() as usize];
        let mut snapshot = Snapshot::default();
        let mut seen = None;
        let mut place = Place { event: 1, pass: 1 };
        'passes: for (pass, events) in self.script.passes() {
            for (index, event) in events.iter().enumerate() {
                let event_number = self.script.number(pass, index);
                place = Place {
                    event: event_number,
                    pass,
                };
                let mut refused = None;
                match *event {
                    Event::Alloc { id, bytes } => match contender.alloc(bytes) {
                        Some(slot) => slots[id as usize] = slot,
                        None => refused = Some(bytes),
                    },
                    Event::Free { id } => {
                        contender.free(slots[id as usize]);
                        snapshot.free(slots[id as usize].address, place);
                    }
                    Event::Step { .. } => contender.end_step(),
                }
                let now = mark(contender.as_ref());
                if seen != Some(now) {
                    self.hold(&mut snapshot, contender.as_ref(), place)?;
                    seen = Some(now);
                }
                if let Some(bytes) = refused {
                    let left = device_bytes.unwrap_or(0);
                    let left = left.saturating_sub(contender.reserved_bytes());
                    snapshot.refuse(bytes, left, place);
                    break 'passes;
                }
                if let Event::Alloc { id, bytes } = *event {
                    snapshot.alloc(slots[id as usize].address, bytes, place);
                }
            }
        }
        // Pieces come and go without the device, too.
        self.hold(&mut snapshot, contender.as_ref(), place)?;
        if !snapshot.holds_all_blocks() {
            return Err(self.wrong("does not hold the memory of all its blocks"));
        }
        Ok(snapshot)
    }

    fn hold(
        &self,
        snapshot: &mut Snapshot,
        contender: &dyn Contender,
        place: Place,
    ) -> Result<(), String> {
        let held = contender.held();
        let held = held.ok_or_else(|| self.wrong("does not say where it holds memory"))?;
        snapshot.hold(held, place);
        if snapshot.held_bytes() != contender.reserved_bytes() {
            return Err(self.wrong("counts other bytes as reserved than it says it holds"));
        }
        Ok(())
    }

    fn wrong(&self, what: &str) -> String {
        format!(
            "{} {what}, so that there is no snapshot of it",
            self.spec.name
        )
    }
}
