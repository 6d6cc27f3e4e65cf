//! Memory in one call: device, pinned, registered, managed.

use std::alloc::Layout;

use larder_cuda::DriverError;
use larder_cuda::driver::Driver;

use crate::watch::{Report, Times, size};

const SIZES: [u64; 7] = [
    512,
    64 << 10,
    2 << 20,
    32 << 20,
    256 << 20,
    1 << 30,
    8 << 30,
];

fn sizes(report: &Report) -> impl Iterator<Item = u64> + use<> {
    let max = report.settings.max_bytes;
    SIZES.into_iter().filter(move |bytes| *bytes <= max)
}

pub(crate) fn device(report: &mut Report, driver: &Driver) -> Result<(), DriverError> {
    for bytes in sizes(report) {
        let (mut alloc, mut free) = (Times::default(), Times::default());
        for _ in 0..report.settings.rounds {
            let at = alloc.time(|| driver.alloc_device(bytes))?;
            // SAFETY: given just now, and nothing was queued on it.
            free.time(|| unsafe { driver.free_device(at) })?;
        }
        report.line("cuMemAlloc", &size(bytes), alloc);
        report.line("cuMemFree", &size(bytes), free);
    }
    Ok(())
}

pub(crate) fn pinned(report: &mut Report, driver: &Driver) -> Result<(), DriverError> {
    for bytes in sizes(report).filter(|bytes| *bytes <= 1 << 30) {
        let (mut alloc, mut free) = (Times::default(), Times::default());
        for _ in 0..report.settings.rounds {
            let at = alloc.time(|| driver.alloc_host(bytes, 0))?;
            // SAFETY: given just now, and nothing was queued on it.
            free.time(|| unsafe { driver.free_host(at) })?;
        }
        report.line("cuMemHostAlloc", &size(bytes), alloc);
        report.line("cuMemFreeHost", &size(bytes), free);
    }
    Ok(())
}

pub(crate) fn registered(report: &mut Report, driver: &Driver) -> Result<(), DriverError> {
    for bytes in sizes(report).filter(|bytes| (4096..=1 << 30).contains(bytes)) {
        let Ok(layout) = Layout::from_size_align(bytes as usize, 4096) else {
            continue;
        };
        // SAFETY: the layout is not empty.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        if memory.is_null() {
            continue;
        }
        let (mut register, mut unregister) = (Times::default(), Times::default());
        for round in 0..=report.settings.rounds {
            // The first round touches the pages.
            let (mut first, mut second) = (Times::default(), Times::default());
            let (to, back) = match round {
                0 => (&mut first, &mut second),
                _ => (&mut register, &mut unregister),
            };
            // SAFETY: the memory is ours until it is freed below.
            to.time(|| unsafe { driver.register_host(memory.cast(), bytes, 0) })?;
            // SAFETY: registered just now, and nothing was queued on it.
            back.time(|| unsafe { driver.unregister_host(memory.cast()) })?;
        }
        // SAFETY: allocated above with this layout.
        unsafe { std::alloc::dealloc(memory, layout) };
        report.line(
            "cuMemHostRegister",
            &format!("{}, touched", size(bytes)),
            register,
        );
        report.line("cuMemHostUnregister", &size(bytes), unregister);
    }
    Ok(())
}

/// Never much: managed memory beyond what a device has free can hang it.
pub(crate) fn managed(report: &mut Report, driver: &Driver) -> Result<(), DriverError> {
    for bytes in sizes(report).filter(|bytes| *bytes <= 256 << 20) {
        let (mut alloc, mut free) = (Times::default(), Times::default());
        for _ in 0..report.settings.rounds {
            let at = alloc.time(|| driver.alloc_managed(bytes))?;
            // SAFETY: given just now, and nothing was queued on it.
            free.time(|| unsafe { driver.free_device(at) })?;
        }
        report.line("cuMemAllocManaged", &size(bytes), alloc);
        report.line("cuMemFree, managed", &size(bytes), free);
    }
    Ok(())
}
