//! Draws programs from a seed.

use larder_cuda::{ArenaPolicy, DeviceConfig};
use larder_model::Random;

use crate::common::MIB;
use crate::programs::program::{Act, FreeOn, Part, Program, SLOTS, STREAMS, While};

/// Requested sizes: only a few, so that memory is reused.
const SMALL: [u64; 5] = [1, 700, 4096, 96 << 10, MIB];

/// Sizes of a page and more.
const LARGE: [u64; 4] = [2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB + 512];

/// Calls that an allocation may make.
const REFUSED: [&str; 8] = [
    "cuStreamWaitEvent",
    "cuEventRecord",
    "cuEventCreate",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
];

impl Program {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let budget = (3 + random.index(6) as u64) * 2 * MIB;
        let config = match random.index(4) {
            0 => DeviceConfig::new(),
            1 => DeviceConfig {
                limit_bytes: budget,
                ..DeviceConfig::new()
            },
            _ => DeviceConfig::with_budget(budget),
        };
        // Apart from the generator, so that programs stay what they were without.
        let arenas = [ArenaPolicy::WhereThreadsMeet, ArenaPolicy::Always][(seed % 2) as usize];
        let config = DeviceConfig { arenas, ..config };
        let mut draw = Draw {
            streams: 1 + random.index(STREAMS),
            refusals: random.index(3) == 0,
            next: Vec::new(),
            small: random.index(4),
            held: [false; SLOTS],
            random,
        };
        let steps = if draw.random.index(8) == 0 { 4 } else { 0 };
        let acts = (20 + draw.random.index(100)) / steps.max(1);
        Self {
            seed,
            config,
            streams: draw.streams,
            default_stream: draw.random.index(3) == 0,
            drop_early: draw.random.index(2) == 0,
            steps,
            acts: (0..acts).map(|_| draw.act()).collect(),
        }
    }
}

impl Program {
    /// The program with sleeps between its acts.
    pub(crate) fn with_sleeps(mut self) -> Self {
        let mut random = Random::new(!self.seed);
        for _ in 0..1 + random.index(5) {
            let place = random.index(self.acts.len() + 1);
            let frees = random.next_u64() & random.next_u64() & random.next_u64();
            let refused = match random.index(4) {
                0 => Some((While::FallingAsleep, random.index(60) as u64)),
                1 => Some((While::Waking, random.index(40) as u64)),
                _ => None,
            };
            let frees = frees as usize;
            self.acts.insert(place, Act::Sleep { frees, refused });
        }
        self
    }
}

struct Draw {
    random: Random,
    streams: usize,
    refusals: bool,
    /// Come before anything else is drawn.
    next: Vec<Act>,
    /// The number of small blocks in four.
    small: usize,
    /// Slots with a block, if none was refused.
    held: [bool; SLOTS],
}

impl Draw {
    fn act(&mut self) -> Act {
        if let Some(act) = self.next.pop() {
            return act;
        }
        match self.random.index(32) {
            0..=7 => self.alloc(),
            8..=12 => self.free(),
            13..=25 => self.use_blocks(),
            _ => self.order(),
        }
    }

    fn stream(&mut self) -> usize {
        self.random.index(self.streams)
    }

    fn part(&mut self) -> Part {
        *self.random.pick(&Part::ALL)
    }

    /// A slot that is held or not, if there is one such.
    fn slot(&mut self, held: bool) -> usize {
        let start = self.random.index(SLOTS);
        let slots = (0..SLOTS).map(|step| (start + step) % SLOTS);
        let mut fitting = slots.filter(|slot| self.held[*slot] == held);
        fitting.next().unwrap_or(start)
    }

    fn alloc(&mut self) -> Act {
        let slot = self.slot(false);
        if self.held[slot] {
            return self.free();
        }
        self.held[slot] = true;
        let bytes = if self.random.index(4) < self.small {
            *self.random.pick(&SMALL)
        } else {
            *self.random.pick(&LARGE)
        };
        let stream = self.stream();
        let alloc = Act::Alloc {
            slot,
            bytes,
            stream,
        };
        // Mostly it is written at once, while those before may still use its memory.
        self.next = match self.random.index(8) {
            0 => Vec::new(),
            1 => vec![self.write(slot, None)],
            _ => vec![self.write(slot, Some(stream))],
        };
        if !self.refusals || self.random.index(2) == 0 {
            return alloc;
        }
        // Once refused and, where that matters, once more.
        self.next.extend([alloc, alloc]);
        Act::Refuse {
            function: if self.random.index(2) == 0 {
                "cuStreamWaitEvent"
            } else {
                REFUSED[self.random.index(REFUSED.len())]
            },
            skip: *self.random.pick(&[0, 0, 0, 1, 2, 4]),
        }
    }

    fn write(&mut self, slot: usize, stream: Option<usize>) -> Act {
        Act::Memset {
            slot,
            stream: stream.unwrap_or_else(|| self.stream()),
            part: self.part(),
            value: self.random.next_u64() as u8,
        }
    }

    fn free(&mut self) -> Act {
        let slot = self.slot(true);
        self.held[slot] = false;
        let part = self.part();
        if self.random.index(3) == 0 {
            let turn = self.random.index(STREAMS);
            let streams = self.random.index(1 << self.streams);
            return Act::FreeUsedOn {
                slot,
                streams,
                turn,
            };
        }
        let on = if self.random.index(3) == 0 {
            FreeOn::Stream(self.stream())
        } else {
            FreeOn::Last
        };
        Act::Free { slot, part, on }
    }

    fn use_blocks(&mut self) -> Act {
        let (slot, stream, part) = (self.slot(true), self.stream(), self.part());
        match self.random.index(16) {
            0..=4 => Act::Memset {
                slot,
                stream,
                part,
                value: self.random.next_u64() as u8,
            },
            5 => Act::Upload {
                slot,
                stream,
                part,
                from: self.random.index(256),
            },
            6 => Act::UploadPageable {
                slot,
                stream,
                from: self.random.index(4096),
            },
            7 | 8 => Act::Read { slot, stream, part },
            9 => self.read_pageable(slot, stream, part),
            10 | 11 => Act::Copy {
                to: slot,
                from: self.slot(true),
                stream,
            },
            12 => Act::FillWords {
                slot,
                stream,
                part,
                value: self.random.next_u64() as u32,
            },
            13 => Act::AddWords {
                to: slot,
                left: self.slot(true),
                right: self.slot(true),
                stream,
                part,
            },
            14 => Act::ScaleWords {
                to: slot,
                from: self.slot(true),
                stream,
                part,
                factor: self.random.next_u64() as u32,
            },
            _ => Act::TwistWords {
                slot,
                stream,
                part,
                key: self.random.next_u64() as u32,
            },
        }
    }

    /// Rarely, as it makes the stream run.
    fn read_pageable(&mut self, slot: usize, stream: usize, part: Part) -> Act {
        if self.random.index(3) == 0 {
            Act::ReadPageable { slot, stream }
        } else {
            Act::Read { slot, stream, part }
        }
    }

    fn order(&mut self) -> Act {
        let stream = self.stream();
        match self.random.index(16) {
            0..=3 => Act::Record { stream },
            4..=6 => Act::Wait {
                stream,
                back: self.random.index(4),
            },
            7 => Act::SyncStream { stream },
            8 => Act::SyncEvent {
                back: self.random.index(4),
            },
            9 | 10 => Act::Release {
                bytes: *self.random.pick(&[1, 2 * MIB, u64::MAX]),
            },
            11 | 12 => Act::EndStep,
            _ => Act::OrderAfter {
                stream,
                after: self.stream(),
            },
        }
    }
}
