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
    /// Nowhere: the allocator sleeps.
    Asleep,
}

const STEPS: u8 = 1;
const WINDOW: u8 = 2;
const ASLEEP: u8 = 4;

/// The ways of all streams, by number.
pub(super) struct Routes([AtomicU8; StreamId::COUNT]);

impl Default for Routes {
    fn default() -> Self {
        Self([const { AtomicU8::new(0) }; StreamId::COUNT])
    }
}

impl Routes {
    #[inline]
    fn way(&self, stream_id: StreamId) -> &AtomicU8 {
        &self.0[usize::from(stream_id.number())]
    }

    /// The way of a stream.
    #[inline]
    pub(super) fn of(&self, stream_id: StreamId) -> AllocRoute {
        // Acquire: what the way leads to was made before.
        match self.way(stream_id).load(Ordering::Acquire) {
            0 => AllocRoute::Plain,
            bits if bits & ASLEEP != 0 => AllocRoute::Asleep,
            bits if bits & WINDOW != 0 => AllocRoute::Window,
            _ => AllocRoute::Steps,
        }
    }

    /// The stream has steps from now on.
    pub(super) fn set_steps(&self, stream_id: StreamId) {
        self.way(stream_id).fetch_or(STEPS, Ordering::Release);
    }

    /// All streams, those to come too, are given nothing from now on; or what they were given before.
    pub(super) fn set_asleep(&self, asleep: bool) {
        for way in &self.0 {
            if asleep {
                way.fetch_or(ASLEEP, Ordering::Release);
            } else {
                way.fetch_and(!ASLEEP, Ordering::Release);
            }
        }
    }

    /// A window of the stream opens, or closes.
    pub(super) fn set_window(&self, stream_id: StreamId, open: bool) {
        if open {
            self.way(stream_id).fetch_or(WINDOW, Ordering::Release);
        } else {
            self.way(stream_id).fetch_and(!WINDOW, Ordering::Release);
        }
    }
}
