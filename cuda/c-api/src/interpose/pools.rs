//! The driver's own pools, which cache freed memory. Each is charged for the memory that it holds, not for
//! its blocks. A destroyed pool stays charged until its last block is freed, because the driver keeps the
//! memory until then.
//!
//! An allocation has its own charge until the pool's held bytes are read after it, because the pool may grow
//! by the allocation's length and by rounding. A pool releases idle memory by itself, unnoticed, so its held
//! bytes are read again at the next call, and before a refusal. Memory allocated in a capture belongs to the
//! graph, and is not charged.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use larder_cuda::ForeignCharge;
use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{DevicePtr, PoolHandle, PoolProps, StreamHandle, constants};

use super::acts;
use super::charged::{self, ChargedBlock, ChargedDevice};
use super::driver::NextDriver;
use crate::device::locked;

/// A pool of a device.
pub(super) struct ChargedPool {
    pub(super) handle: PoolHandle,
    pub(super) device: c_int,
    /// Charge for the memory that the pool holds. Locked while the driver is queried, so that no older answer
    /// replaces a newer one (INTER3).
    held: Mutex<PoolBlock>,
}

#[derive(Default)]
struct PoolBlock {
    charge: Option<ForeignCharge>,
    /// Whether the program is destroying or has destroyed the pool, so that it cannot be queried.
    is_ended: bool,
}

impl PoolBlock {
    fn set_to(&mut self, bytes: Option<u64>) {
        if let Some(charge) = &mut self.charge
            && let Some(bytes) = bytes
        {
            charge.set_bytes(bytes);
        }
    }
}

impl ChargedPool {
    fn new(handle: PoolHandle, device: c_int) -> Arc<Self> {
        let held = Mutex::default();
        Arc::new(Self {
            handle,
            device,
            held,
        })
    }

    /// Charges the memory that the pool now holds, in place of an allocation's charge.
    pub(super) fn refresh(
        &self,
        driver: &NextDriver,
        gpu: &ChargedDevice,
        charged: Option<ForeignCharge>,
    ) {
        let mut held = locked(&self.held);
        match (&mut held.charge, charged) {
            (Some(held), Some(charged)) => held.join(charged),
            (none, charged @ Some(_)) => *none = charged,
            // A charge of 0 bytes fails only if the limit was lowered, and is then made later.
            (none @ None, None) => *none = gpu.memory.charge(0).ok(),
            (Some(_), None) => {}
        }
        if !held.is_ended {
            held.set_to(driver.held_by(self.handle));
        }
    }

    /// Releases the pool's idle memory.
    pub(super) fn trim(&self, driver: &NextDriver) {
        if !locked(&self.held).is_ended {
            driver.trim(self.handle);
        }
    }

    /// Charges the memory that the pool holds for the last time.
    fn end(&self, driver: &NextDriver) {
        let mut held = locked(&self.held);
        held.set_to(driver.held_by(self.handle));
        held.is_ended = true;
    }

    /// Resumes charging a pool that could not be destroyed and that may have grown.
    fn go_on(&self, driver: &NextDriver) {
        let mut held = locked(&self.held);
        held.is_ended = false;
        held.set_to(driver.held_by(self.handle));
    }
}

/// Charges the memory that the known pools now hold.
pub(super) fn refresh_all(driver: &NextDriver) {
    for pool in charged::pools() {
        if let Ok(Some(gpu)) = charged::gpu(driver, pool.device) {
            pool.refresh(driver, gpu, None);
        }
    }
}

/// Charges an allocation, requests it from the driver, and charges the pool.
pub(super) fn alloc(
    driver: &NextDriver,
    at: *mut DevicePtr,
    (pool, stream): (Option<PoolHandle>, StreamHandle),
    bytes: usize,
    ask: impl FnOnce() -> Code,
) -> Code {
    if !acts() || driver.is_capturing(stream) {
        return ask();
    }
    let device = driver.device_of(stream);
    let pool = pool.or_else(|| driver.pool_of(device?));
    let (Some(device), Some(pool)) = (device, pool) else {
        return ask();
    };
    let known = charged::with(|tables| {
        let new = || Some(ChargedPool::new(pool, device));
        tables.pools.entry(pool).or_insert_with(new).clone()
    });
    let Some(pool) = known else {
        // A host pool is not charged.
        return ask();
    };
    let charge = match charged::charge(driver, Some(pool.device), bytes as u64) {
        Ok(charge) => charge,
        Err(code) => return code,
    };
    let code = ask();
    if let Ok(Some(gpu)) = charged::gpu(driver, pool.device) {
        pool.refresh(driver, gpu, charge);
    }
    if code == Code::SUCCESS {
        // SAFETY: INTER6: the driver has written the address.
        let address = unsafe { *at };
        let block = ChargedBlock::Pooled { _pool: pool };
        charged::with(|tables| tables.blocks.insert(address, block));
    }
    code
}

/// Releases a pool's idle memory.
pub(super) fn trim(driver: &NextDriver, ask: impl FnOnce() -> Code) -> Code {
    let code = ask();
    if acts() {
        refresh_all(driver);
    }
    code
}

/// Creates a pool, and records whether it belongs to a device.
pub(super) fn create(
    pool: *mut PoolHandle,
    props: *const PoolProps,
    ask: impl FnOnce() -> Code,
) -> Code {
    let code = ask();
    if code == Code::SUCCESS && acts() {
        // SAFETY: INTER6: the driver has written the handle, and read the properties.
        let (handle, place) = unsafe { (*pool, (*props).location) };
        let is_here = place.kind == constants::MEM_LOCATION_DEVICE;
        let made = is_here.then(|| ChargedPool::new(handle, place.id));
        charged::with(|tables| tables.pools.insert(handle, made));
    }
    code
}

/// Destroys a pool. Its memory stays charged until its blocks are freed.
pub(super) fn destroy(driver: &NextDriver, pool: PoolHandle, ask: impl FnOnce() -> Code) -> Code {
    let Some(known) = charged::with(|tables| tables.pools.get(&pool).cloned()) else {
        return ask();
    };
    known.as_ref().inspect(|pool| pool.end(driver));
    let code = ask();
    if code == Code::SUCCESS {
        charged::with(|tables| {
            // The handle may already belong to another pool.
            let is_known = |now: &Option<Arc<ChargedPool>>| {
                now.as_ref().map(Arc::as_ptr) == known.as_ref().map(Arc::as_ptr)
            };
            if tables.pools.get(&pool).is_some_and(is_known) {
                tables.pools.remove(&pool);
            }
        });
    } else {
        known.inspect(|pool| pool.go_on(driver));
    }
    code
}
