//! TensorFlow's formula for the part of a device's memory that a program takes by default.

use super::error::RuntimeError;
use crate::driver::DeviceInfo;

const MIB: u64 = 1 << 20;

/// A device with less free memory counts as small.
const SMALL_BYTES: u64 = 2 << 30;

/// Reserve on a small device, left for the system and for libraries.
const SMALL_RESERVE_BYTES: u64 = 225 * MIB;

/// Minimum reserve on every other device.
const RESERVE_BYTES: u64 = 300 * MIB;
const RESERVE_DIVISOR: u64 = 20;

/// Returns the limit of a device with `available_bytes` free: all but a reserve, which is 225 MiB below 2
/// GiB and otherwise the larger of 300 MiB and 5 %. If the reserve is not smaller than the free memory,
/// nothing is reserved.
pub const fn limit_of_available(available_bytes: u64) -> u64 {
    let share = available_bytes / RESERVE_DIVISOR;
    let reserve = if available_bytes < SMALL_BYTES {
        SMALL_RESERVE_BYTES
    } else if share > RESERVE_BYTES {
        share
    } else {
        RESERVE_BYTES
    };
    if reserve < available_bytes {
        available_bytes - reserve
    } else {
        available_bytes
    }
}

/// Returns the limit for a share of a device's memory, rounded down. A share above 1 needs managed memory
/// and compute capability 6.0.
///
/// # Errors
/// [`RuntimeError::Fraction`] for an invalid share, [`RuntimeError::Oversubscription`] above 1 on a device
/// that does not support it.
pub fn limit_of_fraction(device: &DeviceInfo, fraction: f64) -> Result<u64, RuntimeError> {
    /// The first compute capability whose managed memory may be larger than the device's memory.
    const MANAGED_SINCE: (i32, i32) = (6, 0);
    let bytes = device.total_bytes as f64 * fraction;
    if !fraction.is_finite() || fraction <= 0.0 || bytes >= u64::MAX as f64 {
        return Err(RuntimeError::Fraction { fraction });
    }
    let can = device.managed && device.compute_capability >= MANAGED_SINCE;
    if fraction > 1.0 && !can {
        return Err(RuntimeError::Oversubscription {
            fraction,
            compute_capability: device.compute_capability,
        });
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn ps_9_the_reserve_is_225_mib_below_2_gib_and_5_percent_or_300_mib_above() {
        assert_eq!(limit_of_available(GIB), 799 * MIB);
        assert_eq!(limit_of_available(2 * GIB - 1), 1823 * MIB - 1);
        assert_eq!(limit_of_available(2 * GIB), 1748 * MIB);
        // 5 % of 6 GiB is 307.2 MiB, which is the larger reserve.
        assert_eq!(limit_of_available(6 * GIB), 6 * GIB - 322_122_547);
        assert_eq!(limit_of_available(80 * GIB), 76 * GIB);
        assert_eq!(limit_of_available(100 * MIB), 100 * MIB);
    }

    #[test]
    fn ps_9_a_reserve_that_is_not_smaller_than_what_is_free_is_not_left_out() {
        assert_eq!(limit_of_available(225 * MIB), 225 * MIB);
        assert_eq!(limit_of_available(225 * MIB + 1), 1);
        assert_eq!(limit_of_available(225 * MIB - 1), 225 * MIB - 1);
        assert_eq!(limit_of_available(0), 0);
        // At 6000 MiB the share reaches 300 MiB.
        assert_eq!(limit_of_available(6000 * MIB), 5700 * MIB);
        assert_eq!(limit_of_available(6000 * MIB + 19), 5700 * MIB + 19);
        assert_eq!(limit_of_available(6000 * MIB + 20), 5700 * MIB + 19);
        assert_eq!(limit_of_available(u64::MAX), u64::MAX - u64::MAX / 20);
    }
}
