//! Two allocators as one, a device's memory first and the host's behind it (AntMan's `GPUVMemAllocator`):
//! which side a block is of, and the counters of both, [`JointBytes`] while they change, [`VmemStats`] as
//! a value.

use crate::stats::Stats;
use crate::sync::{AtomicU64, Ordering};

/// Which side gave a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Placement {
    /// The device's own memory.
    Device,
    /// Memory of the host that the device can reach.
    Host,
}

/// Bytes in use on several sides together, as one number, and the largest value it has had.
///
/// Two peaks cannot be added: the sides had them at different times. So what both use is counted in one
/// place, where each allocation and each free is one step.
///
/// Invariants:
/// * JOINT1 `live` is what was added less what was taken off.
/// * JOINT2 once a call of [`add`](Self::add) is over, `peak` is not below the value it made `live`, unless it
///   was cleared meanwhile. It never is above the largest value since it was cleared, or since the
///   beginning of a call that was under way then.
#[derive(Debug)]
pub struct JointBytes {
    live: AtomicU64,
    peak: AtomicU64,
}

impl JointBytes {
    /// Nothing in use.
    pub fn new() -> Self {
        Self {
            live: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    /// So many bytes more are in use. Two atomic operations.
    #[inline]
    pub fn add(&self, bytes: u64) {
        // The value is this thread's own step of the counter (JOINT2), whatever others do.
        let live = self.live.fetch_add(bytes, Ordering::Relaxed);
        // Release: whoever clears the peak after this sees the step above.
        self.peak
            .fetch_max(live.wrapping_add(bytes), Ordering::Release);
    }

    /// So many bytes, added before, are out of use.
    #[inline]
    pub fn take_off(&self, bytes: u64) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that were taken off are in use after all: they were, all the time, and are no new peak.
    #[inline]
    pub fn put_back(&self, bytes: u64) {
        self.live.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes in use now.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// The largest value since the start, or since it was cleared.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The peak starts anew from what is in use now.
    pub fn clear_peak(&self) {
        // Acquire: a step whose peak is wiped out here is in `live` below; any later one raises the peak
        // by itself.
        self.peak.swap(0, Ordering::AcqRel);
        self.peak
            .fetch_max(self.live.load(Ordering::Relaxed), Ordering::Release);
    }
}

impl Default for JointBytes {
    fn default() -> Self {
        Self::new()
    }
}

/// Counters of both sides, side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VmemStats {
    /// The device side's.
    pub device: Stats,
    /// The host side's; all 0 where there is none.
    pub host: Stats,
    /// Bytes in use on both sides now, of blocks that were given here.
    pub joint_live_bytes: u64,
    /// The largest value of that, counted as one number.
    pub joint_peak_bytes: u64,
}

impl VmemStats {
    /// Both sides as one allocator: sums, the larger of the largest, and the joint peak. Bytes reserved
    /// were not counted together, so their peak is the sum of both, which may never have been held.
    pub fn joint(&self) -> Stats {
        let (device, host) = (&self.device, &self.host);
        Stats {
            allocations: device.allocations.saturating_add(host.allocations),
            live_bytes: device.live_bytes.saturating_add(host.live_bytes),
            peak_live_bytes: self.joint_peak_bytes,
            largest_bytes: device.largest_bytes.max(host.largest_bytes),
            requested_bytes: device.requested_bytes.saturating_add(host.requested_bytes),
            reserved_bytes: device.reserved_bytes.saturating_add(host.reserved_bytes),
            peak_reserved_bytes: device
                .peak_reserved_bytes
                .saturating_add(host.peak_reserved_bytes),
            limit_bytes: device.limit_bytes.saturating_add(host.limit_bytes),
        }
    }

    /// The counters as AntMan's allocator gives them: the device's, with the sum of both peaks, which is
    /// more than was ever in use together.
    pub fn antman(&self) -> Stats {
        Stats {
            peak_live_bytes: self
                .device
                .peak_live_bytes
                .saturating_add(self.host.peak_live_bytes),
            ..self.device
        }
    }
}
