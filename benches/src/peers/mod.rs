//! Models of other allocators, written from descriptions of how they work.
//!
//! Nothing here uses `larder-core`, so that a bug there cannot hide here too.

mod device;
mod ordered_set;
mod power_of_two;

use crate::replay::Contender;
pub use device::Device;
pub use ordered_set::{OrderedSet, OrderedSetConfig, RegionPolicy, SplitRule};
pub use power_of_two::PowerOfTwo;

/// Name of [`xla`].
pub const XLA: &str = "xla";
/// Name of [`xla_one_region`].
pub const XLA_ONE_REGION: &str = "xla-one-region";
/// Name of [`always_split`].
pub const ALWAYS_SPLIT: &str = "always-split";
/// Name of [`power_of_two()`].
pub const POWER_OF_TWO: &str = "power-of-two";

/// XLA's first region when it grows on demand.
const XLA_FIRST_REGION_BYTES: u64 = 2 << 20;

/// XLA and TensorFlow split a chunk of less than twice the request only if at
/// least this much would be wasted.
const XLA_SPLIT: SplitRule = SplitRule::Generous {
    waste_limit_bytes: 128 << 20,
};

/// BFC with XLA's constants, growing region by region.
#[must_use]
pub fn xla(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let regions = RegionPolicy::Doubling {
        first_bytes: XLA_FIRST_REGION_BYTES,
    };
    ordered_set(XLA, XLA_SPLIT, regions, device_bytes)
}

/// BFC with XLA's split rule in one region as large as the device.
#[must_use]
pub fn xla_one_region(device_bytes: Option<u64>) -> Box<dyn Contender> {
    ordered_set(XLA_ONE_REGION, XLA_SPLIT, RegionPolicy::One, device_bytes)
}

/// Plain best fit in one region that always splits.
#[must_use]
pub fn always_split(device_bytes: Option<u64>) -> Box<dyn Contender> {
    ordered_set(
        ALWAYS_SPLIT,
        SplitRule::Always,
        RegionPolicy::One,
        device_bytes,
    )
}

/// Powers of two, cached by exact size.
#[must_use]
pub fn power_of_two(device_bytes: Option<u64>) -> Box<dyn Contender> {
    Box::new(PowerOfTwo::new(POWER_OF_TWO, Device::new(device_bytes)))
}

fn ordered_set(
    name: &'static str,
    split: SplitRule,
    regions: RegionPolicy,
    device_bytes: Option<u64>,
) -> Box<dyn Contender> {
    let config = OrderedSetConfig {
        name,
        split,
        regions,
        limit_bytes: device_bytes,
    };
    Box::new(OrderedSet::new(config, Device::new(device_bytes)))
}
