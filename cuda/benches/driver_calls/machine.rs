//! What the device is and can do, whether it is well, and how many addresses it gives in one piece.

use std::error::Error;
use std::time::Duration;

use larder_cuda::Context;
use larder_cuda::driver::abi::constants;
use larder_cuda::driver::{Driver, MemoryUse};

use crate::answers::{Assumption, decide, micros, say};
use crate::kernels::Kernels;
use crate::times::timed;

/// What the device has and can do.
pub(crate) fn attributes(context: &Context) -> Result<(), Box<dyn Error>> {
    let (driver, info) = (context.driver(), context.device_info()?);
    let (major, minor) = info.compute_capability;
    let name = context.cudarc().name()?;
    say("device", name, format!("{} MiB", info.total_bytes >> 20));
    say("driver", driver, format!("capability {major}.{minor}"));
    let known = |attribute| driver.device_attribute(context.device(), attribute);
    let cache = known(constants::DEVICE_L2_CACHE_SIZE)?;
    say("L2 cache", format!("{} MiB", cache >> 20), "");
    let words = "virtual memory is there";
    let has = Assumption::new(words, info.virtual_memory);
    decide("virtual memory", yes(info.virtual_memory), "", has);
    say("stream-ordered pools", yes(info.pools), "");
    say(
        "managed memory",
        yes(info.managed),
        yes(info.concurrent_managed),
    );
    say("integrated device", yes(info.integrated), "");
    if info.virtual_memory {
        let uses = driver.memory_uses(context.ordinal())?;
        say(
            "exported handles, RDMA of mapped memory",
            format!("{uses:?}"),
            "",
        );
        for (recommended, words) in [(false, "least"), (true, "recommended")] {
            let bytes = context.try_current(|driver| {
                driver.page_bytes(context.ordinal(), MemoryUse::default(), recommended)
            })?;
            let holds = recommended || bytes == 2 << 20;
            let pages = Assumption::new("pages are of 2 MiB", holds);
            let question = format!("granularity, {words}");
            decide(&question, "", format!("{bytes} bytes"), pages);
        }
    }
    Ok(())
}

const fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// Checks that a context, memory and a kernel work.
pub(crate) fn health(context: &Context) -> Result<(), Box<dyn Error>> {
    let stream = context.cudarc().new_stream()?;
    context.with_current(|driver| -> Result<(), Box<dyn Error>> {
        let kernels = Kernels::load(driver.stand_in())?;
        let page = driver.alloc_device(2 << 20)?;
        // SAFETY: the memory is ours, and outlives the kernel.
        unsafe { kernels.add(stream.cu_stream(), page, 1 << 19) }?;
        kernels.spin(stream.cu_stream(), Duration::ZERO)?;
        stream.synchronize()?;
        // SAFETY: given above, and all work on it has ended.
        Ok(unsafe { driver.free_device(page) }?)
    })?
}

/// Reserves addresses: 640 GiB, and eight times the device.
pub(crate) fn reserve(context: &Context) -> Result<(), Box<dyn Error>> {
    let total = context.device_info()?.total_bytes;
    for (bytes, what) in [(640 << 30, "640 GiB"), (8 * total, "8 x the device")] {
        let bytes = bytes & !((2 << 20) - 1);
        let reserved = |driver: &Driver| timed(|| driver.reserve(bytes, 0));
        let (time, reserved) = context.with_current(reserved)?;
        let has = Assumption::new(
            "8 x the device can be reserved in one piece",
            reserved.is_ok(),
        );
        let answer = match &reserved {
            Ok(_) => "reserved".to_owned(),
            Err(error) => format!("refused ({error})"),
        };
        decide(&format!("reserving {what}"), answer, micros(time), has);
        if let Ok(start) = reserved {
            // SAFETY: reserved just now, nothing is mapped.
            context.try_current(|driver| unsafe { driver.free_reserved(start, bytes) })?;
        }
    }
    Ok(())
}
