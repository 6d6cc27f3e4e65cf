//! Virtual memory: physical memory is charged until its handles are released and nothing maps it any more.

use std::sync::Arc;

use larder_cuda::ForeignCharge;
use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{AllocationProp, DevicePtr, MemoryHandle, constants};

use super::acts;
use super::charged::{self, ChargedMemory};
use super::driver::NextDriver;

/// Charges physical memory, and requests it from the driver.
pub(super) fn create(
    driver: &NextDriver,
    handle: *mut MemoryHandle,
    bytes: usize,
    props: *const AllocationProp,
    ask: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: INTER6: null or properties, which the driver reads next.
    let place = unsafe { props.as_ref() }.map(|props| props.location);
    let is_here = |kind| kind == constants::MEM_LOCATION_DEVICE;
    let device = place.and_then(|place| is_here(place.kind).then_some(place.id));
    let charge = match charged::charge(driver, device, bytes as u64) {
        Ok(charge) => charge,
        Err(code) => return code,
    };
    let code = ask();
    if let Some(charge) = charge
        && code == Code::SUCCESS
    {
        // SAFETY: INTER6: the driver has written the handle.
        let handle = unsafe { *handle };
        let charge = Arc::new(charge);
        charged::with(|tables| {
            tables
                .physical
                .insert(handle, ChargedMemory { held: 1, charge })
        });
    }
    code
}

/// Releases a handle.
pub(super) fn release(handle: MemoryHandle, ask: impl FnOnce() -> Code) -> Code {
    let taken = charged::with(|tables| {
        let physical = tables.physical.get_mut(&handle)?;
        physical.held -= 1;
        let charge = physical.charge.clone();
        if physical.held == 0 {
            tables.physical.remove(&handle);
        }
        Some(charge)
    });
    let code = ask();
    if let Some(charge) = taken
        && code != Code::SUCCESS
    {
        hold(handle, charge);
    }
    code
}

/// Counts one more release that the program has to make for a handle.
fn hold(handle: MemoryHandle, charge: Arc<ForeignCharge>) {
    charged::with(|tables| {
        let new = || ChargedMemory { held: 0, charge };
        tables.physical.entry(handle).or_insert_with(new).held += 1;
    });
}

/// Writes the handle of the memory mapped at an address. The program has to release that handle once more.
pub(super) fn retain(handle: *mut MemoryHandle, at: DevicePtr, ask: impl FnOnce() -> Code) -> Code {
    let code = ask();
    if code == Code::SUCCESS && acts() {
        let mapped = charged::with(|tables| {
            let (start, (bytes, charge)) = tables.mappings.range(..=at).next_back()?;
            (at - start < *bytes).then(|| charge.clone())
        });
        if let Some(charge) = mapped {
            // SAFETY: INTER6: the driver has written the handle.
            hold(unsafe { *handle }, charge);
        }
    }
    code
}

/// Maps physical memory.
pub(super) fn map(
    at: DevicePtr,
    bytes: usize,
    handle: MemoryHandle,
    ask: impl FnOnce() -> Code,
) -> Code {
    // The handle is the program's, so it stays valid during the call.
    let charge = charged::with(|tables| {
        let physical = tables.physical.get(&handle);
        physical.map(|physical| physical.charge.clone())
    });
    let code = ask();
    if let Some(charge) = charge
        && code == Code::SUCCESS
    {
        let mapping = (bytes as u64, charge);
        charged::with(|tables| tables.mappings.insert(at, mapping));
    }
    code
}

/// Unmaps whole mappings.
pub(super) fn unmap(at: DevicePtr, bytes: usize, ask: impl FnOnce() -> Code) -> Code {
    let end = at.saturating_add(bytes as u64);
    let mut gone = charged::with(|tables| {
        let mut gone = tables.mappings.split_off(&at);
        let mut behind = gone.split_off(&end);
        tables.mappings.append(&mut behind);
        gone
    });
    let code = ask();
    if code != Code::SUCCESS {
        charged::with(|tables| tables.mappings.append(&mut gone));
    }
    code
}
