//! The result of a run, and the clock that measures it.

use std::time::{Duration, Instant};

use crate::memory;

/// The measurements of one run of a workload.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub seconds: f64,
    /// Number of pairs, pushes, nodes or documents of the workload.
    pub operations: u64,
    /// The workload's checksum, which is the same for every allocator that works.
    pub answer: u64,
    /// Minor page faults of all operations, if the workload counts them.
    pub faults: Option<u64>,
    /// A reading of the memory, if the workload knows its live bytes.
    pub live: Option<Live>,
    /// The times of the frames, if they are measured.
    pub frames: Option<Frames>,
}

/// A reading of the memory while blocks are live.
#[derive(Debug, Clone, Copy)]
pub struct Live {
    /// Live bytes, as requested.
    pub bytes: u64,
    /// Resident bytes at that time.
    pub rss_bytes: Option<u64>,
}

impl Live {
    /// Reads the memory while `bytes` are live.
    pub fn look(bytes: u64) -> Self {
        Self {
            bytes,
            rss_bytes: memory::read().map(|memory| memory.rss_bytes),
        }
    }
}

/// A clock from the first to the last operation of a workload.
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn stop(self, operations: u64, answer: u64) -> Outcome {
        Outcome {
            seconds: self.0.elapsed().as_secs_f64(),
            operations,
            answer,
            faults: None,
            live: None,
            frames: None,
        }
    }
}

/// A clock for equal pieces of work. The time is that of the median piece, multiplied by the number of
/// pieces.
pub struct Laps {
    seconds: Vec<f64>,
    faults: Option<u64>,
}

impl Laps {
    /// Creates a clock for `count` pieces. It does not allocate between them.
    pub fn new(count: usize) -> Self {
        Self {
            seconds: Vec::with_capacity(count),
            faults: Some(0),
        }
    }

    pub fn lap(&mut self, piece: impl FnOnce()) {
        let before = memory::faults();
        let start = Instant::now();
        piece();
        self.seconds.push(start.elapsed().as_secs_f64());
        let more = memory::faults()
            .zip(before)
            .map(|(after, before)| after - before);
        self.faults = self.faults.zip(more).map(|(faults, more)| faults + more);
    }

    pub fn stop(mut self, operations: u64, answer: u64) -> Outcome {
        self.seconds.sort_by(f64::total_cmp);
        let middle = self.seconds.get(self.seconds.len() / 2);
        Outcome {
            seconds: middle.copied().unwrap_or(0.0) * self.seconds.len() as f64,
            operations,
            answer,
            faults: self.faults,
            live: None,
            frames: None,
        }
    }
}

impl Outcome {
    pub fn with_live(self, live: Option<Live>) -> Self {
        Self { live, ..self }
    }

    pub fn with_frames(self, frames: Frames) -> Self {
        Self {
            frames: Some(frames),
            ..self
        }
    }
}

/// The times of a schedule's frames; see `schedule`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frames {
    /// Number of all frames.
    pub planned: usize,
    /// Number of frames that ran.
    pub done: usize,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Frames {
    /// Creates the figures from the times of all frames, of which `done` ran.
    pub fn new(done: usize, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self {
            planned: times.len(),
            done,
            p50_us: percentile(&times, 50),
            p99_us: percentile(&times, 99),
            max_us: percentile(&times, 100),
        }
    }
}

/// Returns the smallest time that `percent` of the times do not exceed, in microseconds; 0 if there are none.
fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    let time = sorted.get(rank.saturating_sub(1));
    time.map_or(0.0, |time| time.as_nanos() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_described_by_their_middle_their_slow_ones_and_their_slowest() {
        let times = |count: u64| (1..=count).rev().map(Duration::from_micros).collect();
        let figures = |count| {
            let frames = Frames::new(1, times(count));
            assert_eq!((frames.planned as u64, frames.done), (count, 1));
            [frames.p50_us, frames.p99_us, frames.max_us]
        };
        assert_eq!(figures(200), [100.0, 198.0, 200.0]);
        assert_eq!(figures(100), [50.0, 99.0, 100.0]);
        assert_eq!(figures(3), [2.0, 3.0, 3.0]);
        assert_eq!(figures(1), [1.0, 1.0, 1.0]);
        assert_eq!(figures(0), [0.0, 0.0, 0.0]);
    }
}
