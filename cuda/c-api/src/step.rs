//! Steps of streams, and windows of captures, kept between two C calls.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{LazyLock, Mutex};
use std::time::Instant;

use larder_core::sync::{AtomicU64, Ordering};
use larder_cuda::{CaptureWindow, DeviceStep};

use crate::device::{Handle, device, locked};
use crate::job;
use crate::outcome::{Refusal, guard, status};

/// A current step.
struct Begun {
    step: DeviceStep,
    at: Instant,
}

/// Steps by device and stream, outermost first.
type Steps = HashMap<(c_int, Handle), Vec<Begun>>;

/// The current steps.
static STEPS: LazyLock<Mutex<Steps>> = LazyLock::new(Mutex::default);

/// Windows by number.
static WINDOWS: LazyLock<Mutex<HashMap<u64, CaptureWindow>>> = LazyLock::new(Mutex::default);

/// The number of the newest window.
static LAST_WINDOW: AtomicU64 = AtomicU64::new(0);

/// Begins a step of a stream.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_begin_step(ordinal: c_int, stream: Handle) -> c_int {
    status(|| {
        let device = device(ordinal)?;
        let begun = Begun {
            step: device.memory.step(&device.stream(stream)?)?,
            at: Instant::now(),
        };
        let mut steps = locked(&STEPS);
        steps.entry((ordinal, stream)).or_default().push(begun);
        Ok(())
    })
}

/// Ends the newest step of a stream. A job pauses and sleeps here.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_end_step(ordinal: c_int, stream: Handle) -> c_int {
    status(|| {
        let device = device(ordinal)?;
        let mut steps = locked(&STEPS);
        let of_stream = steps.get_mut(&(ordinal, stream));
        let of_stream = of_stream.ok_or(Refusal::NoStep)?;
        let Begun { step, at } = of_stream.pop().ok_or(Refusal::NoStep)?;
        let is_outermost = of_stream.is_empty();
        drop(steps);
        drop(step);
        let Some(job) = job::job().filter(|_| is_outermost) else {
            return Ok(());
        };
        // Without a wait, queued work would seem to take no time and would cause no pause.
        if !job.state().perf.is_full() {
            let stream = device.stream(stream)?;
            device.context().wait_for(&stream)?;
        }
        let ended = job.end_run(0, at.elapsed());
        ended
            .map(drop)
            .map_err(|error| Refusal::Run(error.to_string()))
    })
}

/// Opens a window for a capture that a stream is about to begin. Returns the window's number, or 0
/// for a refusal.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_open_window(ordinal: c_int, stream: Handle, bytes: u64) -> u64 {
    let opened = guard(|| {
        let device = device(ordinal)?;
        let window = device.memory.prime(&device.stream(stream)?, bytes)?;
        // Relaxed: the number only has to be unique.
        let number = LAST_WINDOW.fetch_add(1, Ordering::Relaxed) + 1;
        locked(&WINDOWS).insert(number, window);
        Ok(number)
    });
    opened.unwrap_or(0)
}

/// Closes a window after its capture. The window keeps its memory.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_close_window(number: u64) -> c_int {
    status(|| {
        let windows = locked(&WINDOWS);
        let window = windows.get(&number);
        window.ok_or(Refusal::NoWindow).map(CaptureWindow::close)
    })
}

/// Ends a window, whose graph no longer runs, and frees its memory.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_end_window(number: u64) -> c_int {
    status(|| {
        let ended = locked(&WINDOWS).remove(&number);
        ended.ok_or(Refusal::NoWindow).map(drop)
    })
}
