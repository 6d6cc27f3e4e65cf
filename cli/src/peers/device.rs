//! A peer's device: a capacity, a count of calls, and addresses that only ascend.
//!
//! The device does not model a real one: regions cost nothing, and a released address range is
//! never reused, so that a stale address cannot look new.

/// Bytes of a device without a limit: 2^62, more than any trace needs, and small enough that the
/// sum of two fits `u64`.
pub(super) const UNLIMITED_BYTES: u64 = 1 << 62;

/// A simulated device.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedDevice {
    capacity_bytes: u64,
    /// Bytes allocated and not released.
    pub(crate) used_bytes: u64,
    next_address: u64,
    /// Numbers of ranges allocated and released so far.
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
}

impl SimulatedDevice {
    /// Creates a device of `capacity_bytes`, or one that is never full.
    pub(crate) fn new(capacity_bytes: Option<u64>) -> Self {
        Self {
            capacity_bytes: capacity_bytes.unwrap_or(UNLIMITED_BYTES),
            used_bytes: 0,
            next_address: 0,
            allocations: 0,
            frees: 0,
        }
    }

    /// Returns the address of a new range right above all earlier ones, or `None` if the device is
    /// full.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let used = self.used_bytes.checked_add(bytes)?;
        if used > self.capacity_bytes {
            return None;
        }
        let address = self.next_address;
        self.next_address = address.checked_add(bytes)?;
        self.used_bytes = used;
        self.allocations += 1;
        Some(address)
    }

    /// Releases one range of `bytes`.
    pub(crate) fn release(&mut self, bytes: u64) {
        debug_assert!(
            bytes <= self.used_bytes,
            "more bytes come back than went out"
        );
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        self.frees += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_refuses_and_a_returned_range_makes_room() {
        let mut device = SimulatedDevice::new(Some(100));
        assert_eq!(device.allocate(60), Some(0));
        assert_eq!(device.allocate(41), None);
        assert_eq!(device.allocate(40), Some(60));
        device.release(60);
        assert_eq!(device.allocate(60), Some(100));
        assert_eq!(
            (device.used_bytes, device.allocations, device.frees),
            (100, 3, 1)
        );
    }

    #[test]
    fn a_device_without_limit_never_wraps() {
        let mut device = SimulatedDevice::new(None);
        assert_eq!(device.allocate(u64::MAX), None);
        assert_eq!(device.allocate(UNLIMITED_BYTES), Some(0));
        assert_eq!(device.allocate(1), None);
    }
}
