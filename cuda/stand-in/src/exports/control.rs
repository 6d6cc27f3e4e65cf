//! The control interface: what a test says to the stand-in and asks of it. A text is written to
//! `buf` as far as `len` bytes reach, without an end mark; the answer is its whole length.

use larder_cuda_abi::Code;
use larder_cuda_abi::stand_in::KernelBody;

use crate::entry::control;
use crate::ffi::{Out, Text};
use crate::queue::Schedule;
use crate::random::Random;

/// Version of this interface. Whoever finds the symbol has a stand-in before them.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_version() -> u32 {
    larder_cuda_abi::stand_in::VERSION
}

/// Forgets everything, and has `devices` devices of `bytes` bytes from now on. Memory is counted by
/// this process alone again.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_reset(devices: u32, bytes: u64) {
    control(|driver| {
        driver.reset(devices as usize, bytes);
        // Whoever waited for what is gone looks again.
        driver.changed();
    });
}

/// Counts the devices' memory in this file from now on, together with the other processes that do;
/// it is made if it is missing.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_share(path: Text) -> Code {
    control(
        |driver| match path.get().and_then(|path| driver.space.usage.share(&path)) {
            Ok(()) => Code::SUCCESS,
            Err(code) => code,
        },
    )
}

/// Sets how much memory a device has, for all processes that share it; what is in use stays.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_set_memory(device: i32, bytes: u64) -> Code {
    control(|driver| match driver.device(device) {
        Ok(known) => {
            let ordinal = known.ordinal;
            driver.space.usage.set_total(ordinal, bytes);
            Code::SUCCESS
        }
        Err(code) => code,
    })
}

/// Sets what `cuDriverGetVersion` answers.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_set_driver_version(version: u32) {
    control(|driver| driver.version = version);
}

/// Calls of one function so far, refused ones included; of all for null.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_calls(name: Text) -> u64 {
    control(|driver| {
        if name.is_null() {
            return driver.calls.count(None);
        }
        name.get().map_or(0, |name| driver.calls.count(Some(&name)))
    })
}

/// The same as lines of name and count.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_call_table(buf: Out<u8>, len: u64) -> u64 {
    text(&buf, len, &control(|driver| driver.calls.text()))
}

/// Counts from zero again.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_reset_calls() {
    control(|driver| driver.calls.clear_counts());
}

/// After `skip` more calls of `name` (of any function for null), the next `times` are not made and
/// answer `code`. Several rules may stand at once; each counts by itself.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_fail(name: Text, skip: u64, times: u64, code: Code) -> Code {
    control(|driver| {
        let name = if name.is_null() {
            None
        } else {
            name.get().ok()
        };
        match driver.calls.fail(name, skip, times, code) {
            Ok(()) => Code::SUCCESS,
            Err(code) => code,
        }
    })
}

/// No call is refused any more.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_clear_failures() {
    control(|driver| driver.calls.clear_rules());
}

/// 0: queued work runs as soon as it may. 1: when something forces it, in an order drawn from
/// `seed`.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_schedule(deferred: u32, seed: u64) {
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
extern "C" fn larder_stand_in_used(device: i32) -> u64 {
    control(|driver| usize::try_from(device).map_or(0, |device| driver.space.usage.used(device)))
}

/// What exists: lines of kind, count and bytes.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_alive(buf: Out<u8>, len: u64) -> u64 {
    text(&buf, len, &control(|driver| driver.alive_text()))
}

/// What was found to be wrong, a line each.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_findings(buf: Out<u8>, len: u64) -> u64 {
    text(&buf, len, &control(|driver| driver.findings.text()))
}

/// Forgets the findings.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_clear_findings() {
    control(|driver| driver.findings.clear());
}

/// Fills new memory with 0xA5 from now on.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_poison(on: u32) {
    control(|driver| driver.space.poison = on != 0);
}

/// Gives the kernels of that name a body. It replaces one that was there; null takes it away. It must
/// not unwind: a panic that leaves it ends the process. Bodies outlive `larder_stand_in_reset`.
#[unsafe(no_mangle)]
extern "C" fn larder_stand_in_kernel(name: Text, body: Option<KernelBody>) -> Code {
    control(|driver| match (name.get(), body) {
        (Ok(name), Some(body)) => {
            driver.bodies.insert(name, body);
            Code::SUCCESS
        }
        (Ok(name), None) => {
            driver.bodies.remove(&name);
            Code::SUCCESS
        }
        (Err(code), _) => code,
    })
}

fn text(buf: &Out<u8>, len: u64, text: &str) -> u64 {
    buf.give_bytes(text.as_bytes(), usize::try_from(len).unwrap_or(usize::MAX));
    text.len() as u64
}
