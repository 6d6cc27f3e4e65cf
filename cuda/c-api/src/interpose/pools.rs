//! The driver's own pools, which keep what is freed: each is charged for what it holds, not for its blocks. One
//! that is destroyed stays charged for that until its last block is freed, as the driver keeps the memory.
//!
//! An allocation is charged for itself until the pool says what it holds behind it, as the pool may grow by so
//! much, and by its own rounding. A pool gives idle memory back by itself, unseen: it is asked again at the next
//! call, and before anything is refused. What a stream captures is taken by the graph, and not charged.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use larder_cuda::ForeignCharge;
use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{DevicePtr, PoolHandle, PoolProps, StreamHandle, constants};

use super::acts;
use super::charged::{self, Block, Gpu};
use super::driver::Driver;
use crate::device::locked;

/// A pool of a device.
pub(super) struct Pool {
    pub(super) handle: PoolHandle,
    pub(super) device: c_int,
    /// What it holds. The lock is held while it is asked, so that no older answer comes last (INTER3).
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    charge: Option<ForeignCharge>,
    /// The program destroys the pool, or has, so it cannot be asked.
    is_ended: bool,
}

impl Held {
    fn set_to(&mut self, bytes: Option<u64>) {
        if let Some(charge) = &mut self.charge
            && let Some(bytes) = bytes
        {
            charge.set_bytes(bytes);
        }
    }
}

impl Pool {
    fn new(handle: PoolHandle, device: c_int) -> Arc<Self> {
        let held = Mutex::default();
        Arc::new(Self {
            handle,
            device,
            held,
        })
    }

    /// Charges what the pool holds now, in place of what was charged for an allocation.
    pub(super) fn refresh(&self, driver: &Driver, gpu: &Gpu, charged: Option<ForeignCharge>) {
        let mut held = locked(&self.held);
        match (&mut held.charge, charged) {
            (Some(held), Some(charged)) => held.join(charged),
            (none, charged @ Some(_)) => *none = charged,
            // There is room for nothing, but where the limit was lowered: then it is charged later.
            (none @ None, None) => *none = gpu.memory.charge(0).ok(),
            (Some(_), None) => {}
        }
        if !held.is_ended {
            held.set_to(driver.held_by(self.handle));
        }
    }

    /// Has the pool give back what is idle.
    pub(super) fn trim(&self, driver: &Driver) {
        if !locked(&self.held).is_ended {
            driver.trim(self.handle);
        }
    }

    /// Charges what the pool holds for the last time.
    fn end(&self, driver: &Driver) {
        let mut held = locked(&self.held);
        held.set_to(driver.held_by(self.handle));
        held.is_ended = true;
    }

    /// The program could not destroy the pool, which may have grown meanwhile.
    fn go_on(&self, driver: &Driver) {
        let mut held = locked(&self.held);
        held.is_ended = false;
        held.set_to(driver.held_by(self.handle));
    }
}

/// Charges what the known pools hold now.
pub(super) fn refresh_all(driver: &Driver) {
    for pool in charged::pools() {
        if let Ok(Some(gpu)) = charged::gpu(driver, pool.device) {
            pool.refresh(driver, gpu, None);
        }
    }
}

/// Charges an allocation, asks the driver for it, and charges the pool.
pub(super) fn alloc(
    driver: &Driver,
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
        let new = || Some(Pool::new(pool, device));
        tables.pools.entry(pool).or_insert_with(new).clone()
    });
    let Some(pool) = known else {
        // The host's.
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
        let block = Block::Pooled { _pool: pool };
        charged::with(|tables| tables.blocks.insert(address, block));
    }
    code
}

/// Has a pool give back what is idle.
pub(super) fn trim(driver: &Driver, ask: impl FnOnce() -> Code) -> Code {
    let code = ask();
    if acts() {
        refresh_all(driver);
    }
    code
}

/// Makes a pool, whose place is noted.
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
        let made = is_here.then(|| Pool::new(handle, place.id));
        charged::with(|tables| tables.pools.insert(handle, made));
    }
    code
}

/// Ends a pool. Its blocks keep what it holds charged.
pub(super) fn destroy(driver: &Driver, pool: PoolHandle, ask: impl FnOnce() -> Code) -> Code {
    let Some(known) = charged::with(|tables| tables.pools.get(&pool).cloned()) else {
        return ask();
    };
    known.as_ref().inspect(|pool| pool.end(driver));
    let code = ask();
    if code == Code::SUCCESS {
        charged::with(|tables| {
            // By now the handle may be another pool's.
            let is_known = |now: &Option<Arc<Pool>>| {
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
