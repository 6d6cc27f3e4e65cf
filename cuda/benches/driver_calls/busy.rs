//! Which calls wait for queued work: each is made while a kernel that spins holds a stream.
//!
//! The stand-in has its work deferred here: a kernel runs when a call forces it, or by chance.

use std::error::Error;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use larder_cuda::driver::{Driver, MemoryUse};
use larder_cuda::{Context, DriverError};

use crate::kernels::Kernels;
use crate::watch::Report;

/// How long the stream is held.
const HELD: Duration = Duration::from_millis(30);

/// A stream and what holds it.
struct Busy<'a> {
    stream: &'a CudaStream,
    kernels: &'a Kernels,
}

/// Makes a call while the stream is held, and says whether it came back before the stream was free.
fn watch<R>(
    report: &mut Report,
    busy: &Busy<'_>,
    name: &str,
    call: impl FnOnce() -> Result<R, DriverError>,
) -> Result<R, Box<dyn Error>> {
    busy.stream.synchronize()?;
    busy.kernels.spin(busy.stream.cu_stream(), HELD)?;
    let start = Instant::now();
    let answer = call()?;
    let took = start.elapsed();
    let found = if took > HELD / 2 {
        "waits"
    } else {
        "returns at once"
    };
    report.note(name, "while another stream is held", found);
    busy.stream.synchronize()?;
    Ok(answer)
}

pub(crate) fn waits(report: &mut Report, context: &Context) -> Result<(), Box<dyn Error>> {
    let stream = context.cudarc().new_stream()?;
    let control = context.driver().stand_in();
    let kernels = context.with_current(|_| Kernels::load(control))??;
    let busy = Busy {
        stream: &stream,
        kernels: &kernels,
    };
    // The first launch loads what the kernel needs.
    kernels.spin(stream.cu_stream(), Duration::ZERO)?;
    stream.synchronize()?;
    if let Some(control) = control {
        control.schedule_deferred(1);
    }
    context.with_current(|driver| plain(report, driver, &busy))??;
    context.with_current(|driver| pages(report, driver, &busy, context.ordinal()))??;
    if let Some(control) = control {
        control.schedule_eagerly();
    }
    Ok(())
}

fn plain(report: &mut Report, driver: &Driver, busy: &Busy<'_>) -> Result<(), Box<dyn Error>> {
    const BYTES: u64 = 64 << 20;
    let at = watch(report, busy, "cuMemAlloc", || driver.alloc_device(BYTES))?;
    // SAFETY: given just now, nothing uses it.
    watch(report, busy, "cuMemFree", || unsafe {
        driver.free_device(at)
    })?;
    let at = watch(report, busy, "cuMemHostAlloc", || {
        driver.alloc_host(BYTES, 0)
    })?;
    // SAFETY: given just now, nothing uses it.
    watch(report, busy, "cuMemFreeHost", || unsafe {
        driver.free_host(at)
    })?;
    watch(report, busy, "cuMemGetInfo", || driver.memory_info())?;
    Ok(())
}

fn pages(
    report: &mut Report,
    driver: &Driver,
    busy: &Busy<'_>,
    device: i32,
) -> Result<(), Box<dyn Error>> {
    let bytes = driver.page_bytes(device, MemoryUse::default(), false)?;
    let start = watch(report, busy, "cuMemAddressReserve", || {
        driver.reserve(bytes, 0)
    })?;
    let handle = watch(report, busy, "cuMemCreate", || {
        driver.create_memory(device, MemoryUse::default(), bytes)
    })?;
    // SAFETY: reserved and created just now.
    watch(report, busy, "cuMemMap", || unsafe {
        driver.map(start, bytes, handle)
    })?;
    watch(report, busy, "cuMemSetAccess", || {
        // SAFETY: the addresses were mapped just now, and are ours.
        unsafe { driver.set_access(start, bytes, &[device]) }
    })?;
    // SAFETY: mapped above, nothing uses it.
    watch(report, busy, "cuMemUnmap", || unsafe {
        driver.unmap(start, bytes)
    })?;
    // SAFETY: the handle is mapped nowhere any more, and is given back once.
    watch(report, busy, "cuMemRelease", || unsafe {
        driver.release_memory(handle)
    })?;
    watch(report, busy, "cuMemAddressFree", || {
        // SAFETY: nothing is mapped there any more.
        unsafe { driver.free_reserved(start, bytes) }
    })?;
    Ok(())
}
