//! Two allocators as one, device memory first and host memory after it (AntMan's `GPUVMemAllocator`): the side that a
//! block is on, and the counters of both sides, as [`JointBytes`] while they change and as the value [`VmemStats`].

use crate::stats::Stats;
use crate::sync::{AtomicU64, Ordering};

/// The side that a block is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Placement {
    /// The device's own memory.
    Device,
    /// Memory of the host that the device can reach.
    Host,
}

/// Bytes in use on several sides together, as one number, and the largest value it has had.
///
/// Two peaks cannot be added: the sides had them at different times. So the bytes of both are counted in one place,
/// where each allocation and each free is one step.
///
/// Invariants:
/// * JOINT1 `live` is the sum of the bytes added, less the bytes taken off.
/// * JOINT2 once a call of [`add`](Self::add) is over, `peak` is at least the value it gave `live`, unless the peak
///   was cleared in between. It never exceeds the largest value since it was cleared, or since the beginning of a
///   call that was under way then.
#[derive(Debug)]
pub struct JointBytes {
    live: AtomicU64,
    peak: AtomicU64,
}

impl JointBytes {
    /// Creates a counter with nothing in use.
    pub fn new() -> Self {
        Self {
            live: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    /// Adds `bytes` bytes in use. Two atomic operations.
    #[inline]
    pub fn add(&self, bytes: u64) {
        // The value is this thread's own step of the counter (JOINT2), whatever other threads do.
        let live = self.live.fetch_add(bytes, Ordering::Relaxed);
        // Release: a thread that clears the peak after this sees the step above.
        self.peak
            .fetch_max(live.wrapping_add(bytes), Ordering::Release);
    }

    /// Takes off `bytes` bytes, added before.
    #[inline]
    pub fn take_off(&self, bytes: u64) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Puts back bytes that were taken off: they were in use all the time, and make no new peak.
    #[inline]
    pub fn put_back(&self, bytes: u64) {
        self.live.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes in use now.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Returns the peak since the start, or since it was cleared.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Resets the peak to the bytes in use now.
    pub fn clear_peak(&self) {
        // Acquire: a step whose peak is wiped out here is in `live` below; any later one raises the peak itself.
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

/// The counters of both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VmemStats {
    /// Counters of the device side.
    pub device: Stats,
    /// Counters of the host side; all 0 if there is none.
    pub host: Stats,
    /// Bytes in use on both sides now, in blocks allocated here.
    pub joint_live_bytes: u64,
    /// The largest value of `joint_live_bytes`, counted as one number.
    pub joint_peak_bytes: u64,
}

impl VmemStats {
    /// Returns both sides as one allocator: sums, the larger of the two largest chunks, and the joint peak. Reserved
    /// bytes were not counted together, so their peak is the sum of both peaks, which may never have been held at once.
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

    /// Returns the counters as AntMan's allocator reports them: the device's, with the sum of both peaks, which is
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
