//! Virtual memory: physical memory is charged until its handles are released and nothing maps it any more.

use std::ffi::c_void;
use std::sync::Arc;

use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{AllocationProp, DevicePtr, MemoryHandle, constants};

use super::charged::{self, Physical};
use super::{acts, in_front_of};

/// Makes physical memory.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemCreate(
    handle: *mut MemoryHandle,
    bytes: usize,
    props: *const AllocationProp,
    flags: u64,
) -> Code {
    in_front_of(
        |driver| driver.create,
        |driver, real| {
            // SAFETY: the caller's promise.
            let place = unsafe { props.as_ref() }.map(|props| props.location);
            let is_here = |kind| kind == constants::MEM_LOCATION_DEVICE;
            let device = place.and_then(|place| is_here(place.kind).then_some(place.id));
            let charge = match charged::charge(driver, device, bytes as u64) {
                Ok(charge) => charge,
                Err(code) => return code,
            };
            // SAFETY: the caller's promise.
            let code = unsafe { real(handle, bytes, props, flags) };
            if let Some(charge) = charge
                && code == Code::SUCCESS
            {
                // SAFETY: the driver has written it.
                let handle = unsafe { *handle };
                let physical = Physical {
                    held: 1,
                    charge: Arc::new(charge),
                };
                charged::with(|tables| tables.physical.insert(handle, physical));
            }
            code
        },
    )
}

/// Releases a handle.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemRelease(handle: MemoryHandle) -> Code {
    in_front_of(
        |driver| driver.release,
        |_, real| {
            let taken = charged::with(|tables| {
                let physical = tables.physical.get_mut(&handle)?;
                physical.held -= 1;
                let charge = physical.charge.clone();
                if physical.held == 0 {
                    tables.physical.remove(&handle);
                }
                Some(charge)
            });
            // SAFETY: the caller's promise.
            let code = unsafe { real(handle) };
            if let Some(charge) = taken
                && code != Code::SUCCESS
            {
                hold(handle, charge);
            }
            code
        },
    )
}

/// The program has to release a handle once more.
fn hold(handle: MemoryHandle, charge: Arc<larder_cuda::ForeignCharge>) {
    charged::with(|tables| {
        let new = || Physical { held: 0, charge };
        tables.physical.entry(handle).or_insert_with(new).held += 1;
    });
}

/// Gives the handle of what is mapped at an address, to be released once more.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut MemoryHandle,
    at: *mut c_void,
) -> Code {
    in_front_of(
        |driver| driver.retain,
        |_, real| {
            // SAFETY: the caller's promise.
            let code = unsafe { real(handle, at) };
            if code == Code::SUCCESS && acts() {
                // SAFETY: the driver has written it.
                let handle = unsafe { *handle };
                let at = at.addr() as DevicePtr;
                let mapped = charged::with(|tables| {
                    let (start, (bytes, charge)) = tables.mappings.range(..=at).next_back()?;
                    (at - start < *bytes).then(|| charge.clone())
                });
                if let Some(charge) = mapped {
                    hold(handle, charge);
                }
            }
            code
        },
    )
}

/// Maps physical memory.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemMap(
    at: DevicePtr,
    bytes: usize,
    offset: usize,
    handle: MemoryHandle,
    flags: u64,
) -> Code {
    in_front_of(
        |driver| driver.map,
        |_, real| {
            // The handle is the program's, so it stays meanwhile.
            let charge = charged::with(|tables| {
                let physical = tables.physical.get(&handle);
                physical.map(|physical| physical.charge.clone())
            });
            // SAFETY: the caller's promise.
            let code = unsafe { real(at, bytes, offset, handle, flags) };
            if let Some(charge) = charge
                && code == Code::SUCCESS
            {
                let mapping = (bytes as u64, charge);
                charged::with(|tables| tables.mappings.insert(at, mapping));
            }
            code
        },
    )
}

/// Unmaps whole mappings.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemUnmap(at: DevicePtr, bytes: usize) -> Code {
    in_front_of(
        |driver| driver.unmap,
        |_, real| {
            let end = at.saturating_add(bytes as u64);
            let mut gone = charged::with(|tables| {
                let mut gone = tables.mappings.split_off(&at);
                let mut behind = gone.split_off(&end);
                tables.mappings.append(&mut behind);
                gone
            });
            // SAFETY: the caller's promise.
            let code = unsafe { real(at, bytes) };
            if code != Code::SUCCESS {
                charged::with(|tables| tables.mappings.append(&mut gone));
            }
            code
        },
    )
}
