//! Which calls wait for queued work: each is made while a stream is held for a while.

use std::error::Error;
use std::ffi::c_void;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaStream, result};
use larder_cuda::driver::{Driver, MemoryUse};
use larder_cuda::{Context, DriverError};

use crate::watch::Report;

/// How long the stream is held.
const HELD: Duration = Duration::from_millis(30);

unsafe extern "C" fn hold(_: *mut c_void) {
    thread::sleep(HELD);
}

/// Makes a call while the stream is held, and says whether it came back before the stream was free.
fn watch<R>(
    report: &mut Report,
    stream: &CudaStream,
    name: &str,
    call: impl FnOnce() -> Result<R, DriverError>,
) -> Result<R, Box<dyn Error>> {
    stream.synchronize()?;
    // SAFETY: the function takes no data and calls nothing of CUDA.
    unsafe {
        result::stream::launch_host_function(stream.cu_stream(), hold, std::ptr::null_mut())
    }?;
    let start = Instant::now();
    let answer = call()?;
    let took = start.elapsed();
    let found = if took > HELD / 2 {
        "waits"
    } else {
        "returns at once"
    };
    report.note(name, "while another stream is held", found);
    stream.synchronize()?;
    Ok(answer)
}

pub(crate) fn waits(report: &mut Report, context: &Context) -> Result<(), Box<dyn Error>> {
    let stream = context.cudarc().new_stream()?;
    context.with_current(|driver| plain(report, driver, &stream))??;
    context.with_current(|driver| pages(report, driver, &stream, context.ordinal()))??;
    Ok(())
}

fn plain(report: &mut Report, driver: &Driver, stream: &CudaStream) -> Result<(), Box<dyn Error>> {
    const BYTES: u64 = 64 << 20;
    let at = watch(report, stream, "cuMemAlloc", || driver.alloc_device(BYTES))?;
    // SAFETY: given just now, nothing uses it.
    watch(report, stream, "cuMemFree", || unsafe {
        driver.free_device(at)
    })?;
    let at = watch(report, stream, "cuMemHostAlloc", || {
        driver.alloc_host(BYTES, 0)
    })?;
    // SAFETY: given just now, nothing uses it.
    watch(report, stream, "cuMemFreeHost", || unsafe {
        driver.free_host(at)
    })?;
    watch(report, stream, "cuMemGetInfo", || driver.memory_info())?;
    Ok(())
}

fn pages(
    report: &mut Report,
    driver: &Driver,
    stream: &CudaStream,
    device: i32,
) -> Result<(), Box<dyn Error>> {
    let bytes = driver.page_bytes(device, MemoryUse::default(), false)?;
    let start = watch(report, stream, "cuMemAddressReserve", || {
        driver.reserve(bytes, 0)
    })?;
    let handle = watch(report, stream, "cuMemCreate", || {
        driver.create_memory(device, MemoryUse::default(), bytes)
    })?;
    // SAFETY: reserved and created just now.
    watch(report, stream, "cuMemMap", || unsafe {
        driver.map(start, bytes, handle)
    })?;
    watch(report, stream, "cuMemSetAccess", || {
        // SAFETY: the addresses were mapped just now, and are ours.
        unsafe { driver.set_access(start, bytes, &[device]) }
    })?;
    // SAFETY: mapped above, nothing uses it.
    watch(report, stream, "cuMemUnmap", || unsafe {
        driver.unmap(start, bytes)
    })?;
    // SAFETY: the handle is mapped nowhere any more, and is given back once.
    watch(report, stream, "cuMemRelease", || unsafe {
        driver.release_memory(handle)
    })?;
    watch(report, stream, "cuMemAddressFree", || {
        // SAFETY: nothing is mapped there any more.
        unsafe { driver.free_reserved(start, bytes) }
    })?;
    Ok(())
}
