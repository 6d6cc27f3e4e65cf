//! Virtual memory: what a growth, a move and a release of pages cost.

use larder_cuda::DriverError;
use larder_cuda::driver::{Driver, MemoryUse};
use larder_cuda_abi::{DevicePtr, MemoryHandle};

use crate::watch::{Report, Times, size};

pub(crate) fn addresses(report: &mut Report, driver: &Driver) -> Result<(), DriverError> {
    for bytes in [2 << 20, 1 << 30, 64 << 30, 1 << 40] {
        let (mut reserve, mut free) = (Times::default(), Times::default());
        for _ in 0..report.settings.rounds {
            let start = reserve.time(|| driver.reserve(bytes, 0))?;
            // SAFETY: reserved just now, nothing is mapped.
            free.time(|| unsafe { driver.free_reserved(start, bytes) })?;
        }
        report.line("cuMemAddressReserve", &size(bytes), reserve);
        report.line("cuMemAddressFree", &size(bytes), free);
    }
    Ok(())
}

/// The times of one total size cut into so many handles, a call each.
#[derive(Default)]
struct Cut {
    create: Times,
    map: Times,
    access: Times,
    access_each: Times,
    again: Times,
    unmap: Times,
    unmap_all: Times,
    release: Times,
}

pub(crate) fn handles(
    report: &mut Report,
    driver: &Driver,
    device: i32,
) -> Result<(), DriverError> {
    let page = driver.page_bytes(device, MemoryUse::default(), false)?;
    report.note("granularity", "least", &size(page));
    report.note(
        "granularity",
        "recommended",
        &size(driver.page_bytes(device, MemoryUse::default(), true)?),
    );
    let max = report.settings.max_bytes;
    for total in [page, 64 << 20, 1 << 30, 8 << 30] {
        if total > max {
            continue;
        }
        for count in [1, 8, 32, 512] {
            if total / count >= page {
                cut(report, driver, device, total, count)?;
            }
        }
    }
    Ok(())
}

fn cut(
    report: &mut Report,
    driver: &Driver,
    device: i32,
    total: u64,
    count: u64,
) -> Result<(), DriverError> {
    let start = driver.reserve(2 * total, 0)?;
    let mut cut = Cut::default();
    let mut unmaps_many = true;
    for _ in 0..report.settings.rounds {
        unmaps_many &= round(&mut cut, driver, device, start, (total, count))?;
    }
    // SAFETY: reserved above; every round unmaps what it maps.
    unsafe { driver.free_reserved(start, 2 * total) }?;
    let each = format!("each of {count} x {}", size(total / count));
    let all = format!("one call, {count} x {}", size(total / count));
    report.line("cuMemCreate", &each, cut.create);
    report.line("cuMemMap", &each, cut.map);
    report.line("cuMemSetAccess", &all, cut.access);
    report.line("cuMemMap, second address", &each, cut.again);
    report.line("cuMemSetAccess, second", &each, cut.access_each);
    report.line("cuMemUnmap, second address", &each, cut.unmap);
    if unmaps_many {
        report.line("cuMemUnmap", &all, cut.unmap_all);
    } else {
        report.note("cuMemUnmap", &all, "refused");
    }
    report.line("cuMemRelease", &each, cut.release);
    Ok(())
}

/// One round: create and map all, map all a second time behind, undo. Whether one unmap could undo
/// all mappings.
fn round(
    cut: &mut Cut,
    driver: &Driver,
    device: i32,
    start: DevicePtr,
    (total, count): (u64, u64),
) -> Result<bool, DriverError> {
    let bytes = total / count;
    let pieces = count as usize;
    let create = || {
        (0..count)
            .map(|_| driver.create_memory(device, MemoryUse::default(), bytes))
            .collect()
    };
    let handles: Vec<MemoryHandle> = cut.create.time_each(pieces, || {
        let made: Result<_, DriverError> = create();
        made
    })?;
    let map_all = |from: DevicePtr| {
        (from..)
            .step_by(bytes as usize)
            .zip(&handles)
            .try_for_each(|(at, handle)| {
                // SAFETY: reserved, unmapped, and the handle has this size.
                unsafe { driver.map(at, bytes, *handle) }
            })
    };
    cut.map.time_each(pieces, || map_all(start))?;
    cut.access.time(|| {
        // SAFETY: the addresses were mapped just now, and are ours.
        unsafe { driver.set_access(start, total, &[device]) }
    })?;
    let second = start + total;
    cut.again.time_each(pieces, || map_all(second))?;
    let each = |act: &dyn Fn(DevicePtr) -> Result<(), DriverError>| {
        (0..count).try_for_each(|piece| act(second + piece * bytes))
    };
    cut.access_each.time_each(pieces, || {
        // SAFETY: the addresses were mapped just now, and are ours.
        each(&|at| unsafe { driver.set_access(at, bytes, &[device]) })
    })?;
    cut.unmap.time_each(pieces, || {
        // SAFETY: mapped just now, nothing was queued on it.
        each(&|at| unsafe { driver.unmap(at, bytes) })
    })?;
    // SAFETY: mapped just now, nothing was queued on it.
    let many = cut
        .unmap_all
        .time(|| unsafe { driver.unmap(start, total) })
        .is_ok();
    if !many {
        for piece in 0..count {
            // SAFETY: mapped just now, nothing was queued on it.
            unsafe { driver.unmap(start + piece * bytes, bytes) }?;
        }
    }
    cut.release.time_each(pieces, || {
        handles.iter().try_for_each(|handle| {
            // SAFETY: created above, mapped nowhere any more.
            unsafe { driver.release_memory(*handle) }
        })
    })?;
    Ok(many)
}
