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
    /// Minor page faults of all operations, where the workload counts them.
    pub faults: Option<u64>,
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
            faults: None,
            live: None,
        }
    }
}

/// A clock for pieces that are alike: the time is that of all of them, if each took as long as the
/// one in the middle.
pub struct Laps {
    seconds: Vec<f64>,
    faults: Option<u64>,
}

impl Laps {
    /// For so many pieces. Nothing is allocated between them.
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
        }
    }
}

impl Outcome {
    pub fn with_live(self, live: Option<Live>) -> Self {
        Self { live, ..self }
    }
}
