//! Which way the allocations of a lane go, in one load.

use larder_core::Lane;
use larder_core::sync::{AtomicU8, Ordering};

/// The way of a lane's allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// Its front, then the core.
    Plain,
    /// Its steps may have a place.
    Steps,
    /// A capture is under way, or expected: only its window.
    Window,
}

const STEPS: u8 = 1;
const WINDOW: u8 = 2;

/// The ways of all lanes.
pub(super) struct Routes(Vec<AtomicU8>);

impl Routes {
    pub(super) fn new() -> Self {
        Self((0..Lane::COUNT).map(|_| AtomicU8::new(0)).collect())
    }

    fn bits(&self, lane: Lane) -> Option<&AtomicU8> {
        self.0.get(usize::from(lane.number()))
    }

    /// The way of a lane.
    #[inline]
    pub(super) fn of(&self, lane: Lane) -> Route {
        // Acquire: what the way leads to was made before.
        match self.bits(lane).map(|bits| bits.load(Ordering::Acquire)) {
            None | Some(0) => Route::Plain,
            Some(bits) if bits & WINDOW != 0 => Route::Window,
            Some(_) => Route::Steps,
        }
    }

    /// The lane has steps from now on.
    pub(super) fn set_steps(&self, lane: Lane) {
        if let Some(bits) = self.bits(lane) {
            bits.fetch_or(STEPS, Ordering::Release);
        }
    }

    /// A window of the lane opens, or closes.
    pub(super) fn set_window(&self, lane: Lane, open: bool) {
        if let Some(bits) = self.bits(lane) {
            if open {
                bits.fetch_or(WINDOW, Ordering::Release);
            } else {
                bits.fetch_and(!WINDOW, Ordering::Release);
            }
        }
    }
}
