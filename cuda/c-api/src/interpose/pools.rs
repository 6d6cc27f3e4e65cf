//! The driver's own pools, which keep what is freed: each is charged for what it holds, not for its blocks.
//!
//! An allocation is charged for itself until the pool says what it holds behind it, as the pool may grow by so
//! much, and by its own rounding. A pool gives idle memory back by itself, unseen: it is asked again at the next
//! call, and before anything is refused. What a stream captures is taken by the graph, and not charged.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use larder_cuda::ForeignCharge;
use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{DevicePtr, PoolHandle, PoolProps, StreamHandle, constants};

use super::charged::{self, Gpu};
use super::driver::Driver;
use super::{acts, in_front_of};
use crate::device::locked;

/// A pool of a device.
pub(super) struct Pool {
    pub(super) handle: PoolHandle,
    pub(super) device: c_int,
    /// What it holds. The lock is held while it is asked, so that no older answer comes last (INTER3).
    held: Mutex<Option<ForeignCharge>>,
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
        match (&mut *held, charged) {
            (Some(held), Some(charged)) => held.join(charged),
            (None, charged @ Some(_)) => *held = charged,
            // There is room for nothing, but where the limit was lowered: then it is charged later.
            (None, None) => *held = gpu.memory.charge(0).ok(),
            (Some(_), None) => {}
        }
        if let Some(held) = &mut *held
            && let Some(bytes) = driver.held_by(self.handle)
        {
            held.set_bytes(bytes);
        }
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
fn alloc(
    driver: &Driver,
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
    code
}

/// Charges an allocation by the driver's own function.
fn alloc_from<F>(
    of: impl FnOnce(&Driver) -> Option<F>,
    from: (Option<PoolHandle>, StreamHandle),
    bytes: usize,
    call: impl FnOnce(F) -> Code,
) -> Code {
    in_front_of(of, |driver, real| alloc(driver, from, bytes, || call(real)))
}

/// The stream that a function means where each thread has its own default stream.
pub(super) fn per_thread(stream: StreamHandle) -> StreamHandle {
    match stream {
        StreamHandle::NULL => StreamHandle::PER_THREAD,
        other => other,
    }
}

/// Memory in the order of a stream, from its device's pool.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocAsync(
    at: *mut DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> Code {
    let of = |driver: &Driver| driver.alloc_async.legacy;
    // SAFETY: the caller's promise.
    alloc_from(of, (None, stream), bytes, |real| unsafe {
        real(at, bytes, stream)
    })
}

/// `cuMemAllocAsync` where each thread has its own default stream.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocAsync_ptsz(
    at: *mut DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> Code {
    let of = |driver: &Driver| driver.alloc_async.per_thread;
    let from = (None, per_thread(stream));
    // SAFETY: the caller's promise.
    alloc_from(of, from, bytes, |real| unsafe { real(at, bytes, stream) })
}

/// Memory in the order of a stream, from a pool.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocFromPoolAsync(
    at: *mut DevicePtr,
    bytes: usize,
    pool: PoolHandle,
    stream: StreamHandle,
) -> Code {
    let of = |driver: &Driver| driver.alloc_from_pool.legacy;
    let from = (Some(pool), stream);
    // SAFETY: the caller's promise.
    alloc_from(of, from, bytes, |real| unsafe {
        real(at, bytes, pool, stream)
    })
}

/// `cuMemAllocFromPoolAsync` where each thread has its own default stream.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocFromPoolAsync_ptsz(
    at: *mut DevicePtr,
    bytes: usize,
    pool: PoolHandle,
    stream: StreamHandle,
) -> Code {
    let of = |driver: &Driver| driver.alloc_from_pool.per_thread;
    let from = (Some(pool), per_thread(stream));
    // SAFETY: the caller's promise.
    alloc_from(of, from, bytes, |real| unsafe {
        real(at, bytes, pool, stream)
    })
}

/// Asks the driver, then the pools.
fn give_back<F>(of: impl FnOnce(&Driver) -> Option<F>, call: impl FnOnce(F) -> Code) -> Code {
    in_front_of(of, |driver, real| {
        let code = call(real);
        if acts() {
            refresh_all(driver);
        }
        code
    })
}

/// Gives memory back in the order of a stream.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFreeAsync(at: DevicePtr, stream: StreamHandle) -> Code {
    let of = |driver: &Driver| driver.free_async.legacy;
    // SAFETY: the caller's promise.
    give_back(of, |real| unsafe { real(at, stream) })
}

/// `cuMemFreeAsync` where each thread has its own default stream.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFreeAsync_ptsz(at: DevicePtr, stream: StreamHandle) -> Code {
    let of = |driver: &Driver| driver.free_async.per_thread;
    // SAFETY: the caller's promise.
    give_back(of, |real| unsafe { real(at, stream) })
}

/// Has a pool give back what is idle.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolTrimTo(pool: PoolHandle, keep: usize) -> Code {
    let of = |driver: &Driver| driver.pool_trim;
    // SAFETY: the caller's promise.
    give_back(of, |real| unsafe { real(pool, keep) })
}

/// Makes a pool, whose place is noted.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolCreate(
    pool: *mut PoolHandle,
    props: *const PoolProps,
) -> Code {
    in_front_of(
        |driver| driver.pool_create,
        |_, real| {
            // SAFETY: the caller's promise.
            let code = unsafe { real(pool, props) };
            if code == Code::SUCCESS && acts() {
                // SAFETY: the driver has written it.
                let handle = unsafe { *pool };
                // SAFETY: the driver has read it.
                let place = unsafe { (*props).location };
                let is_here = place.kind == constants::MEM_LOCATION_DEVICE;
                let made = is_here.then(|| Pool::new(handle, place.id));
                charged::with(|tables| tables.pools.insert(handle, made));
            }
            code
        },
    )
}

/// Ends a pool. What its blocks hold still is charged no more.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolDestroy(pool: PoolHandle) -> Code {
    in_front_of(
        |driver| driver.pool_destroy,
        |_, real| {
            let known = charged::with(|tables| tables.pools.remove(&pool));
            // SAFETY: the caller's promise.
            let code = unsafe { real(pool) };
            if let Some(known) = known
                && code != Code::SUCCESS
            {
                charged::with(|tables| tables.pools.insert(pool, known));
            }
            code
        },
    )
}
