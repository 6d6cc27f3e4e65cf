//! The driver's attributes of an address.

use larder_cuda_abi::{DevicePtr, constants};

use super::Answer;

/// cuPointerGetAttribute, into eight bytes that were zero: wide enough for each attribute here.
pub(crate) fn attribute(attribute: u32, at: DevicePtr) -> Answer<u64> {
    let mut value = 0_u64;
    // SAFETY: eight bytes are enough for every attribute asked for here.
    unsafe { function!(cuPointerGetAttribute)((&raw mut value).cast(), attribute, at) }.check()?;
    Ok(value)
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).expect("masked")
}

/// One of the `MEMORY_TYPE_…` constants.
pub(crate) fn memory_type(at: DevicePtr) -> Answer<u32> {
    attribute(constants::POINTER_MEMORY_TYPE, at).map(narrow)
}

/// Its context, as a number.
pub(crate) fn context(at: DevicePtr) -> Answer<u64> {
    attribute(constants::POINTER_CONTEXT, at)
}

/// As the device sees it.
pub(crate) fn device_pointer(at: DevicePtr) -> Answer<DevicePtr> {
    attribute(constants::POINTER_DEVICE_POINTER, at)
}

/// As the host sees it.
pub(crate) fn host_pointer(at: DevicePtr) -> Answer<u64> {
    attribute(constants::POINTER_HOST_POINTER, at)
}

/// A number of its allocation's own.
pub(crate) fn buffer_id(at: DevicePtr) -> Answer<u64> {
    attribute(constants::POINTER_BUFFER_ID, at)
}

/// Whether it is managed.
pub(crate) fn is_managed(at: DevicePtr) -> Answer<bool> {
    attribute(constants::POINTER_IS_MANAGED, at).map(|value| narrow(value) & 0xFF != 0)
}

/// Its device.
pub(crate) fn device_ordinal(at: DevicePtr) -> Answer<u32> {
    attribute(constants::POINTER_DEVICE_ORDINAL, at).map(narrow)
}

/// Start of its allocation.
pub(crate) fn range_start(at: DevicePtr) -> Answer<DevicePtr> {
    attribute(constants::POINTER_RANGE_START, at)
}

/// Length of its allocation.
pub(crate) fn range_bytes(at: DevicePtr) -> Answer<u64> {
    attribute(constants::POINTER_RANGE_BYTES, at)
}
