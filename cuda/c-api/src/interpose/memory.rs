//! Plain and managed memory, queries of memory, and contexts, whose end frees their memory.

use std::ffi::c_int;

use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{ContextHandle, DevicePtr};

use super::charged::{self, ChargedBlock};
use super::driver::NextDriver;
use super::launch::{self, SliceStream};
use super::{acts, pools};

/// Charges memory of the current device, requests it from the driver, and keeps the charge under the memory's
/// address.
pub(super) fn alloc(
    driver: &NextDriver,
    at: *mut DevicePtr,
    bytes: Option<usize>,
    ask: impl FnOnce() -> Code,
) -> Code {
    let device = driver.device();
    // An invalid length is left to the driver to refuse.
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
                ChargedBlock::Plain {
                    context,
                    _charge: charge,
                },
            )
        });
    }
    code
}

/// Returns the approximate length in bytes of memory in rows: the driver decides the length of a row.
pub(super) fn pitched(width: usize, height: usize) -> Option<usize> {
    /// The length of rows is a multiple of this on all devices so far.
    const ROW: usize = 512;
    let row = width.checked_next_multiple_of(ROW);
    row.and_then(|row| row.checked_mul(height))
}

/// Makes the driver free plain or pool memory, and removes its charge.
pub(super) fn free(driver: &NextDriver, at: DevicePtr, ask: impl FnOnce() -> Code) -> Code {
    if !acts() {
        return ask();
    }
    let block = charged::with(|tables| tables.blocks.remove(&at));
    let code = ask();
    match block {
        Some(block) if code != Code::SUCCESS => {
            charged::with(|tables| tables.blocks.insert(at, block));
        }
        Some(ChargedBlock::Plain { .. }) => {}
        Some(ChargedBlock::Pooled { .. }) | None => pools::refresh_all(driver),
    }
    code
}

/// Reports the free and the total memory of the current device, within the limit.
pub(super) fn info(
    driver: &NextDriver,
    free: *mut usize,
    total: *mut usize,
    ask: impl FnOnce() -> Code,
) -> Code {
    let code = ask();
    let device = driver.device().filter(|_| code == Code::SUCCESS && acts());
    let gpu = match device.map(|device| charged::gpu(driver, device)) {
        Some(Ok(Some(gpu))) => gpu,
        Some(Err(_)) => {
            // No memory is granted in this state.
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

/// Reports the total memory of a device, within the limit. A job without a limit yet gets the device's total.
pub(super) fn total(
    driver: &NextDriver,
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
    // After fork, a child may find a lock that is never released (INTER5).
    let ending = acts().then(|| Ending::new(context));
    let code = ask();
    if let Some(ending) = ending
        && code != Code::SUCCESS
    {
        ending.put_back();
    }
    code
}

/// The blocks and streams of a context that is about to end.
struct Ending {
    blocks: Vec<(DevicePtr, ChargedBlock)>,
    streams: Vec<SliceStream>,
}

impl Ending {
    fn new(context: ContextHandle) -> Self {
        let of_context = |_: &DevicePtr, block: &mut ChargedBlock| block.context() == Some(context);
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

/// Retains a device's primary context, and records it.
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

/// Releases a primary context, which ends with the last release.
pub(super) fn release_primary(
    driver: &NextDriver,
    device: c_int,
    ask: impl FnOnce() -> Code,
) -> Code {
    end_primary(device, ask, |_| !driver.is_primary_active(device))
}

/// Resets a primary context, which ends everything in it.
pub(super) fn reset_primary(device: c_int, ask: impl FnOnce() -> Code) -> Code {
    end_primary(device, ask, |code| code == Code::SUCCESS)
}

/// Makes a call that may end a device's primary context and its memory.
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
