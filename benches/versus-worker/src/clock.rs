//! What a run gives back, and the clock that fills it in.

use std::time::Instant;

use crate::memory;

/// What one run of a workload measured.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub seconds: f64,
    /// Pairs, pushes, nodes, documents: what the workload counts.
    pub operations: u64,
    /// The same for every allocator that works.
    pub answer: u64,
    /// Where the workload knows what is live.
    pub live: Option<Live>,
}

/// One look at the memory while blocks are live.
#[derive(Debug, Clone, Copy)]
pub struct Live {
    /// Bytes asked for.
    pub bytes: u64,
    /// What the process held then.
    pub rss_bytes: Option<u64>,
}

impl Live {
    /// With `bytes` live now.
    pub fn look(bytes: u64) -> Self {
        Self {
            bytes,
            rss_bytes: memory::read().map(|memory| memory.rss_bytes),
        }
    }
}

/// Runs from the first to the last operation of a workload.
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
            live: None,
        }
    }
}

impl Outcome {
    pub fn with_live(self, live: Option<Live>) -> Self {
        Self { live, ..self }
    }
}
