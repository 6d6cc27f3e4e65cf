//! The order of events of a program on several streams. Each free is an event on its block's
//! stream. The event completes [`DELAY`] operations later, or earlier if an allocation would
//! otherwise fail.
//!
//! Until a second stream is used, frees do not become events.

use std::collections::VecDeque;

use larder_core::{EventNumber, Request, StreamId, StreamPoint};

use crate::replay::ContenderBlock;

/// Number of the program's operations after which an event is completed.
const DELAY: u64 = 64;

/// A contender's record of the streams.
pub(crate) struct StreamOrder {
    /// The stream of each block, by handle.
    of: Vec<u8>,
    several: bool,
    operations: u64,
    queued: VecDeque<StreamPoint>,
}

impl StreamOrder {
    /// Creates a record for blocks whose handles are below `handles`.
    pub(crate) fn new(handles: usize) -> Self {
        Self {
            of: vec![0; handles],
            several: false,
            operations: 0,
            queued: VecDeque::new(),
        }
    }

    /// Returns the request that is passed to the core. No stream waits for another one, as in
    /// PyTorch.
    pub(crate) const fn request(stream: u8, bytes: u64) -> Request {
        Request::new(bytes).on(StreamId::new(stream)).without_wait()
    }

    /// Begins the next operation. Returns the event that completes with it, if any.
    pub(crate) fn next_operation(&mut self) -> Option<StreamPoint> {
        self.operations += 1;
        // An operation adds at most one event.
        let oldest = self.queued.front()?;
        if oldest.event.number() + DELAY > self.operations {
            return None;
        }
        self.queued.pop_front()
    }

    /// Waits for all streams, as PyTorch does before it reports out of memory. Returns the
    /// completed events.
    pub(crate) fn wait(&mut self) -> Vec<StreamPoint> {
        self.queued.drain(..).collect()
    }

    /// Records the stream of a new block.
    pub(crate) fn came(&mut self, slot: ContenderBlock, stream: u8) {
        self.several |= stream > 0;
        if self.several {
            self.of[slot.handle as usize] = stream;
        }
    }

    /// Records a free in this operation. Returns the event that other streams must wait for.
    pub(crate) fn freed(&mut self, slot: ContenderBlock) -> Option<StreamPoint> {
        if !self.several {
            return None;
        }
        let point = StreamPoint {
            stream: StreamId::new(self.of[slot.handle as usize]),
            event: EventNumber::new(self.operations),
        };
        self.queued.push_back(point);
        Some(point)
    }
}

#[cfg(test)]
mod tests {
    use larder_core::RegionConfig;

    use super::*;
    use crate::ours::CoreContender;
    use crate::replay::Contender;

    #[test]
    fn memory_is_free_at_once_on_its_stream_and_later_on_another() {
        let mut core = CoreContender::new(RegionConfig::new(u64::MAX));
        let first = core.alloc_on(1, 2 << 20).unwrap();
        core.free(first);
        assert_eq!(core.alloc_on(1, 2 << 20), Some(first));
        core.free(first);
        let freed_at = core.reserved_bytes();
        for operation in 1..DELAY {
            let other = core.alloc_on(2, 2 << 20).unwrap();
            assert_ne!(other, first, "{operation}");
        }
        assert_eq!(core.reserved_bytes(), freed_at + (DELAY - 1) * (2 << 20));
        assert_eq!(core.alloc_on(2, 2 << 20).unwrap().address, first.address);
    }

    #[test]
    fn one_stream_frees_without_events() {
        let mut streams = StreamOrder::new(8);
        let slot = ContenderBlock::default();
        streams.came(slot, 0);
        assert_eq!(streams.freed(slot), None);
        streams.came(slot, 3);
        assert_eq!(streams.freed(slot).unwrap().stream, StreamId::new(3));
    }
}
