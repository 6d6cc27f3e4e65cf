//! Attributes of addresses.

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{Code, DevicePtr};

use crate::driver::{Driver, Session};
use crate::entry::call;
use crate::ffi::{In, Out};
use crate::space::{Block, Kind};

// Attributes that nothing else here names, `CUpointer_attribute`.
const LEGACY_IPC: u32 = 10;
const HANDLE_TYPES: u32 = 14;
const RDMA: u32 = 15;
const MAPPING_BYTES: u32 = 18;
const MAPPING_START: u32 = 19;
const MEMORY_ID: u32 = 20;

/// Words and halves of words, as C takes them.
fn half(value: u32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

fn word(value: u64) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

fn boolean(value: bool) -> Vec<u8> {
    half(u32::from(value))
}

/// Zero of an attribute's length, for addresses that nothing is known about.
fn nothing(attribute: u32) -> Result<Vec<u8>, Code> {
    match attribute {
        c::POINTER_MEMORY_TYPE
        | c::POINTER_SYNC_MEMOPS
        | c::POINTER_IS_MANAGED
        | c::POINTER_DEVICE_ORDINAL
        | c::POINTER_MAPPED
        | c::POINTER_ACCESS_FLAGS
        | LEGACY_IPC
        | RDMA => Ok(half(0)),
        c::POINTER_CONTEXT
        | c::POINTER_DEVICE_POINTER
        | c::POINTER_HOST_POINTER
        | c::POINTER_BUFFER_ID
        | c::POINTER_RANGE_START
        | c::POINTER_RANGE_BYTES
        | c::POINTER_POOL
        | HANDLE_TYPES
        | MAPPING_BYTES
        | MAPPING_START
        | MEMORY_ID => Ok(word(0)),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// An attribute of an address.
///
/// # Errors
/// If nothing is known about the address, or it has no such attribute.
fn attribute_of(driver: &Driver, attribute: u32, at: DevicePtr) -> Result<Vec<u8>, Code> {
    nothing(attribute)?;
    let reservation = driver.space.vmm.reservation_at(at);
    let Some((start, block)) = driver.space.owned_at(at) else {
        // Of reserved addresses with nothing mapped, only this much is known.
        let (start, bytes) = reservation.ok_or(Code::INVALID_VALUE)?;
        return match attribute {
            c::POINTER_RANGE_START => Ok(word(start)),
            c::POINTER_RANGE_BYTES => Ok(word(bytes)),
            c::POINTER_MAPPED => Ok(boolean(false)),
            _ => Err(Code::INVALID_VALUE),
        };
    };
    let range = reservation.unwrap_or((start, block.bytes));
    let on_host = matches!(block.kind, Kind::Pinned { .. } | Kind::Registered { .. });
    let managed = matches!(block.kind, Kind::Managed(_));
    Ok(match attribute {
        c::POINTER_CONTEXT => word(block.context.unwrap_or(0) as u64),
        c::POINTER_MEMORY_TYPE if on_host => half(c::MEMORY_TYPE_HOST),
        c::POINTER_MEMORY_TYPE => half(c::MEMORY_TYPE_DEVICE),
        c::POINTER_DEVICE_POINTER => word(at),
        c::POINTER_HOST_POINTER if on_host || managed => word(at),
        c::POINTER_HOST_POINTER => return Err(Code::INVALID_VALUE),
        c::POINTER_SYNC_MEMOPS => boolean(driver.space.sync_memops.contains(&block.id)),
        c::POINTER_BUFFER_ID => word(block.id),
        c::POINTER_IS_MANAGED => boolean(managed),
        c::POINTER_DEVICE_ORDINAL => half(block.device as u32),
        c::POINTER_RANGE_START => word(range.0),
        c::POINTER_RANGE_BYTES => word(range.1),
        c::POINTER_MAPPED => boolean(true),
        c::POINTER_ACCESS_FLAGS => half(access_of(driver, block)?),
        c::POINTER_POOL => word(match &block.kind {
            Kind::Pooled(pooled) => pooled.pool as u64,
            _ => 0,
        }),
        HANDLE_TYPES => word(handle_types(driver, block)),
        MAPPING_BYTES => word(block.bytes),
        MAPPING_START => word(start),
        MEMORY_ID => word(block.memory),
        // No memory here can be sent to other processes the old way, or to network cards.
        _ => boolean(false),
    })
}

/// What the current context's device may do with a block.
fn access_of(driver: &Driver, block: &Block) -> Result<u32, Code> {
    let context = driver.contexts.get(driver.current()?)?;
    Ok(match &block.kind {
        Kind::Mapped { access, .. } => access
            .get(&context.device)
            .copied()
            .unwrap_or(c::MEM_ACCESS_NONE),
        Kind::Device
            if block.device != context.device && !context.peers.contains(&block.device) =>
        {
            c::MEM_ACCESS_NONE
        }
        Kind::Pooled(pooled) if block.device != context.device => driver
            .pools
            .table
            .get(pooled.pool)
            .ok()
            .and_then(|pool| pool.access.get(&context.device).copied())
            .unwrap_or(c::MEM_ACCESS_NONE),
        _ => c::MEM_ACCESS_READ_WRITE,
    })
}

/// How the memory of a block may be exported.
fn handle_types(driver: &Driver, block: &Block) -> u64 {
    match block.kind {
        Kind::Mapped { .. } => driver
            .space
            .vmm
            .memories
            .get(&block.memory)
            .map_or(0, |physical| u64::from(physical.handle_types)),
        _ => 0,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(data: Out<u8>, attribute: u32, at: DevicePtr) -> Code {
    call("cuPointerGetAttribute", |driver| {
        data.check()?;
        let bytes = attribute_of(driver, attribute, at)?;
        data.give_bytes(&bytes, bytes.len());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttributes(
    count: u32,
    attributes: In<u32>,
    data: In<Out<u8>>,
    at: DevicePtr,
) -> Code {
    call("cuPointerGetAttributes", |driver| {
        for index in 0..count as usize {
            let attribute = attributes.at(index)?;
            let place = data.at(index)?;
            place.check()?;
            let bytes = match attribute_of(driver, attribute, at) {
                Ok(bytes) => bytes,
                Err(_) => nothing(attribute)?,
            };
            place.give_bytes(&bytes, bytes.len());
        }
        Ok(())
    })
}

fn set_sync_memops(driver: &mut Session, on: bool, at: DevicePtr) -> Result<(), Code> {
    let (_, block) = driver.space.owned_at(at).ok_or(Code::INVALID_VALUE)?;
    let id = block.id;
    if on {
        driver.space.sync_memops.insert(id);
    } else {
        driver.space.sync_memops.remove(&id);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerSetAttribute(value: In<u32>, attribute: u32, at: DevicePtr) -> Code {
    call("cuPointerSetAttribute", |driver| {
        let value = value.get()?;
        if attribute != c::POINTER_SYNC_MEMOPS {
            return Err(Code::INVALID_VALUE);
        }
        set_sync_memops(driver, value != 0, at)
    })
}
