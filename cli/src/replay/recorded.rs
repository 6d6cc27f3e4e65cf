//! Another run of a replay, recorded completely for PyTorch's viewer.

use super::tape::{Played, TapeAction};
use super::{
    Contender, ContenderBlock, ContenderSpec, DriverCalls, Options, Replay, ReplayScript, no_tape,
};
use crate::snapshot::{Snapshot, TracePosition};

/// Replays a script once more. Returns the record of all events, up to a refusal. An error says
/// what the allocator does not report about its memory, or reports wrongly.
pub(crate) fn record(
    spec: &ContenderSpec,
    script: &mut ReplayScript,
    options: &Options,
) -> Result<Snapshot, String> {
    let mut slots = vec![ContenderBlock::default(); script.places()];
    let replay = Replay::new(spec, script, options, &|_| {}, &mut slots);
    let mut replay = replay.map_err(|error| no_tape(&error))?;
    replay.recorded_run(options.device_bytes)
}

/// The figures that change whenever the memory held changes.
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
    fn recorded_run(&mut self, device_bytes: Option<u64>) -> Result<Snapshot, String> {
        let mut recorded = RecordedRun {
            allocator: self.spec.name,
            contender: self.build(device_bytes),
            slots: vec![ContenderBlock::default(); self.script.places()],
            snapshot: Snapshot::default(),
            seen: None,
            device_bytes,
        };
        let mut place = TracePosition { event: 1, pass: 1 };
        'passes: for pass in self.script.passes() {
            let batches = self.script.tape(pass).batches();
            let mut batches = batches.map_err(|error| no_tape(&error))?;
            loop {
                let batch = batches.next().map_err(|error| no_tape(&error))?;
                for &Played { number, act } in batch {
                    place = TracePosition {
                        event: number,
                        pass,
                    };
                    if !recorded.play(act, place)? {
                        break 'passes;
                    }
                }
                if batch.is_empty() {
                    break;
                }
            }
        }
        // The pieces can change even if the device's memory does not.
        recorded.hold(place)?;
        if !recorded.snapshot.holds_all_blocks() {
            return Err(recorded.wrong("does not hold the memory of all its blocks"));
        }
        Ok(recorded.snapshot)
    }
}

/// A run and its record.
struct RecordedRun {
    allocator: &'static str,
    contender: Box<dyn Contender>,
    slots: Vec<ContenderBlock>,
    snapshot: Snapshot,
    seen: Option<Mark>,
    device_bytes: Option<u64>,
}

impl RecordedRun {
    /// Plays an event. Returns whether it was served.
    fn play(&mut self, act: TapeAction, event: TracePosition) -> Result<bool, String> {
        let mut refused = None;
        match act {
            TapeAction::Alloc {
                place,
                bytes,
                stream,
                ..
            } => match self.contender.alloc_on(stream, bytes) {
                Some(slot) => self.slots[place] = slot,
                None => refused = Some(bytes),
            },
            TapeAction::Free { place } => {
                self.contender.free(self.slots[place]);
                self.snapshot.free(self.slots[place].address, event);
            }
            TapeAction::Step { .. } => self.contender.end_step(),
            TapeAction::StartOver => self.contender.start_over(),
        }
        let now = mark(self.contender.as_ref());
        if self.seen != Some(now) {
            self.hold(event)?;
            self.seen = Some(now);
        }
        if let Some(bytes) = refused {
            let left = self.device_bytes.unwrap_or(0);
            let left = left.saturating_sub(self.contender.reserved_bytes());
            self.snapshot.refuse(bytes, left, event);
            return Ok(false);
        }
        if let TapeAction::Alloc { place, bytes, .. } = act {
            self.snapshot.alloc(self.slots[place].address, bytes, event);
        }
        Ok(true)
    }

    fn hold(&mut self, event: TracePosition) -> Result<(), String> {
        let held = self.contender.held();
        let held = held.ok_or_else(|| self.wrong("does not say where it holds memory"))?;
        self.snapshot.hold(held, event);
        if self.snapshot.held_bytes() != self.contender.reserved_bytes() {
            return Err(self.wrong("counts other bytes as reserved than it reports as held"));
        }
        Ok(())
    }

    fn wrong(&self, what: &str) -> String {
        format!("{} {what}, so there is no snapshot of it", self.allocator)
    }
}
