//! Attributes of addresses.

use core::ffi::c_void;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{Code, DevicePtr};

use crate::driver::SimDriver;
use crate::entry::call;
use crate::ffi::Out;
use crate::space::BlockKind;

// Attributes (`CUpointer_attribute`) that only this module uses.
const LEGACY_IPC: u32 = 10;
const HANDLE_TYPES: u32 = 14;
const RDMA: u32 = 15;
const MAPPING_BYTES: u32 = 18;
const MAPPING_START: u32 = 19;
const MEMORY_ID: u32 = 20;

/// Returns the bytes of a 32-bit value in native order.
fn half(value: u32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

fn word(value: u64) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

fn boolean(value: bool) -> Vec<u8> {
    half(u32::from(value))
}

/// Returns an attribute of an address.
///
/// # Errors
/// If the address is not known, or has no such attribute.
fn attribute_of(driver: &SimDriver, attribute: u32, at: DevicePtr) -> Result<Vec<u8>, Code> {
    let reservation = driver.space.vmm.reservation_at(at);
    let Some((start, block)) = driver.space.owned_at(at) else {
        // Reserved addresses without a mapping have only these attributes.
        let (start, bytes) = reservation.ok_or(Code::INVALID_VALUE)?;
        return match attribute {
            c::POINTER_RANGE_START => Ok(word(start)),
            c::POINTER_RANGE_BYTES => Ok(word(bytes)),
            c::POINTER_MAPPED => Ok(boolean(false)),
            _ => Err(Code::INVALID_VALUE),
        };
    };
    let range = reservation.unwrap_or((start, block.bytes));
    let alias = match block.kind {
        BlockKind::CombinedAlias { of } => Some(of + (at - start)),
        _ => None,
    };
    let known = matches!(
        block.kind,
        BlockKind::Pinned | BlockKind::Combined | BlockKind::Registered
    );
    let on_host = known || alias.is_some();
    let managed = block.kind == BlockKind::Managed;
    Ok(match attribute {
        c::POINTER_CONTEXT => word(block.context.unwrap_or(0) as u64),
        c::POINTER_MEMORY_TYPE if on_host => half(c::MEMORY_TYPE_HOST),
        c::POINTER_MEMORY_TYPE => half(c::MEMORY_TYPE_DEVICE),
        c::POINTER_DEVICE_POINTER if alias.is_none() => {
            let device = driver.current_device()?.1;
            let address = driver.space.device_address(at, device);
            word(address.ok_or(Code::INVALID_VALUE)?)
        }
        c::POINTER_DEVICE_POINTER => word(at),
        c::POINTER_HOST_POINTER if on_host || managed => word(alias.unwrap_or(at)),
        c::POINTER_HOST_POINTER => return Err(Code::INVALID_VALUE),
        c::POINTER_BUFFER_ID => word(block.id),
        c::POINTER_IS_MANAGED => boolean(managed),
        c::POINTER_DEVICE_ORDINAL => half(block.device as u32),
        c::POINTER_RANGE_START => word(range.0),
        c::POINTER_RANGE_BYTES => word(range.1),
        c::POINTER_MAPPED => boolean(true),
        c::POINTER_ACCESS_FLAGS => half(driver.rights(block, driver.current_device()?.1)),
        c::POINTER_POOL => word(match &block.kind {
            BlockKind::Pooled(pooled) => pooled.pool as u64,
            _ => 0,
        }),
        MAPPING_BYTES => word(block.bytes),
        MAPPING_START => word(start),
        MEMORY_ID => word(block.memory),
        // Memory cannot be shared with other processes or network cards, and its copies are not
        // forced to be synchronous.
        HANDLE_TYPES => word(0),
        LEGACY_IPC | RDMA | c::POINTER_SYNC_MEMOPS => boolean(false),
        _ => return Err(Code::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuPointerGetAttribute(
    data: Out<c_void>,
    attribute: u32,
    at: DevicePtr,
) -> Code {
    call("cuPointerGetAttribute", |driver| {
        data.check()?;
        data.cast()
            .give_all(attribute_of(driver, attribute, at)?.into_iter());
        Ok(())
    })
}
