//! The requests that the recorded program's own allocator refused, tried on a contender at the point
//! where the program made them.

use std::{io, slice};

use larder_trace::Refusal;
use serde::Serialize;

use super::{Contender, ContenderBlock, Replay, Timed};
use crate::interrupt;

/// The unit in which the largest request that fits is searched for: a page of a device.
const UNIT_BYTES: u64 = 2 << 20;

/// How a contender serves the requests that the recorded program was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct RefusedRequests {
    /// Number of such requests, and of those that the contender serves.
    pub(crate) requests: usize,
    pub(crate) served: usize,
    /// The event before the largest of them, the bytes that were live there, its size, and whether
    /// it is served.
    pub(crate) after_event: u64,
    pub(crate) live_bytes: u64,
    pub(crate) bytes: u64,
    /// Number of blocks that the program allocated after it.
    pub(crate) blocks_after: u32,
    pub(crate) fits: bool,
    /// The largest request that is served there, in multiples of 2 MiB, or `bytes` if that is larger
    /// and is served; 0 if the contender cannot serve the blocks before it.
    pub(crate) largest_bytes: u64,
    /// Size of the device on which they are tried.
    pub(crate) tried_on_bytes: u64,
    /// The bytes that the program could use when it made the request, if they were recorded.
    #[serde(skip)]
    pub(crate) recorded_device_bytes: Option<u64>,
}

impl Replay<'_> {
    /// Tries the refused requests of the trace; `None` if there is none, or if the size of the device
    /// is unknown.
    ///
    /// The program's events are played up to each request; a request that is served is freed at once,
    /// since its life is not recorded. The search for the largest one plays the trace about ten times.
    pub(super) fn refused_requests(
        &mut self,
        device_bytes: Option<u64>,
        slots: &mut [ContenderBlock],
    ) -> io::Result<Option<RefusedRequests>> {
        let requests = self.script.trace().refusals().to_vec();
        // The first of the largest ones.
        let Some(largest) = requests.iter().rev().max_by_key(|request| request.bytes) else {
            return Ok(None);
        };
        let Some(device_bytes) = device_bytes.or(largest.device_bytes) else {
            return Ok(None);
        };
        let served = self.try_requests(device_bytes, &requests, slots)?;
        let mut serves = |bytes| {
            let request = Refusal { bytes, ..*largest };
            let served = self.try_requests(device_bytes, &[request], slots)?;
            Ok::<bool, io::Error>(served == [true])
        };
        let fits = serves(largest.bytes)?;
        let free_bytes = device_bytes.saturating_sub(largest.live_bytes);
        // The units that are known to fit, and those that are known not to.
        let (mut fit, mut too_many) = match fits {
            true => (largest.bytes / UNIT_BYTES, free_bytes / UNIT_BYTES + 1),
            false => (0, largest.bytes.min(free_bytes) / UNIT_BYTES + 1),
        };
        while too_many > fit + 1 && !interrupt::asked() {
            let units = fit.midpoint(too_many);
            match serves(units * UNIT_BYTES)? {
                true => fit = units,
                false => too_many = units,
            }
        }
        let least = if fits { largest.bytes } else { 0 };
        Ok(Some(RefusedRequests {
            requests: requests.len(),
            served: served.into_iter().filter(|served| *served).count(),
            after_event: largest.events_before,
            live_bytes: largest.live_bytes,
            bytes: largest.bytes,
            blocks_after: largest.blocks_after,
            fits,
            largest_bytes: least.max(fit * UNIT_BYTES),
            tried_on_bytes: device_bytes,
            recorded_device_bytes: largest.device_bytes,
        }))
    }

    /// Returns for each request whether it was served. Requests after a block of the trace that does
    /// not fit are not among them.
    fn try_requests(
        &mut self,
        device_bytes: u64,
        requests: &[Refusal],
        slots: &mut [ContenderBlock],
    ) -> io::Result<Vec<bool>> {
        let mut contender = self.build(Some(device_bytes));
        let contender = contender.as_mut();
        let mut served = Vec::new();
        let mut left = requests.iter().peekable();
        let mut try_before = |contender: &mut dyn Contender, event: u64| {
            while let Some(request) = left.next_if(|next| next.events_before < event) {
                let slot = contender.alloc_on(0, request.bytes);
                served.push(slot.is_some());
                slot.into_iter().for_each(|slot| contender.free(slot));
            }
            served.len() == requests.len()
        };
        let mut batches = self.script.tape(1).batches()?;
        loop {
            let batch = batches.next()?;
            for event in batch {
                let all_tried = try_before(contender, event.number);
                let mut played = Timed::new();
                played.play(contender, slice::from_ref(event), slots);
                if all_tried || !played.completed {
                    return Ok(served);
                }
            }
            if batch.is_empty() {
                try_before(contender, u64::MAX);
                return Ok(served);
            }
        }
    }
}
