//! The control interface, with which a test configures the stand-in and reads its records. A
//! function that returns text writes at most `len` bytes of it to `buf`, without a terminating NUL,
//! and returns the length of the whole text.

use std::collections::BTreeMap;

use larder_cuda_abi::Code;
use larder_cuda_abi::stand_in::KernelBody;

use crate::capture::CaptureRules;
use crate::driver::SimDriver;
use crate::entry::{control, try_control};
use crate::ffi::{CallerText, Out};
use crate::queue::{HOST_PATIENCE, Schedule};
use crate::random::Random;
use crate::space::BlockKind;

/// Returns the version of this interface. A library with this symbol is a stand-in.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_version() -> u32 {
    larder_cuda_abi::stand_in::VERSION
}

/// Resets the driver to `devices` devices of `bytes` bytes. The schedule, the file that counts
/// memory, the limits of pinned memory and of addresses, and whether there is virtual memory are
/// set as in the environment again.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_reset(devices: u32, bytes: u64) {
    control(|driver| {
        driver.reset(devices as usize, bytes);
        // Wakes the threads that waited for work that is gone.
        driver.changed();
    });
}

/// From now on, counts the devices' memory in the file at `path`, together with the other processes
/// that use the file. Creates the file if it is missing.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_share(path: CallerText) -> Code {
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

/// Sets the version that `cuDriverGetVersion` reports.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_set_driver_version(version: u32) {
    control(|driver| driver.version = version);
}

/// Returns the number of calls of a function so far, including refused ones. Null stands for all
/// functions.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_calls(name: CallerText) -> u64 {
    control(|driver| driver.calls.count(name.get().ok().as_deref()))
}

/// Lists the number of calls of each function so far, as lines of name and count.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_call_table(buf: Out<u8>, len: u64) -> u64 {
    text(&buf, len, &control(|driver| driver.calls.text()))
}

/// Resets the counts of calls to zero.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_reset_calls() {
    control(|driver| driver.calls.clear_counts());
}

/// Lets `skip` more calls of `name` (if null: of any function) run, and makes the next `times` do
/// nothing and return `code`. Several rules may be active at the same time; each counts separately.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_fail(
    name: CallerText,
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

/// Sets the schedule. 0: queued work runs as soon as its dependencies allow. 1: it runs when a call
/// forces it, in an order drawn from `seed`. 2: as 1, but no other work runs while a host function
/// does, so that a single-threaded program has one order for each seed.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_schedule(deferred: u32, seed: u64) {
    control(|driver| {
        driver.queue.schedule = if deferred == 0 {
            Schedule::Eager
        } else {
            Schedule::Deferred(Random::new(seed))
        };
        driver.queue.host_patience = (deferred != 2).then_some(HOST_PATIENCE);
        driver.progress();
        driver.changed();
    });
}

/// Returns the bytes of a device that this process uses.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_used(device: i32) -> u64 {
    control(|driver| usize::try_from(device).map_or(0, |device| driver.space.usage.used(device)))
}

/// Lists the objects that exist, as lines of kind, count and bytes.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_alive(buf: Out<u8>, len: u64) -> u64 {
    text(&buf, len, &control(|driver| alive_text(driver)))
}

/// Lists the findings, one per line.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_findings(buf: Out<u8>, len: u64) -> u64 {
    text(&buf, len, &control(|driver| driver.findings.text()))
}

/// Clears the findings.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_clear_findings() {
    control(|driver| driver.findings.clear());
}

/// Sets whether new memory is filled with 0xA5.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_poison(on: u32) {
    control(|driver| driver.space.poison = on != 0);
}

/// Sets whether `cuMemUnmap` and `cuMemSetAccess` wait for queued work that may use the mappings.
/// Initially off, since the documentation promises it for most uses only. Returns the previous
/// setting.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_mapping_waits(on: u32) -> u32 {
    control(|driver| u32::from(std::mem::replace(&mut driver.mapping_waits, on != 0)))
}

/// Sets whether the calls that create, map and free virtual memory are unsafe during captures: they
/// are then refused in the modes in which `cuMemAlloc` is, and invalidate the captures. Initially
/// off, since the documentation does not specify it.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_mapping_spoils(on: u32) {
    control(|driver| {
        driver.capture_rules = match on {
            0 => CaptureRules::Documented,
            _ => CaptureRules::MappingSpoils,
        }
    });
}

/// Sets whether the devices have virtual memory; initially they do. Without it, their attributes
/// say so, and calls that reserve addresses or create memory are refused
/// (`CUDA_ERROR_NOT_SUPPORTED`). Existing memory stays.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_virtual_memory(on: u32) {
    control(|driver| driver.virtual_memory = on != 0);
}

/// Sets the maximum bytes of addresses in all reservations together. Existing reservations stay.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_set_addresses(bytes: u64) {
    control(|driver| driver.space.vmm.address_limit = bytes);
}

/// Sets how much of the host's memory may be pinned. Memory that is pinned already stays pinned.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_set_pinned(bytes: u64) {
    control(|driver| driver.space.pinned.limit = bytes);
}

/// Sets whether host and devices may use managed memory at the same time; initially they may. If
/// so, managed memory may exceed the device's memory. If not, all managed memory allocated from now
/// on counts against its device.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_managed_concurrently(on: u32) {
    control(|driver| driver.managed_concurrently = on != 0);
}

/// Sets the body of the kernels with this name, in place of an earlier one; null removes it. The
/// body must not unwind: a panic that leaves it ends the process. Bodies outlive
/// `larder_stand_in_reset`.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_kernel(
    name: CallerText,
    body: Option<KernelBody>,
) -> Code {
    try_control(|driver| {
        match body {
            Some(body) => driver.bodies.insert(name.get()?, body),
            None => driver.bodies.remove(&name.get()?),
        };
        Ok(())
    })
}

/// Sets how many nanoseconds of the devices' time a kernel of this name takes. From then on the
/// devices' time is independent of the system's: it advances through `larder_stand_in_advance`, and
/// when a thread waits for work. Meant for the eager schedule: in the deferred one a kernel begins
/// only when it is drawn.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_kernel_time(name: CallerText, ns: u64) -> Code {
    try_control(|driver| {
        driver.queue.time.set_kernel(name.get()?, ns);
        Ok(())
    })
}

/// Lets `ns` nanoseconds pass on the devices. Returns their time.
#[unsafe(no_mangle)]
pub(super) extern "C" fn larder_stand_in_advance(ns: u64) -> u64 {
    control(|driver| {
        let now = driver.advance(ns);
        driver.changed();
        now
    })
}

/// Returns the nanoseconds of the devices' time in which at least one kernel ran on a device.
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

/// Lists the objects that exist, as lines of kind, count, bytes.
fn alive_text(driver: &SimDriver) -> String {
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut count = |kind, bytes| {
        let (count, sum) = counts.entry(kind).or_default();
        *count += 1;
        *sum += bytes;
    };
    for block in driver.space.blocks.values() {
        match &block.kind {
            BlockKind::Device => count("device", block.bytes),
            BlockKind::Mapped { .. } => count("mapping", block.bytes),
            BlockKind::Pinned | BlockKind::Combined => count("pinned", block.bytes),
            BlockKind::Registered => count("registered", block.bytes),
            BlockKind::Managed => count("managed", block.bytes),
            // These blocks belong to their module, or to host memory.
            BlockKind::Module | BlockKind::CombinedAlias { .. } => {}
            BlockKind::Pooled(pooled) => {
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
