//! [`CallBaseline`]: a stand-in driver's calls since a contender was created, by name.
//!
//! The driver counts the calls of the whole process. Its counts are read when the contender is
//! created, to exclude earlier calls. Reading the bytes held costs calls too: their number is
//! measured once and subtracted for each reading, so that only the contender's own calls remain.

use std::cell::Cell;

use larder_cuda::driver::StandIn;

use crate::replay::{CallsByName, beyond};

/// Returns the stand-in's counts of calls so far.
fn table(stand_in: &StandIn) -> CallsByName {
    stand_in.call_table().into_iter().collect()
}

/// The counts from which a contender's own calls are computed.
pub(super) struct CallBaseline {
    stand_in: &'static StandIn,
    start: CallsByName,
    /// Calls made by one reading of the bytes held.
    a_look: CallsByName,
    looks: Cell<u64>,
}

impl CallBaseline {
    /// Starts counting. `look` reads the bytes held, and runs once here to count the calls that
    /// each [`looked`](Self::looked) subtracts.
    pub(super) fn new(stand_in: &'static StandIn, look: impl Fn()) -> Self {
        let before = table(stand_in);
        look();
        let a_look = beyond(&table(stand_in), &before, 1);
        Self {
            stand_in,
            start: table(stand_in),
            a_look,
            looks: Cell::new(0),
        }
    }

    /// Counts a reading of the bytes held.
    pub(super) fn looked(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    /// Returns the contender's own calls.
    pub(super) fn by_name(&self) -> CallsByName {
        let all = beyond(&table(self.stand_in), &self.start, 1);
        beyond(&all, &self.a_look, self.looks.get())
    }
}
