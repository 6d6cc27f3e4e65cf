//! Launches of kernels and graphs, delayed to keep to the job's share of the time.
//!
//! A program that does not know of jobs has no steps. Below full share, its launches are divided into slices
//! of time. The first launch after the length of a slice waits until the device has finished the slice's
//! work, and then pauses, according to upstream's formula for a run of that length. So the device's time is
//! measured on the host, from a slice's first launch to the end of its work. Captured work is not launched;
//! the graph is. A stream leaves the slice before the driver ends the stream or its context, because it must
//! not be queried afterwards.
//!
//! There is one lock, around the slice. It is held during the wait and the pause, because no launch may go on
//! then.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{ContextHandle, LaunchConfig, StreamHandle};

use super::driver::NextDriver;
use super::{acts, is_meant};
use crate::device::locked;
use crate::job;

/// Time of launches between two pauses: long compared with a kernel and short for a person.
const SLICE: Duration = Duration::from_millis(20);

/// Launches since the last pause.
struct Slice {
    began: Option<Instant>,
    /// Streams with their contexts, since default streams share their handles. Searched linearly because they
    /// are few.
    streams: Vec<SliceStream>,
}

pub(super) type SliceStream = (ContextHandle, StreamHandle);

static CURRENT: Mutex<Slice> = Mutex::new(Slice {
    began: None,
    streams: Vec::new(),
});

/// Delays a launch if the job's share of the time demands it. Costs a few loads at full share.
fn pace(driver: &NextDriver, stream: StreamHandle) {
    if !is_meant() || !job::is_paced(acts) || !acts() || driver.is_capturing(stream) {
        return;
    }
    // A suspended job waits here.
    job::before_launch();
    let mut slice = locked(&CURRENT);
    if let Some(began) = slice.began
        && began.elapsed() >= SLICE
    {
        for (context, stream) in slice.streams.drain(..) {
            driver.drain(context, stream);
        }
        slice.began = None;
        job::end_slice(began.elapsed());
    }
    slice.began.get_or_insert_with(Instant::now);
    let stream = (driver.context_of(stream), stream);
    if !slice.streams.contains(&stream) {
        slice.streams.push(stream);
    }
}

/// Removes and returns the streams of a context that is about to end.
pub(super) fn taken_of(context: ContextHandle) -> Vec<SliceStream> {
    taken(|(own, _)| *own == context)
}

fn taken(ends: impl Fn(&SliceStream) -> bool) -> Vec<SliceStream> {
    let mut slice = locked(&CURRENT);
    slice
        .streams
        .extract_if(.., |stream| ends(stream))
        .collect()
}

/// Puts back streams whose context did not end.
pub(super) fn put_back(streams: Vec<SliceStream>) {
    locked(&CURRENT).streams.extend(streams);
}

/// Launches once the job may launch.
pub(super) fn paced(driver: &NextDriver, stream: StreamHandle, ask: impl FnOnce() -> Code) -> Code {
    pace(driver, stream);
    ask()
}

/// Returns the stream of a launch's configuration.
pub(super) fn stream_in(config: *const LaunchConfig) -> StreamHandle {
    // SAFETY: INTER6: null or a configuration, which the driver reads next.
    unsafe { config.as_ref() }.map_or(StreamHandle::NULL, |config| config.stream)
}

/// Ends a stream and removes it from the slice.
pub(super) fn end_stream(stream: StreamHandle, ask: impl FnOnce() -> Code) -> Code {
    let ending = acts().then(|| taken(|(_, known)| *known == stream));
    let code = ask();
    if let Some(ending) = ending
        && code != Code::SUCCESS
    {
        put_back(ending);
    }
    code
}
