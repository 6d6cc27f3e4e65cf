//! Drives one contender through one trace and measures it.
//!
//! Two kinds of passes, each with a fresh contender:
//! * *timed*: nothing but the contender's `alloc` and `free` between two looks
//!   at the clock; the tables of the loop are allocated before;
//! * *sampled*: after every event live and reserved bytes are noted, and every
//!   block is checked against all live ones. What it finds wrong is a
//!   [`Violation`], never a figure in a table.
//!
//! No lock: a replay runs on one thread.

mod contender;
mod curve;
mod live_map;
mod registry;
#[cfg(test)]
mod tests;

use std::hint::black_box;
use std::time::{Duration, Instant};

use thiserror::Error;

pub use contender::{Contender, ContenderSpec, Slot};
pub use curve::{Curve, Point};
pub use live_map::{LiveBlock, LiveMap};
pub use registry::contenders;

use crate::trace::{Event, Trace};

/// Timed passes per replay; the fastest counts, because whatever disturbs a
/// pass (another process, a page fault) only ever makes it slower.
const TIMED_PASSES: u32 = 3;

/// What one contender did on one trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Blocks served: all of the trace's, if it completed.
    pub allocations: u64,
    /// Most requested bytes live at once, unrounded.
    pub peak_live_bytes: u64,
    /// Most bytes the contender held from its device at once.
    pub peak_reserved_bytes: u64,
    /// Regions or blocks taken from the device.
    pub driver_allocations: u64,
    /// Regions or blocks given back to the device.
    pub driver_frees: u64,
    /// Wall time of one `alloc` or `free`, averaged over the fastest timed
    /// pass; `None` if there was no operation.
    pub ns_per_operation: Option<f64>,
    /// Whether every block was served. If not, the replay stopped at the first
    /// refusal, and the other figures are those up to there.
    pub completed: bool,
    /// The refused event, counted from 1 without header lines; `None` if the replay completed.
    pub stopped_at_event: Option<u64>,
    /// Live and reserved bytes over the events.
    pub curve: Curve,
}

impl Outcome {
    /// Peak reserved over peak live; `None` if nothing was ever live.
    #[must_use]
    pub fn reserved_over_live(&self) -> Option<f64> {
        let live = self.peak_live_bytes;
        (live > 0).then(|| self.peak_reserved_bytes as f64 / live as f64)
    }
}

/// A contender broke its contract: a bug in it, not in the trace.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{allocator} broke its contract at event {event} of {trace}: {fault}")]
pub struct Violation {
    /// The contender.
    pub allocator: &'static str,
    /// The trace it ran.
    pub trace: String,
    /// The event, counted from 1 without header lines.
    pub event: u64,
    /// What it did.
    pub fault: Fault,
}

/// The way in which a contender broke its contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// A block shares bytes with a live one.
    #[error("{new} overlaps the live {old}")]
    Overlap {
        /// The block just handed out.
        new: LiveBlock,
        /// The live block it overlaps.
        old: LiveBlock,
    },
    /// A block runs past the end of the address space.
    #[error(
        "block {id} at address {address} with {bytes} bytes passes the end of the address space"
    )]
    PastTheEnd {
        /// The block's id.
        id: u32,
        /// Its first address.
        address: u64,
        /// Its size.
        bytes: u64,
    },
    /// Fewer bytes are said to be reserved than are live.
    #[error("{reserved_bytes} bytes are said to be reserved while {live_bytes} are live")]
    ReservedBelowLive {
        /// What the contender says.
        reserved_bytes: u64,
        /// The sum of the live blocks' requested sizes.
        live_bytes: u64,
    },
}

/// Replays `trace` with fresh contenders built by `spec`, on a device of
/// `device_bytes` (or without limit).
///
/// # Errors
/// A [`Violation`] if the contender handed out overlapping blocks or counts
/// less reserved than live.
pub fn replay(
    spec: &ContenderSpec,
    trace: &Trace,
    device_bytes: Option<u64>,
) -> Result<Outcome, Violation> {
    let mut slots = vec![Slot::default(); trace.allocations() as usize];
    let mut outcome = sampled_pass(spec, trace, device_bytes, &mut slots)?;
    let passes = (0..TIMED_PASSES).map(|_| {
        let mut contender = (spec.build)(device_bytes);
        timed_pass(contender.as_mut(), trace.events(), &mut slots)
    });
    let fastest = passes.filter(|&(_, operations)| operations > 0).min();
    outcome.ns_per_operation =
        fastest.map(|(time, operations)| time.as_nanos() as f64 / operations as f64);
    Ok(outcome)
}

/// Nothing in here but the contender's own work and one table write a block.
fn timed_pass(
    contender: &mut dyn Contender,
    events: &[Event],
    slots: &mut [Slot],
) -> (Duration, u64) {
    let mut operations = 0;
    let start = Instant::now();
    for event in events {
        match *event {
            Event::Alloc { id, bytes } => match contender.alloc(bytes) {
                Some(slot) => slots[id as usize] = slot,
                None => break,
            },
            Event::Free { id } => contender.free(slots[id as usize]),
            Event::Step { .. } => continue,
        }
        operations += 1;
    }
    let time = start.elapsed();
    black_box(slots);
    (time, operations)
}

fn sampled_pass(
    spec: &ContenderSpec,
    trace: &Trace,
    device_bytes: Option<u64>,
    slots: &mut [Slot],
) -> Result<Outcome, Violation> {
    let mut contender = (spec.build)(device_bytes);
    let mut samples = Samples::new(trace.events().len());
    let mut stopped_at_event = None;
    for (index, event) in trace.events().iter().enumerate() {
        let checked = match *event {
            Event::Alloc { id, bytes } => match contender.alloc(bytes) {
                Some(slot) => {
                    slots[id as usize] = slot;
                    samples.allocated(id, slot, bytes)
                }
                None => {
                    stopped_at_event = Some(index as u64 + 1);
                    break;
                }
            },
            Event::Free { id } => {
                contender.free(slots[id as usize]);
                samples.freed(slots[id as usize]);
                Ok(())
            }
            Event::Step { .. } => Ok(()),
        };
        checked
            .and_then(|()| samples.note(index, contender.reserved_bytes()))
            .map_err(|fault| Violation {
                allocator: spec.name,
                trace: trace.name().to_owned(),
                event: index as u64 + 1,
                fault,
            })?;
    }
    Ok(Outcome {
        allocations: samples.allocations,
        peak_live_bytes: samples.peak_live_bytes,
        peak_reserved_bytes: samples.peak_reserved_bytes,
        driver_allocations: contender.driver_allocations(),
        driver_frees: contender.driver_frees(),
        ns_per_operation: None,
        completed: stopped_at_event.is_none(),
        stopped_at_event,
        curve: samples.curve,
    })
}

/// What the sampled pass notes.
struct Samples {
    live: LiveMap,
    allocations: u64,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    curve: Curve,
}

impl Samples {
    fn new(events: usize) -> Self {
        Self {
            live: LiveMap::new(),
            allocations: 0,
            peak_live_bytes: 0,
            peak_reserved_bytes: 0,
            curve: Curve::new(events),
        }
    }

    fn allocated(&mut self, id: u32, slot: Slot, bytes: u64) -> Result<(), Fault> {
        self.live.insert(id, slot.address, bytes)?;
        self.allocations += 1;
        Ok(())
    }

    fn freed(&mut self, slot: Slot) {
        self.live.remove(slot.address);
    }

    fn note(&mut self, event: usize, reserved_bytes: u64) -> Result<(), Fault> {
        let live_bytes = self.live.bytes();
        if reserved_bytes < live_bytes {
            return Err(Fault::ReservedBelowLive {
                reserved_bytes,
                live_bytes,
            });
        }
        self.peak_live_bytes = self.peak_live_bytes.max(live_bytes);
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(reserved_bytes);
        self.curve.note(event, live_bytes, reserved_bytes);
        Ok(())
    }
}
