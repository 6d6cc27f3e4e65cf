//! [`CallBaseline`]: a stand-in driver's calls by name, since a contender was made.
//!
//! The driver counts for the whole process. The table is read when the contender is made, to
//! exclude the calls of others. Reading the memory held costs calls too: that cost is measured once
//! and subtracted for each reading, so that the contender's own calls remain.

use std::cell::Cell;

use larder_cuda::driver::StandIn;

use crate::replay::{CallsByName, beyond};

/// Returns the stand-in's counts of calls so far.
fn table(stand_in: &StandIn) -> CallsByName {
    stand_in.call_table().into_iter().collect()
}

/// The base from which a contender's calls are counted.
pub(super) struct CallBaseline {
    stand_in: &'static StandIn,
    start: CallsByName,
    /// Calls that one reading of the memory held costs.
    a_look: CallsByName,
    looks: Cell<u64>,
}

impl CallBaseline {
    /// Starts counting now. `look` reads the memory held. It runs once here, to count the calls
    /// that each [`looked`](Self::looked) must subtract.
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

    /// Counts a reading of the memory held.
    pub(super) fn looked(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    /// Returns the contender's own calls.
    pub(super) fn by_name(&self) -> CallsByName {
        let all = beyond(&table(self.stand_in), &self.start, 1);
        beyond(&all, &self.a_look, self.looks.get())
    }
}
