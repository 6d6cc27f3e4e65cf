//! Plain and managed memory, how much there is, and contexts, with which their memory goes.

use std::ffi::c_int;

use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{ContextHandle, DevicePtr};

use super::charged::{self, Block};
use super::driver::Driver;
use super::launch::{self, SliceStream};
use super::{acts, pools};

/// Charges memory of the current device, asks the driver for it, and keeps the charge by the address.
pub(super) fn alloc(
    driver: &Driver,
    at: *mut DevicePtr,
    bytes: Option<usize>,
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
        // SAFETY: INTER6: the driver has written the address.
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

/// About the bytes of memory in rows: how long a row is says the driver.
pub(super) fn pitched(width: usize, height: usize) -> Option<usize> {
    /// Rows are as long as a multiple of this, on all devices so far.
    const ROW: usize = 512;
    let row = width.checked_next_multiple_of(ROW);
    row.and_then(|row| row.checked_mul(height))
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
pub(super) fn info(
    driver: &Driver,
    free: *mut usize,
    total: *mut usize,
    ask: impl FnOnce() -> Code,
) -> Code {
    let code = ask();
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
}

/// Lowers a number that the driver has written.
fn lower(place: *mut usize, most: usize) {
    // SAFETY: INTER6: the driver has written there.
    let place = unsafe { &mut *place };
    *place = (*place).min(most);
}

fn clamped(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// All memory of a device: of what the limit allows. A job that has none yet is told what the device has.
pub(super) fn total(
    driver: &Driver,
    total: *mut usize,
    device: c_int,
    ask: impl FnOnce() -> Code,
) -> Code {
    let code = ask();
    let gpu = (code == Code::SUCCESS && acts()).then(|| charged::gpu(driver, device));
    if let Some(Ok(Some(gpu))) = gpu {
        let limit = clamped(gpu.memory.usage().config.hard_bytes);
        if limit > 0 {
            lower(total, limit);
        }
    }
    code
}

/// Ends a context, with its memory and streams.
pub(super) fn end_context(context: ContextHandle, ask: impl FnOnce() -> Code) -> Code {
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
pub(super) fn retain_primary(
    context: *mut ContextHandle,
    device: c_int,
    ask: impl FnOnce() -> Code,
) -> Code {
    let code = ask();
    if code == Code::SUCCESS && acts() {
        // SAFETY: INTER6: the driver has written the handle.
        let context = unsafe { *context };
        charged::with(|tables| tables.primaries.insert(device, context));
    }
    code
}

/// Lets a primary context go, which the last one ends.
pub(super) fn release_primary(driver: &Driver, device: c_int, ask: impl FnOnce() -> Code) -> Code {
    end_primary(device, ask, |_| !driver.is_primary_active(device))
}

/// Ends what a primary context has.
pub(super) fn reset_primary(device: c_int, ask: impl FnOnce() -> Code) -> Code {
    end_primary(device, ask, |code| code == Code::SUCCESS)
}

/// A call after which a device's primary context may be gone, and its memory with it.
fn end_primary(
    device: c_int,
    ask: impl FnOnce() -> Code,
    is_gone: impl FnOnce(Code) -> bool,
) -> Code {
    let primary = || charged::with(|tables| tables.primaries.get(&device).copied());
    let context = acts().then(primary).flatten();
    let ending = context.map(Ending::new);
    let code = ask();
    if let Some(ending) = ending
        && !is_gone(code)
    {
        ending.put_back();
    }
    code
}
