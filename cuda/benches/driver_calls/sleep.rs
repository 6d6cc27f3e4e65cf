//! Puts a lot of memory to sleep and wakes it: measures the seconds of each, and compares every word.

use std::error::Error;

use larder_cuda::{Context, DeviceAllocator};

use crate::answers::{Assumption, decide, say};
use crate::kernels::Kernels;
use crate::times::timed;

const GIB: u64 = 1 << 30;

/// Fills `gib` blocks of 1 GiB each, sleeps, wakes, and compares. On the stand-in the blocks are small.
pub(crate) fn probe(context: &Context, gib: u64) -> Result<(), Box<dyn Error>> {
    let is_real = context.driver().stand_in().is_none();
    let bytes = if is_real { GIB } else { 16 << 20 };
    let words = u32::try_from(bytes / 4)?;
    let stream = context.cudarc().new_stream()?;
    let memory = DeviceAllocator::new(context)?;
    let kernels = context.with_current(|driver| Kernels::load(driver.stand_in()))??;
    let free = context.try_current(|driver| driver.memory_info())?.0;
    if free < gib * bytes + (GIB / 2).min(bytes) {
        say(
            &format!("sleep of {gib} GiB"),
            "skipped: the device has less",
            "",
        );
        return Ok(());
    }
    let mut blocks = Vec::new();
    for seed in 0..gib {
        let block = memory.alloc(&stream, bytes)?;
        // SAFETY: the whole block is ours.
        unsafe { kernels.number(stream.cu_stream(), block.addr().get(), words, seed as u32) }?;
        blocks.push(block);
    }
    let wrong = memory.alloc(&stream, 4)?;
    let at = wrong.addr().get();
    let raw = larder_cuda::driver::abi::StreamHandle(stream.cu_stream().expose_provenance());
    // SAFETY: the word is ours.
    context.try_current(|driver| unsafe { driver.fill_words(at, 0, 1, raw) })?;
    stream.synchronize()?;
    let before = context.try_current(|driver| driver.memory_info())?.0;
    let (slept, outcome) = timed(|| memory.sleep());
    let outcome = outcome?;
    let during = context.try_current(|driver| driver.memory_info())?.0;
    let (woke, awake) = timed(|| memory.wake());
    awake?;
    for (block, seed) in blocks.iter().zip(0..) {
        // SAFETY: the block and the word are ours.
        unsafe { kernels.differ(stream.cu_stream(), block.addr().get(), words, seed, at) }?;
    }
    let mut count = 0_u32;
    let to = (&raw mut count).cast();
    // SAFETY: both places are ours; the copy ends before the number is read.
    context.try_current(|driver| unsafe { driver.copy_to_host(to, at, 4, raw) })?;
    stream.synchronize()?;
    let size = format!("{} MiB", outcome.copied_bytes >> 20);
    let same = Assumption::new("sleep keeps every byte", count == 0);
    let answer = format!("{count} words differ");
    decide(&format!("sleep and wake of {size}"), answer, count, same);
    let seconds = |time: std::time::Duration| format!("{:.3} s", time.as_secs_f64());
    let pinned = Assumption::new("the host pins what sleeps", outcome.pageable_bytes == 0);
    let answer = format!(
        "{} MiB of it in pageable memory",
        outcome.pageable_bytes >> 20
    );
    decide(&format!("sleep of {size}"), answer, seconds(slept), pinned);
    say(&format!("wake of {size}"), "", seconds(woke));
    let freed = during.saturating_sub(before);
    // The device keeps an entry of 8 bytes for each page of 4 KiB that the host pins.
    let entries = outcome.copied_bytes / 512 + (4 << 20);
    let all = Assumption::new(
        "a sleeper's memory is free for others",
        freed + entries >= outcome.released_bytes,
    );
    let answer = format!("{} of {} MiB", freed >> 20, outcome.released_bytes >> 20);
    decide(
        &format!("memory that sleep of {size} frees"),
        answer,
        freed,
        all,
    );
    for block in blocks.into_iter().chain([wrong]) {
        memory.free(&stream, block)?;
    }
    Ok(())
}
