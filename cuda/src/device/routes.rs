//! The route of a stream's allocations, read in one load.

use larder_core::StreamId;
use larder_core::sync::{AtomicU8, Ordering};

/// The route of a stream's allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AllocRoute {
    /// The stream's arena, then the core.
    Plain,
    /// The stream's steps, which may have a planned place.
    Steps,
    /// Only the window, while a capture is under way or expected.
    Window,
    /// No memory, while the allocator sleeps.
    Asleep,
}

const STEPS: u8 = 1;
const WINDOW: u8 = 2;
const ASLEEP: u8 = 4;

/// The routes of all streams, by number.
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

    /// Returns the route of a stream.
    #[inline]
    pub(super) fn of(&self, stream_id: StreamId) -> AllocRoute {
        // Acquire: the steps or the window were made before the route was set.
        match self.way(stream_id).load(Ordering::Acquire) {
            0 => AllocRoute::Plain,
            bits if bits & ASLEEP != 0 => AllocRoute::Asleep,
            bits if bits & WINDOW != 0 => AllocRoute::Window,
            _ => AllocRoute::Steps,
        }
    }

    /// Routes the stream to its steps from now on.
    pub(super) fn set_steps(&self, stream_id: StreamId) {
        self.way(stream_id).fetch_or(STEPS, Ordering::Release);
    }

    /// Sets whether allocations on all streams, including later streams, are refused. `false` restores the
    /// previous routes.
    pub(super) fn set_asleep(&self, asleep: bool) {
        for way in &self.0 {
            if asleep {
                way.fetch_or(ASLEEP, Ordering::Release);
            } else {
                way.fetch_and(!ASLEEP, Ordering::Release);
            }
        }
    }

    /// Sets whether a window of the stream is open.
    pub(super) fn set_window(&self, stream_id: StreamId, open: bool) {
        if open {
            self.way(stream_id).fetch_or(WINDOW, Ordering::Release);
        } else {
            self.way(stream_id).fetch_and(!WINDOW, Ordering::Release);
        }
    }
}
