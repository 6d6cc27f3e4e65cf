//! Properties of the device.

use std::error::Error;

use larder_cuda::Context;
use larder_cuda::driver::MemoryUse;
use larder_cuda::driver::abi::constants;

use crate::answers::{Assumption, decide, say};

/// Prints the properties of the device.
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
