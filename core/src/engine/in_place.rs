//! Constructs an engine in place, for [`Shared::place`](crate::Shared::place).

use heapless::Vec;

use super::{Chunk, Chunks, Counters, Link};
use crate::error::ConfigError;
use crate::units::Granule;

impl<'t> Chunks<'t> {
    /// Writes the value that [`new`](Self::new) returns to `at`.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes, and all its bytes are 0.
    pub(crate) unsafe fn place(
        at: *mut Self,
        granule: Granule,
        limit_bytes: u64,
        table: &'t mut [Chunk],
    ) -> Result<(), ConfigError> {
        let table = Self::records(table)?;
        // SAFETY: `at` is valid for writes, so its parts are, too. The parts that are not written are numbers, which
        // are 0 in a new engine: the bins, the streams, the regions except their order, and the rest.
        unsafe {
            (&raw mut (*at).granule).write(granule);
            (&raw mut (*at).limit_bytes).write(limit_bytes);
            (&raw mut (*at).counters).write(Counters::default());
            (&raw mut (*at).newest_region).write(None);
            (&raw mut (*at).wilderness).write(Link::NIL);
            (&raw mut (*at).table).write(table);
            (&raw mut (*at).regions.order).write(Vec::new());
        }
        Ok(())
    }
}

/// Lists the fields that [`Chunks::place`] writes and those that it leaves zero. This does not compile if a field is
/// missing.
const _: fn(Chunks<'_>) = |chunks| {
    let Chunks {
        excused_bytes: _,
        in_flight_bytes: _,
        is_over_limit: _,
        apart: _,
        reserved: _,
        bins: _,
        streams: _,
        // Written:
        limit_bytes: _,
        granule: _,
        counters: _,
        newest_region: _,
        wilderness: _,
        table: _,
        regions: _,
    } = chunks;
};
