//! Models of other allocators, written from descriptions of their behaviour.
//!
//! The models do not use `larder-core`, so they do not share its bugs.

mod device;
mod ordered_set;
mod power_of_two;
mod pytorch;

use crate::replay::Contender;
pub(crate) use device::SimulatedDevice;
pub(crate) use ordered_set::{OrderedSet, RegionPolicy, SplitRule};
pub(crate) use power_of_two::PowerOfTwo;
pub(crate) use pytorch::{PytorchConfig, configure, configured, pytorch, pytorch_expandable};

/// Size of XLA's first region when it grows on demand, in bytes.
const XLA_FIRST_REGION_BYTES: u64 = 2 << 20;

/// The split rule of XLA and TensorFlow. A chunk smaller than twice the request is split only if at
/// least this many bytes would be wasted.
pub(crate) const XLA_SPLIT: SplitRule = SplitRule::Generous {
    waste_limit_bytes: 128 << 20,
};

/// Builds a BFC with XLA's constants, which grows region by region.
pub(crate) fn xla(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let regions = RegionPolicy::Doubling {
        first_bytes: XLA_FIRST_REGION_BYTES,
    };
    ordered_set(XLA_SPLIT, regions, device_bytes)
}

/// Builds a BFC with XLA's split rule, in one region as large as the device.
pub(crate) fn xla_one_region(device_bytes: Option<u64>) -> Box<dyn Contender> {
    ordered_set(XLA_SPLIT, RegionPolicy::One, device_bytes)
}

/// Builds plain best fit in one region that always splits.
pub(crate) fn always_split(device_bytes: Option<u64>) -> Box<dyn Contender> {
    ordered_set(SplitRule::Always, RegionPolicy::One, device_bytes)
}

/// Builds an allocator of powers of two, cached by exact size.
pub(crate) fn power_of_two(device_bytes: Option<u64>) -> Box<dyn Contender> {
    Box::new(PowerOfTwo::new(SimulatedDevice::new(device_bytes)))
}

fn ordered_set(
    split: SplitRule,
    regions: RegionPolicy,
    device_bytes: Option<u64>,
) -> Box<dyn Contender> {
    let device = SimulatedDevice::new(device_bytes);
    Box::new(OrderedSet::new(split, regions, device_bytes, device))
}

#[cfg(test)]
mod tests;
