//! Managed memory. There are no pages that move: what the program advises and prefetches is checked,
//! kept and answered, for a whole allocation at a time.

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{Code, DevicePtr, Location, StreamHandle};

use crate::driver::{Driver, Session};
use crate::entry::call;
use crate::ffi::Out;
use crate::queue::Work;
use crate::space::{CPU, Kind, Managed, NOWHERE};

// Advice, `CUmem_advise`.
const SET_READ_MOSTLY: u32 = 1;
const UNSET_READ_MOSTLY: u32 = 2;
const SET_PREFERRED_LOCATION: u32 = 3;
const UNSET_PREFERRED_LOCATION: u32 = 4;
const SET_ACCESSED_BY: u32 = 5;
const UNSET_ACCESSED_BY: u32 = 6;

// What can be asked about a range, `CUmem_range_attribute`.
const READ_MOSTLY: u32 = 1;
const PREFERRED_LOCATION: u32 = 2;
const ACCESSED_BY: u32 = 3;
const LAST_PREFETCH_LOCATION: u32 = 4;

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocManaged(at: Out<DevicePtr>, bytes: usize, flags: u32) -> Code {
    call("cuMemAllocManaged", |driver| {
        at.check()?;
        let context = driver.current()?;
        driver.unsafe_call()?;
        if bytes == 0 || !matches!(flags, c::MEM_ATTACH_GLOBAL | c::MEM_ATTACH_HOST) {
            return Err(Code::INVALID_VALUE);
        }
        let device = driver.contexts.get(context)?.device;
        let kind = Kind::Managed(Managed::new(flags));
        at.give(
            driver
                .space
                .alloc_host(device, context, bytes as u64, kind)?,
        )
    })
}

/// A device or the host, as the older functions name it.
fn place(driver: &Driver, device: i32) -> Result<i32, Code> {
    if device != CPU {
        driver.device(device)?;
    }
    Ok(device)
}

/// A device or the host by its location.
fn place_of(driver: &Driver, location: Location) -> Result<i32, Code> {
    match location.kind {
        c::MEM_LOCATION_DEVICE => Ok(driver.device(location.id)?.ordinal as i32),
        c::MEM_LOCATION_HOST => Ok(CPU),
        c::MEM_LOCATION_HOST_NUMA => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn prefetch(
    driver: &mut Session,
    at: DevicePtr,
    bytes: usize,
    to: i32,
    stream: StreamHandle,
) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let (_, managed) = driver.space.managed(at, bytes as u64)?;
    managed.prefetched = to;
    driver.submit(stream, Work::Nothing).map(drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync(
    at: DevicePtr,
    bytes: usize,
    device: i32,
    stream: StreamHandle,
) -> Code {
    call("cuMemPrefetchAsync", |driver| {
        let to = place(driver, device)?;
        prefetch(driver, at, bytes, to, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync_v2(
    at: DevicePtr,
    bytes: usize,
    location: Location,
    flags: u32,
    stream: StreamHandle,
) -> Code {
    call("cuMemPrefetchAsync_v2", |driver| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let to = place_of(driver, location)?;
        prefetch(driver, at, bytes, to, stream)
    })
}

fn advise(
    driver: &mut Session,
    at: DevicePtr,
    bytes: usize,
    advice: u32,
    who: impl Fn(&Driver) -> Result<i32, Code>,
) -> Result<(), Code> {
    driver.current()?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    // Three kinds of advice concern no device and ignore the device that is named.
    let who = match advice {
        SET_READ_MOSTLY | UNSET_READ_MOSTLY | UNSET_PREFERRED_LOCATION => NOWHERE,
        SET_PREFERRED_LOCATION | SET_ACCESSED_BY | UNSET_ACCESSED_BY => who(driver)?,
        _ => return Err(Code::INVALID_VALUE),
    };
    let (_, managed) = driver.space.managed(at, bytes as u64)?;
    match advice {
        SET_READ_MOSTLY => managed.read_mostly = true,
        UNSET_READ_MOSTLY => managed.read_mostly = false,
        SET_ACCESSED_BY => {
            managed.accessed_by.insert(who);
        }
        UNSET_ACCESSED_BY => {
            managed.accessed_by.remove(&who);
        }
        _ => managed.preferred = who,
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAdvise(at: DevicePtr, bytes: usize, advice: u32, device: i32) -> Code {
    call("cuMemAdvise", |driver| {
        advise(driver, at, bytes, advice, |driver| place(driver, device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAdvise_v2(at: DevicePtr, bytes: usize, advice: u32, location: Location) -> Code {
    call("cuMemAdvise_v2", |driver| {
        advise(driver, at, bytes, advice, |driver| {
            place_of(driver, location)
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRangeGetAttribute(
    data: Out<i32>,
    data_bytes: usize,
    attribute: u32,
    at: DevicePtr,
    bytes: usize,
) -> Code {
    call("cuMemRangeGetAttribute", |driver| {
        data.check()?;
        let room = data_bytes / size_of::<i32>();
        let whole = data_bytes.is_multiple_of(size_of::<i32>());
        // Who accesses it is a list that fills the room; the others are one number.
        if bytes == 0 || room == 0 || !whole || (attribute != ACCESSED_BY && room != 1) {
            return Err(Code::INVALID_VALUE);
        }
        let (_, managed) = driver.space.managed(at, bytes as u64)?;
        match attribute {
            READ_MOSTLY => data.give(i32::from(managed.read_mostly)),
            PREFERRED_LOCATION => data.give(managed.preferred),
            LAST_PREFETCH_LOCATION => data.give(managed.prefetched),
            ACCESSED_BY => {
                let who = managed.accessed_by.iter().copied();
                let filled = who.chain(std::iter::repeat(NOWHERE)).take(room);
                for (index, who) in filled.enumerate() {
                    data.at(index).give(who)?;
                }
                Ok(())
            }
            _ => Err(Code::INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamAttachMemAsync(
    stream: StreamHandle,
    at: DevicePtr,
    bytes: usize,
    flags: u32,
) -> Code {
    call("cuStreamAttachMemAsync", |driver| {
        let default = matches!(
            stream,
            StreamHandle::NULL | StreamHandle::LEGACY | StreamHandle::PER_THREAD
        );
        let to = driver.stream(stream)?;
        let known = matches!(
            flags,
            c::MEM_ATTACH_GLOBAL | c::MEM_ATTACH_HOST | c::MEM_ATTACH_SINGLE
        );
        // No default stream can have memory for itself.
        if !known || (flags == c::MEM_ATTACH_SINGLE && default) {
            return Err(Code::INVALID_VALUE);
        }
        let whole = driver.space.blocks.get(&at).map(|block| block.bytes);
        if bytes != 0 && whole != Some(bytes as u64) {
            return Err(Code::INVALID_VALUE);
        }
        let (start, managed) = driver.space.managed(at, bytes as u64)?;
        if start != at {
            return Err(Code::INVALID_VALUE);
        }
        managed.attach = flags;
        driver.submit(to, Work::Nothing).map(drop)
    })
}
