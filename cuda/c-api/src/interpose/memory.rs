//! Plain and managed memory, how much there is, and contexts, with which their memory goes.

use std::ffi::c_int;

use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{ContextHandle, DevicePtr};

use super::charged::{self, Block};
use super::driver::{Driver, Fn1};
use super::launch::{self, SliceStream};
use super::pools;
use super::{acts, in_front_of};

/// Charges memory of the current device, asks the driver for it, and keeps the charge by the address.
fn alloc(
    driver: &Driver,
    bytes: Option<usize>,
    at: *mut DevicePtr,
    ask: impl FnOnce() -> Code,
) -> Code {
    let device = driver.device();
    // A length that is none is the driver's to refuse.
    let charge = match charged::charge(driver, device, bytes.map_or(0, |bytes| bytes as u64)) {
        Ok(charge) => charge,
        Err(code) => return code,
    };
    let code = ask();
    if let Some(charge) = charge
        && code == Code::SUCCESS
    {
        // SAFETY: the driver has written it.
        let address = unsafe { *at };
        let context = driver.context();
        charged::with(|tables| {
            tables.blocks.insert(
                address,
                Block::Plain {
                    context,
                    _charge: charge,
                },
            )
        });
    }
    code
}

/// Memory of the current context.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAlloc_v2(at: *mut DevicePtr, bytes: usize) -> Code {
    in_front_of(
        |driver| driver.alloc,
        |driver, real| {
            // SAFETY: the caller's promise.
            alloc(driver, Some(bytes), at, || unsafe { real(at, bytes) })
        },
    )
}

/// Memory of the current context in rows. The driver says how long they are, so it is charged for about that.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocPitch_v2(
    at: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Code {
    /// Rows are as long as a multiple of this, on all devices so far.
    const ROW: usize = 512;
    in_front_of(
        |driver| driver.alloc_pitch,
        |driver, real| {
            let row = width.checked_next_multiple_of(ROW);
            let bytes = row.and_then(|row| row.checked_mul(height));
            // SAFETY: the caller's promise.
            let ask = || unsafe { real(at, pitch, width, height, element) };
            alloc(driver, bytes, at, ask)
        },
    )
}

/// Managed memory, all of which may come to the device.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocManaged(
    at: *mut DevicePtr,
    bytes: usize,
    flags: u32,
) -> Code {
    in_front_of(
        |driver| driver.alloc_managed,
        |driver, real| {
            // SAFETY: the caller's promise.
            let ask = || unsafe { real(at, bytes, flags) };
            alloc(driver, Some(bytes), at, ask)
        },
    )
}

/// Gives memory back.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFree_v2(at: DevicePtr) -> Code {
    in_front_of(
        |driver| driver.free,
        |driver, real| {
            // SAFETY: the caller's promise.
            free(driver, at, || unsafe { real(at) })
        },
    )
}

/// Asks the driver to take memory back, plain or a pool's, and charges it no more.
pub(super) fn free(driver: &Driver, at: DevicePtr, ask: impl FnOnce() -> Code) -> Code {
    if !acts() {
        return ask();
    }
    let block = charged::with(|tables| tables.blocks.remove(&at));
    let code = ask();
    match block {
        Some(block) if code != Code::SUCCESS => {
            charged::with(|tables| tables.blocks.insert(at, block));
        }
        Some(Block::Plain { .. }) => {}
        Some(Block::Pooled { .. }) | None => pools::refresh_all(driver),
    }
    code
}

/// How much memory of the current device is free, and how much there is: of what the limit allows.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    in_front_of(
        |driver| driver.info,
        |driver, real| {
            // SAFETY: the caller's promise.
            let code = unsafe { real(free, total) };
            let device = driver.device().filter(|_| code == Code::SUCCESS && acts());
            let gpu = match device.map(|device| charged::gpu(driver, device)) {
                Some(Ok(Some(gpu))) => gpu,
                Some(Err(_)) => {
                    // Nothing is given.
                    lower(free, 0);
                    return code;
                }
                _ => return code,
            };
            pools::refresh_all(driver);
            let usage = gpu.memory.usage();
            let limit = clamped(usage.config.hard_bytes);
            let room = clamped(usage.config.hard_bytes.saturating_sub(usage.used_bytes));
            lower(free, room);
            if limit > 0 {
                lower(total, limit);
            }
            code
        },
    )
}

/// Lowers a number that the driver has written.
fn lower(place: *mut usize, most: usize) {
    // SAFETY: the driver has written there.
    let place = unsafe { &mut *place };
    *place = (*place).min(most);
}

fn clamped(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// All memory of a device: of what the limit allows. A job that has none yet is told what the device has.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceTotalMem_v2(total: *mut usize, device: c_int) -> Code {
    in_front_of(
        |driver| driver.total,
        |driver, real| {
            // SAFETY: the caller's promise.
            let code = unsafe { real(total, device) };
            let gpu = (code == Code::SUCCESS && acts()).then(|| charged::gpu(driver, device));
            if let Some(Ok(Some(gpu))) = gpu {
                let limit = clamped(gpu.memory.usage().config.hard_bytes);
                if limit > 0 {
                    lower(total, limit);
                }
            }
            code
        },
    )
}

/// Ends a context, with its memory and streams.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxDestroy_v2(context: ContextHandle) -> Code {
    in_front_of(
        |driver| driver.context_destroy,
        |_, real| {
            // SAFETY: the caller's promise.
            end_context(context, || unsafe { real(context) })
        },
    )
}

/// Ends a context, as until CUDA 3.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxDestroy(context: ContextHandle) -> Code {
    in_front_of(
        |driver| driver.context_destroy_v1,
        |_, real| {
            // SAFETY: the caller's promise.
            end_context(context, || unsafe { real(context) })
        },
    )
}

fn end_context(context: ContextHandle, ask: impl FnOnce() -> Code) -> Code {
    // A child of fork may find a lock that nobody gives back (INTER5).
    let ending = acts().then(|| Ending::new(context));
    let code = ask();
    if let Some(ending) = ending
        && code != Code::SUCCESS
    {
        ending.put_back();
    }
    code
}

/// What goes with a context that is about to end.
struct Ending {
    blocks: Vec<(DevicePtr, Block)>,
    streams: Vec<SliceStream>,
}

impl Ending {
    fn new(context: ContextHandle) -> Self {
        let of_context = |_: &DevicePtr, block: &mut Block| block.context() == Some(context);
        Self {
            blocks: charged::with(|tables| tables.blocks.extract_if(of_context).collect()),
            streams: launch::taken_of(context),
        }
    }

    fn put_back(self) {
        charged::with(|tables| tables.blocks.extend(self.blocks));
        launch::put_back(self.streams);
    }
}

/// Gives a device's primary context, which is noted.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut ContextHandle,
    device: c_int,
) -> Code {
    in_front_of(
        |driver| driver.primary_retain,
        |_, real| {
            // SAFETY: the caller's promise.
            let code = unsafe { real(context, device) };
            if code == Code::SUCCESS && acts() {
                // SAFETY: the driver has written it.
                let context = unsafe { *context };
                charged::with(|tables| tables.primaries.insert(device, context));
            }
            code
        },
    )
}

/// A call after which a device's primary context may be gone, and its memory with it.
fn end_primary(
    device: c_int,
    real: impl FnOnce(&Driver) -> Option<Fn1<c_int>>,
    is_gone: impl FnOnce(&Driver, Code) -> bool,
) -> Code {
    in_front_of(real, |driver, real| {
        let primary = || charged::with(|tables| tables.primaries.get(&device).copied());
        let context = acts().then(primary).flatten();
        let ending = context.map(Ending::new);
        // SAFETY: a device's number; the driver looks at it.
        let code = unsafe { real(device) };
        if let Some(ending) = ending
            && !is_gone(driver, code)
        {
            ending.put_back();
        }
        code
    })
}

fn release(device: c_int, real: impl FnOnce(&Driver) -> Option<Fn1<c_int>>) -> Code {
    // The last one ends it.
    end_primary(device, real, |driver, _| !driver.is_primary_active(device))
}

fn reset(device: c_int, real: impl FnOnce(&Driver) -> Option<Fn1<c_int>>) -> Code {
    end_primary(device, real, |_, code| code == Code::SUCCESS)
}

/// Lets a primary context go, as until CUDA 10.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxRelease(device: c_int) -> Code {
    release(device, |driver| driver.primary_release)
}

/// Lets a primary context go.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    release(device, |driver| driver.primary_release_v2)
}

/// Ends what a primary context has, as until CUDA 10.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxReset(device: c_int) -> Code {
    reset(device, |driver| driver.primary_reset)
}

/// Ends what a primary context has.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> Code {
    reset(device, |driver| driver.primary_reset_v2)
}
