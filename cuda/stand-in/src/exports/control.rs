//! The control interface, with which a test configures the stand-in and reads its records. A function that
//! gives a text writes it to `buf` as far as `len` bytes reach, without an end mark, and answers its whole
//! length.

use std::collections::BTreeMap;

use larder_cuda_abi::Code;
use larder_cuda_abi::stand_in::KernelBody;

use crate::capture::CaptureRules;
use crate::driver::Driver;
use crate::entry::{control, try_control};
use crate::ffi::{Out, Text};
use crate::queue::Schedule;
use crate::random::Random;
use crate::space::Kind;

/// The version of this interface. A library with this symbol is a stand-in.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_version() -> u32 {
    larder_cuda_abi::stand_in::VERSION
}

/// Resets the driver to `devices` devices of `bytes` bytes. The schedule, the file that counts memory, the
/// most that is pinned or reserved, and what there is of virtual memory are again what the environment says.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_reset(devices: u32, bytes: u64) {
    control(|driver| {
        driver.reset(devices as usize, bytes);
        // Threads that waited for work that is gone wake and see that it is.
        driver.changed();
    });
}

/// Counts the devices' memory in this file from now on, together with the other processes that use it. The
/// file is created if it is missing.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_share(path: Text) -> Code {
    try_control(|driver| driver.space.usage.share(&path.get()?))
}

/// Sets how much memory a device has, for all processes that share it. Memory in use stays in use.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_set_memory(device: i32, bytes: u64) -> Code {
    try_control(|driver| {
        let ordinal = driver.device(device)?.ordinal;
        driver.space.usage.set_total(ordinal, bytes);
        Ok(())
    })
}

/// Sets what `cuDriverGetVersion` answers.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_set_driver_version(version: u32) {
    control(|driver| driver.version = version);
}

/// The number of calls of a function so far, refused ones included; null means all functions.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_calls(name: Text) -> u64 {
    control(|driver| driver.calls.count(name.get().ok().as_deref()))
}

/// The number of calls of each function so far, as lines of name and count.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_call_table(buf: Out<u8>, len: u64) -> u64 {
    text(&buf, len, &control(|driver| driver.calls.text()))
}

/// Resets the counts of calls to zero.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_reset_calls() {
    control(|driver| driver.calls.clear_counts());
}

/// After `skip` more calls of `name` (of any function for null), the next `times` calls do nothing and answer
/// `code`. Several rules may be active at once; each counts by itself.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_fail(
    name: Text,
    skip: u64,
    times: u64,
    code: Code,
) -> Code {
    try_control(|driver| driver.calls.fail(name.get().ok(), skip, times, code))
}

/// Removes all rules that refuse calls.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_clear_failures() {
    control(|driver| driver.calls.clear_rules());
}

/// Sets the schedule. 0: queued work runs as soon as its dependencies allow. 1: it runs when something forces
/// it, in an order drawn from `seed`.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_schedule(deferred: u32, seed: u64) {
    control(|driver| {
        driver.queue.schedule = if deferred == 0 {
            Schedule::Eager
        } else {
            Schedule::Deferred(Random::new(seed))
        };
        driver.progress();
        driver.changed();
    });
}

/// Bytes of a device that this process uses.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_used(device: i32) -> u64 {
    control(|driver| usize::try_from(device).map_or(0, |device| driver.space.usage.used(device)))
}

/// The objects that exist, as lines of kind, count and bytes.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_alive(buf: Out<u8>, len: u64) -> u64 {
    text(&buf, len, &control(|driver| alive_text(driver)))
}

/// The findings, a line each.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_findings(buf: Out<u8>, len: u64) -> u64 {
    text(&buf, len, &control(|driver| driver.findings.text()))
}

/// Forgets the findings.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_clear_findings() {
    control(|driver| driver.findings.clear());
}

/// Fills new memory with 0xA5 from now on.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_poison(on: u32) {
    control(|driver| driver.space.poison = on != 0);
}

/// Sets whether `cuMemUnmap` and `cuMemSetAccess` wait for queued work that may use the mappings. They do
/// not at first, since the documents promise it for most uses only. Says whether they did before.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_mapping_waits(on: u32) -> u32 {
    control(|driver| u32::from(std::mem::replace(&mut driver.mapping_waits, on != 0)))
}

/// Sets whether the calls that make, map and give back virtual memory are unsafe while streams capture: refused in
/// the modes in which `cuMemAlloc` is, and the captures spoilt. They are not at first: the documents do not say.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_mapping_spoils(on: u32) {
    control(|driver| {
        driver.capture_rules = match on {
            0 => CaptureRules::Documented,
            _ => CaptureRules::MappingSpoils,
        }
    });
}

/// Sets whether the devices have virtual memory, as they have at first. Without it they say so in their
/// attributes, and reserve and create nothing (`CUDA_ERROR_NOT_SUPPORTED`). What exists stays.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_virtual_memory(on: u32) {
    control(|driver| driver.virtual_memory = on != 0);
}

/// Sets how many bytes of addresses may be reserved at a time, by one reservation or by many. What is reserved
/// stays so.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_set_addresses(bytes: u64) {
    control(|driver| driver.space.vmm.address_limit = bytes);
}

/// Sets how much of the host's memory may be pinned. What is pinned stays so.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_set_pinned(bytes: u64) {
    control(|driver| driver.space.pinned.limit = bytes);
}

/// Sets whether hosts and devices may use managed memory at once, as they may at first: then there may be more of
/// it than the device has. Without it, all that is made from now on counts against its device.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_managed_concurrently(on: u32) {
    control(|driver| driver.managed_concurrently = on != 0);
}

/// Gives the kernels of a name a body, in place of an earlier one; null removes it. The body must not unwind:
/// a panic that leaves it ends the process. Bodies outlive `larder_stand_in_reset`.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_kernel(name: Text, body: Option<KernelBody>) -> Code {
    try_control(|driver| {
        match body {
            Some(body) => driver.bodies.insert(name.get()?, body),
            None => driver.bodies.remove(&name.get()?),
        };
        Ok(())
    })
}

/// Kernels of this name take `ns` nanoseconds of the device's time from now on, which no longer is the
/// system's: it moves by `larder_stand_in_advance`, and when a thread waits for work. For the eager schedule:
/// in the deferred one a kernel begins when it is drawn.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_kernel_time(name: Text, ns: u64) -> Code {
    try_control(|driver| {
        driver.queue.time.set_kernel(name.get()?, ns);
        Ok(())
    })
}

/// Lets so many nanoseconds pass on the devices, and answers their time.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_advance(ns: u64) -> u64 {
    control(|driver| {
        let now = driver.advance(ns);
        driver.changed();
        now
    })
}

/// Nanoseconds of the devices' time in which at least one kernel ran on a device.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_busy(device: i32) -> u64 {
    control(|driver| usize::try_from(device).map_or(0, |device| driver.queue.time.busy(device)))
}

fn text(buf: &Out<u8>, len: u64, text: &str) -> u64 {
    buf.give_all(
        text.bytes()
            .take(usize::try_from(len).unwrap_or(usize::MAX)),
    );
    text.len() as u64
}

/// What exists: lines of kind, count, bytes.
fn alive_text(driver: &Driver) -> String {
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut count = |kind, bytes| {
        let (count, sum) = counts.entry(kind).or_default();
        *count += 1;
        *sum += bytes;
    };
    for block in driver.space.blocks.values() {
        match &block.kind {
            Kind::Device => count("device", block.bytes),
            Kind::Mapped { .. } => count("mapping", block.bytes),
            Kind::Pinned | Kind::Combined => count("pinned", block.bytes),
            Kind::Registered => count("registered", block.bytes),
            Kind::Managed => count("managed", block.bytes),
            // They belong to their module, or to memory of the host.
            Kind::Module | Kind::CombinedAlias { .. } => {}
            Kind::Pooled(pooled) => {
                if !pooled.freed {
                    count("pooled", block.bytes);
                }
            }
        }
    }
    for bytes in driver.space.handle_sizes() {
        count("handle", bytes);
    }
    for bytes in driver.space.vmm.reservations.values() {
        count("reservation", *bytes);
    }
    for (_, stream) in driver.streams.iter() {
        if !stream.is_hidden {
            count("stream", 0);
        }
    }
    for (_, pool) in driver.pools.table.iter() {
        if !pool.is_default && !pool.destroyed {
            count("pool", pool.reserved.now);
        }
    }
    for (_, graph) in driver.graphs.iter() {
        if !graph.capturing {
            count("graph", 0);
        }
    }
    driver.events.iter().for_each(|_| count("event", 0));
    driver.execs.iter().for_each(|_| count("exec", 0));
    driver.modules.iter().for_each(|_| count("module", 0));
    driver.contexts.iter().for_each(|_| count("context", 0));
    counts
        .iter()
        .map(|(kind, (count, bytes))| format!("{kind} {count} {bytes}\n"))
        .collect()
}
