//! Limits in a program that runs with `liblarder_cuda.so` preloaded, as the program sees them. The program
//! does not know of the library: it requests memory from the driver's own functions.

use std::error::Error;
use std::time::{Duration, Instant};

use larder_cuda::Context;
use larder_cuda::driver::Driver;

use crate::answers::{Assumption, decide, say};
use crate::kernels::Kernels;

/// The time for which kernels are launched.
const LASTS: Duration = Duration::from_secs(3);

/// Duration of each kernel.
const KERNEL: Duration = Duration::from_millis(2);

/// Allocates until an allocation fails, and compares the bytes with the limit, `LARDER_CUDA_LIMIT`.
pub(crate) fn limit(context: &Context) -> Result<(), Box<dyn Error>> {
    let limit: u64 = std::env::var("LARDER_CUDA_LIMIT")?.parse()?;
    let (free, total, held) = context.with_current(|driver| -> Result<_, Box<dyn Error>> {
        let (free, total) = driver.memory_info()?;
        let step = limit / 16;
        let mut held = Vec::new();
        // The bound ends the loop if there is no limit.
        while held.len() < 32
            && let Ok(at) = driver.alloc_device(step)
        {
            held.push(at);
        }
        let bytes = held.len() as u64 * step;
        for at in held {
            // SAFETY: allocated above, and nothing uses it.
            unsafe { driver.free_device(at) }?;
        }
        Ok((free, total, bytes))
    })??;
    let kept = held <= limit && held + limit / 16 >= limit;
    let kept = Assumption::new("a preloaded limit holds", kept);
    let answer = format!("{held} of {limit} bytes");
    decide(
        "plain allocations under a preloaded limit",
        answer,
        held,
        kept,
    );
    let told = Assumption::new(
        "cuMemGetInfo tells the limit",
        total == limit && free <= limit,
    );
    let answer = format!("{free} of {total} bytes free");
    decide("cuMemGetInfo under a preloaded limit", answer, total, told);
    Ok(())
}

/// Launches kernels back to back for a few seconds, and prints the share of the time during which the device
/// ran them.
pub(crate) fn pace(context: &Context) -> Result<(), Box<dyn Error>> {
    let stream = context.cudarc().new_stream()?;
    let (launches, took) =
        context.with_current(|driver: &Driver| -> Result<_, Box<dyn Error>> {
            let kernels = Kernels::load(driver.stand_in())?;
            kernels.spin(stream.cu_stream(), Duration::ZERO)?;
            stream.synchronize()?;
            let began = Instant::now();
            let mut launches = 0_u32;
            while began.elapsed() < LASTS {
                kernels.spin(stream.cu_stream(), KERNEL)?;
                launches += 1;
                // With several kernels queued at a time, queueing adds little to the measured time.
                if launches.is_multiple_of(4) {
                    stream.synchronize()?;
                }
            }
            stream.synchronize()?;
            Ok((launches, began.elapsed()))
        })??;
    let share = (KERNEL * launches).as_secs_f64() / took.as_secs_f64();
    let answer = format!("{launches} kernels of 2 ms in {:.2} s", took.as_secs_f64());
    let percent = format!("{:.0} %", 100.0 * share);
    if std::env::var_os("GPU_CONFIG_FILE").is_some() {
        let paced = Assumption::new(
            "a job at 50 % has the device for half of the time",
            (0.4..0.6).contains(&share),
        );
        decide("kernels of a job at 50 %", answer, percent, paced);
    } else {
        say("kernels of a program that is no job", answer, percent);
    }
    Ok(())
}
