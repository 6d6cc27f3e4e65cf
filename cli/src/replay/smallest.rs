//! The smallest device on which a contender, an allocator under replay, serves the whole script.

use super::{ContenderBlock, Replay, ReplayError};
use crate::interrupt;

/// Number of parts into which the peak live bytes are divided, so that the finest step between
/// sizes is 0.01 %.
const PARTS: u128 = 10_000;

/// Up to this many parts above the peak live bytes (6 %), every size is tried.
const FINE_PARTS: u128 = 600;

/// Stride in parts beyond [`FINE_PARTS`], so that the search ends soon for contenders that need a
/// lot of memory.
const COARSE_STEP: usize = 10;

/// Largest device tried, in parts above the peak live bytes: 30 %.
const MAX_PARTS: u128 = 3_000;

/// The smallest device found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SmallestDevice {
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Size divided by the peak live bytes.
    pub(crate) over_live: f64,
    /// Driver calls on this device: all calls if the device maps pages, otherwise allocations and
    /// releases.
    pub(crate) calls: u64,
}

impl Replay<'_> {
    /// Returns the smallest device from 1 to 1.3 times `live_bytes` on which the script completes,
    /// in steps of 0.01 % up to 1.06 and of 0.1 % above; `None` if the largest is too small.
    ///
    /// A smaller device may suffice even if a larger one does not, so sizes are tried in ascending
    /// order. Only the run on the smallest device found is checked.
    pub(super) fn smallest_device(
        &mut self,
        live_bytes: u64,
        slots: &mut [ContenderBlock],
    ) -> Result<Option<SmallestDevice>, ReplayError> {
        if live_bytes == 0 {
            return Ok(None);
        }
        let size = |parts: u128| {
            let bytes = u128::from(live_bytes) * (PARTS + parts) / PARTS;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let mut completes = |bytes: u64| {
            let timed = self.timed_run(Some(bytes), slots)?;
            Ok::<bool, ReplayError>(timed.completed)
        };
        if !completes(size(MAX_PARTS))? {
            return Ok(None);
        }
        let fine = 0..FINE_PARTS;
        let coarse = (FINE_PARTS..MAX_PARTS).step_by(COARSE_STEP);
        let mut bytes = size(MAX_PARTS);
        for smaller in fine.chain(coarse).map(size) {
            if interrupt::asked() || completes(smaller)? {
                bytes = smaller;
                break;
            }
        }
        let outcome = self.sampled_run(Some(bytes), slots, None)?;
        let taken_and_given = outcome.driver_allocations + outcome.driver_frees;
        let calls = outcome.driver_calls.map(|calls| calls.total());
        Ok(outcome.completed.then(|| SmallestDevice {
            bytes,
            over_live: bytes as f64 / live_bytes as f64,
            calls: calls.unwrap_or(taken_and_given),
        }))
    }
}
