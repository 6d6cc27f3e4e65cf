//! Attributes of addresses.

use larder_cuda_abi::{DevicePtr, constants as c};

use super::Answer;

/// Returns an attribute as eight bytes, which are enough for each attribute here; unwritten bytes are zero.
pub(crate) fn attribute(attribute: u32, at: DevicePtr) -> Answer<u64> {
    let mut value = 0_u64;
    // SAFETY: eight bytes are enough for every attribute that is queried here.
    unsafe { function!(cuPointerGetAttribute)((&raw mut value).cast(), attribute, at) }.check()?;
    Ok(value)
}

pub(crate) fn is_managed(at: DevicePtr) -> Answer<bool> {
    managed_byte(at).map(|byte| byte != 0)
}

/// The table of attributes: a function's name, the attribute, and its type, which the low bytes of the answer hold.
macro_rules! attributes {
    ($($name:ident = $attribute:ident as $kind:ty;)*) => {$(
        pub(crate) fn $name(at: DevicePtr) -> Answer<$kind> {
            let mask = u64::from(<$kind>::MAX);
            let narrow = |value| <$kind>::try_from(value & mask).expect("masked");
            attribute(c::$attribute, at).map(narrow)
        }
    )*};
}

attributes! {
    memory_type = POINTER_MEMORY_TYPE as u32;
    context = POINTER_CONTEXT as u64;
    device_pointer = POINTER_DEVICE_POINTER as u64;
    host_pointer = POINTER_HOST_POINTER as u64;
    buffer_id = POINTER_BUFFER_ID as u64;
    managed_byte = POINTER_IS_MANAGED as u8;
    device_ordinal = POINTER_DEVICE_ORDINAL as u32;
    range_start = POINTER_RANGE_START as u64;
    range_bytes = POINTER_RANGE_BYTES as u64;
}
