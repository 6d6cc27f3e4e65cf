//! Which way the allocations of a stream go, in one load.

use larder_core::StreamId;
use larder_core::sync::{AtomicU8, Ordering};

/// The way of a stream's allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AllocRoute {
    /// Its arena, then the core.
    Plain,
    /// Its steps may have a place.
    Steps,
    /// A capture is under way, or expected: only its window.
    Window,
}

const STEPS: u8 = 1;
const WINDOW: u8 = 2;

/// The ways of all streams.
pub(super) struct Routes(Vec<AtomicU8>);

impl Routes {
    pub(super) fn new() -> Self {
        Self((0..StreamId::COUNT).map(|_| AtomicU8::new(0)).collect())
    }

    fn bits(&self, stream_id: StreamId) -> Option<&AtomicU8> {
        self.0.get(usize::from(stream_id.number()))
    }

    /// The way of a stream.
    #[inline]
    pub(super) fn of(&self, stream_id: StreamId) -> AllocRoute {
        // Acquire: what the way leads to was made before.
        match self
            .bits(stream_id)
            .map(|bits| bits.load(Ordering::Acquire))
        {
            None | Some(0) => AllocRoute::Plain,
            Some(bits) if bits & WINDOW != 0 => AllocRoute::Window,
            Some(_) => AllocRoute::Steps,
        }
    }

    /// The stream has steps from now on.
    pub(super) fn set_steps(&self, stream_id: StreamId) {
        if let Some(bits) = self.bits(stream_id) {
            bits.fetch_or(STEPS, Ordering::Release);
        }
    }

    /// A window of the stream opens, or closes.
    pub(super) fn set_window(&self, stream_id: StreamId, open: bool) {
        if let Some(bits) = self.bits(stream_id) {
            if open {
                bits.fetch_or(WINDOW, Ordering::Release);
            } else {
                bits.fetch_and(!WINDOW, Ordering::Release);
            }
        }
    }
}
