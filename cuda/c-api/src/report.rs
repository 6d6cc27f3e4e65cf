//! Counters and contents, as a C structure and as JSON texts; limits, releases of memory, and the kind of driver.

use std::ffi::{c_char, c_int};
use std::fmt::Write as _;
use std::ptr;
use std::sync::Once;

use larder_core::ChunkState;
use larder_core::limits::LimitAnswer;
use larder_core::sync::Ordering;
use larder_cuda::driver::{self, Choice};
use larder_cuda::{DeviceAllocError, DeviceChunk};

use crate::device::{self, DeviceState};
use crate::job;
use crate::outcome::{Refusal, guard, say_once, status};

/// A device's memory in use, in bytes except for the counts.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DeviceStats {
    allocations: u64,
    frees: u64,
    out_of_memory: u64,
    live_bytes: u64,
    peak_live_bytes: u64,
    requested_bytes: u64,
    reserved_bytes: u64,
    peak_reserved_bytes: u64,
    limit_bytes: u64,
    driver_allocations: u64,
    driver_frees: u64,
}

impl DeviceStats {
    fn of(device: &DeviceState) -> Self {
        let (stats, counts) = (device.memory.stats(), &device.counts);
        let calls = device.memory.driver_calls();
        // Relaxed: no other memory is published through the counts.
        Self {
            allocations: counts.allocations.load(Ordering::Relaxed),
            frees: counts.frees.load(Ordering::Relaxed),
            out_of_memory: counts.out_of_memory.load(Ordering::Relaxed),
            live_bytes: stats.live_bytes,
            peak_live_bytes: stats.peak_live_bytes,
            requested_bytes: stats.requested_bytes,
            reserved_bytes: stats.reserved_bytes,
            peak_reserved_bytes: stats.peak_reserved_bytes,
            limit_bytes: device.limit_bytes(),
            driver_allocations: calls.create,
            driver_frees: calls.release,
        }
    }

    fn json(&self) -> String {
        let fields = [
            ("allocations", self.allocations),
            ("frees", self.frees),
            ("out_of_memory", self.out_of_memory),
            ("live_bytes", self.live_bytes),
            ("peak_live_bytes", self.peak_live_bytes),
            ("requested_bytes", self.requested_bytes),
            ("reserved_bytes", self.reserved_bytes),
            ("peak_reserved_bytes", self.peak_reserved_bytes),
            ("limit_bytes", self.limit_bytes),
            ("driver_allocations", self.driver_allocations),
            ("driver_frees", self.driver_frees),
        ];
        let fields = fields.map(|(name, number)| format!("\"{name}\": {number}"));
        format!("{{{}}}", fields.join(", "))
    }
}

/// Returns a device, if it has been used.
fn used(ordinal: c_int) -> Option<&'static DeviceState> {
    device::used().find(|device| device.ordinal == ordinal)
}

/// Returns the counters of a device. An unused device has zeros and no limit.
fn stats(ordinal: c_int) -> DeviceStats {
    let unused = DeviceStats {
        limit_bytes: u64::MAX,
        ..DeviceStats::default()
    };
    used(ordinal).map_or(unused, DeviceStats::of)
}

/// Returns every piece of a device's addresses to which memory is mapped, as JSON.
fn snapshot(ordinal: c_int) -> String {
    let chunks = used(ordinal).map(|device| device.memory.snapshot().chunks);
    let mut text = format!("{{\"stats\": {}, \"chunks\": [", stats(ordinal).json());
    let mut separator = "";
    for DeviceChunk { range, state, .. } in chunks.unwrap_or_default() {
        let (word, requested) = match state {
            ChunkState::Used {
                requested_bytes, ..
            } => ("used", requested_bytes),
            ChunkState::Free { pending: true } => ("pending", 0),
            ChunkState::Free { pending: false } => ("free", 0),
            ChunkState::Leaving | ChunkState::Planned => ("busy", 0),
            _ => continue,
        };
        let (address, bytes) = (range.start().get(), range.bytes());
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{separator}{{\"address\": {address}, \"bytes\": {bytes}, \"state\": \"{word}\", \"requested_bytes\": \
             {requested}}}"
        );
        separator = ", ";
    }
    text.push_str("]}");
    text
}

/// Writes as much of a text as fits, and a NUL. Returns the text's whole length.
///
/// # Safety
/// `into` is null or has space for `room` bytes.
pub(crate) unsafe fn write_text(text: &str, into: *mut c_char, room: usize) -> usize {
    if let Some(most) = room.checked_sub(1)
        && !into.is_null()
    {
        let count = text.len().min(most);
        // SAFETY: `into` has space for `room` bytes, and `count` bytes and the NUL fit into these.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr().cast(), into, count);
            into.add(count).write(0);
        }
    }
    text.len()
}

/// Writes a device's counters.
///
/// # Safety
/// `into` is null or has space for `bytes` bytes.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn larder_cuda_stats(
    ordinal: c_int,
    into: *mut DeviceStats,
    bytes: usize,
) -> c_int {
    status(|| {
        if into.is_null() {
            return Err(Refusal::Null("the counters"));
        }
        let stats = stats(ordinal);
        let count = bytes.min(size_of::<DeviceStats>());
        let (from, into) = (ptr::from_ref(&stats).cast::<u8>(), into.cast::<u8>());
        // SAFETY: `into` has space for `bytes` bytes, and the counters have at least `count`.
        unsafe { ptr::copy_nonoverlapping(from, into, count) };
        Ok(())
    })
}

/// Writes a device's counters as JSON.
///
/// # Safety
/// `into` is null or has space for `room` bytes.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn larder_cuda_stats_json(
    ordinal: c_int,
    into: *mut c_char,
    room: usize,
) -> usize {
    let text = guard(|| Ok(stats(ordinal).json())).unwrap_or_default();
    // SAFETY: the caller makes the promise of `write_text`, as the header demands.
    unsafe { write_text(&text, into, room) }
}

/// Writes all contents of a device as JSON.
///
/// # Safety
/// `into` is null or has space for `room` bytes.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn larder_cuda_snapshot_json(
    ordinal: c_int,
    into: *mut c_char,
    room: usize,
) -> usize {
    let text = guard(|| Ok(snapshot(ordinal))).unwrap_or_default();
    // SAFETY: the caller makes the promise of `write_text`, as the header demands.
    unsafe { write_text(&text, into, room) }
}

/// Resets the peaks to the current values.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_reset_peaks(ordinal: c_int) -> c_int {
    status(|| {
        if let Some(device) = used(ordinal) {
            device.memory.clear_stats();
        }
        Ok(())
    })
}

/// Releases idle memory of all devices to the driver; for `set_reset_fn` of PyTorch's allocator.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_empty_cache() {
    let released = guard(|| {
        for device in device::used() {
            device.memory.release(u64::MAX);
        }
        Ok(())
    });
    // A panic has been reported where it happened.
    drop(released);
}

/// Sets the limit of a device's memory, in addition to that of a job's control file.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_set_limit(ordinal: c_int, bytes: u64) -> c_int {
    status(|| set_limit(device::device(ordinal)?, bytes))
}

fn set_limit(device: &DeviceState, bytes: u64) -> Result<(), Refusal> {
    if !job::holds_a_page(bytes) {
        return Err(Refusal::Limit(bytes));
    }
    match device.limits.process().set(bytes) {
        LimitAnswer::Refused(error) => Err(DeviceAllocError::Budgets(error).into()),
        // Bytes held above the limit are released as blocks are freed.
        _ => Ok(()),
    }
}

/// Sets the limit as a fraction of a device's memory; for `set_memory_fraction_fn` of PyTorch's allocator.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_set_memory_fraction(fraction: f64, ordinal: c_int) {
    static SAID: Once = Once::new();
    let set = guard(|| {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Refusal::Fraction(fraction));
        }
        let device = device::device(ordinal)?;
        let total = device.context().device_info()?.total_bytes;
        // The product is not below zero and not above the total.
        set_limit(device, (total as f64 * fraction) as u64)
    });
    if let Err(refused) = set {
        say_once(&SAID, &refused);
    }
}

/// Returns whether the driver is the stand-in, after loading it if needed; -1 if it cannot be loaded.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_on_stand_in() -> c_int {
    let loaded = guard(|| Ok(driver::load(Choice::from_env()?.unwrap_or(Choice::Real))?));
    loaded.map_or(-1, |driver| c_int::from(driver.stand_in().is_some()))
}
