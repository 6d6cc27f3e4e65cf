//! [`Calls`]: a stand-in driver's calls by name, since a contender was made.
//!
//! The driver counts for the whole process. What others called before is left out by a look at the
//! table when the contender is made; what looking at the memory held costs in calls is measured once,
//! and taken off for each look, so that what remains is the contender's own work.

use std::cell::Cell;

use larder_cuda::driver::StandIn;

use crate::replay::{CallsByName, beyond};

/// Calls of the stand-in so far.
fn table(stand_in: &StandIn) -> CallsByName {
    stand_in.call_table().into_iter().collect()
}

/// Where a contender's calls are counted from.
pub(super) struct Calls {
    stand_in: &'static StandIn,
    start: CallsByName,
    /// What one look costs.
    a_look: CallsByName,
    looks: Cell<u64>,
}

impl Calls {
    /// Starts counting now. `look` reads the memory held; it runs here once, to learn how many calls each
    /// [`looked`](Self::looked) has to take off.
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

    /// A look was taken.
    pub(super) fn looked(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    /// The contender's own calls.
    pub(super) fn by_name(&self) -> CallsByName {
        let all = beyond(&table(self.stand_in), &self.start, 1);
        beyond(&all, &self.a_look, self.looks.get())
    }
}
