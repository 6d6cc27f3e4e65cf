//! What a process holds after a peak, while it does nothing.
//!
//! No workload: it has no time. About 1 GiB of blocks is made in groups, one sixteenth of them is
//! kept, and then nobody calls the allocator any more. What is resident is looked at a few times.

use std::time::Duration;

use crate::block::Block;
use crate::clock::Live;
use crate::memory;
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// What asks for it in place of a workload.
pub const NAME: &str = "idle";

/// Groups of a full run, and which of them stay: the last of so many.
const GROUPS: u32 = 224;
const KEPT: usize = 16;

/// Bytes of a group that are in small blocks, and as many in large ones.
const HALF_BYTES: usize = 2 << 20;
const SMALL: [f64; 2] = [16.0, 2048.0];
const LARGE: [f64; 2] = [65_536.0, 1_048_576.0];

/// When it is looked at, in seconds since the last free.
const LOOKS: [f64; 5] = [0.0, 0.5, 1.0, 2.0, 5.0];

/// The figures of a process that does nothing after a peak.
#[derive(Debug)]
pub struct Idle {
    /// Bytes asked for that stay.
    pub live_bytes: u64,
    /// The most there ever was.
    pub peak_rss_bytes: Option<u64>,
    /// Seconds since the last free, and what was resident then.
    pub looks: Vec<(f64, Option<u64>)>,
    /// The checksum, equal for every allocator that works.
    pub answer: u64,
}

/// `wait` is called between two looks.
pub fn idle(scale: Scale, mut wait: impl FnMut(Duration)) -> Idle {
    let mut random = Random::new(64);
    let mut tally = Tally::default();
    let mut looks = Vec::with_capacity(LOOKS.len());
    let count = scale.of(GROUPS).next_multiple_of(KEPT);
    let mut groups: Vec<Option<Group>> = (0..count)
        .map(|_| Some(Group::new(&mut random, &mut tally)))
        .collect();
    let leaving = |(index, group): (usize, &mut Option<Group>)| {
        let stays = index % KEPT == KEPT - 1;
        if stays { None } else { group.take() }
    };
    for group in groups.iter_mut().enumerate().filter_map(leaving) {
        group.finish(&mut tally);
    }
    let mut seconds = 0.0;
    for at in LOOKS {
        wait(Duration::from_secs_f64(at - seconds));
        seconds = at;
        looks.push((at, Live::look(0).rss_bytes));
    }
    // What was seen counts too: the kernel takes note of peaks late.
    let seen = looks.iter().filter_map(|(_, rss)| *rss).max();
    let peak_rss_bytes = memory::read().map(|memory| memory.peak_rss_bytes).max(seen);
    let live_bytes = groups.iter().flatten().map(Group::bytes).sum();
    for group in groups.into_iter().flatten() {
        group.finish(&mut tally);
    }
    Idle {
        live_bytes,
        peak_rss_bytes,
        looks,
        answer: tally.answer(),
    }
}

/// Blocks that are made together and freed together.
struct Group {
    blocks: Vec<Block>,
    bytes: u64,
}

impl Group {
    fn new(random: &mut Random, tally: &mut Tally) -> Self {
        let mut group = Self {
            blocks: Vec::new(),
            bytes: 0,
        };
        for [min, max] in [SMALL, LARGE] {
            let mut filled = 0;
            while filled < HALF_BYTES {
                let bytes = random.log_within(min, max);
                let mut block = Block::new(bytes, tally.wrote(random.next()));
                block.touch_pages();
                group.blocks.push(block);
                filled += bytes;
            }
            group.bytes += filled as u64;
        }
        group
    }

    /// With the list of its blocks.
    fn bytes(&self) -> u64 {
        self.bytes + (self.blocks.capacity() * size_of::<Block>()) as u64
    }

    fn finish(self, tally: &mut Tally) {
        for block in self.blocks {
            tally.read(block.finish());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sixteenth_stays_and_the_looks_are_spread_over_the_wait() {
        let mut waited = Duration::ZERO;
        let idle = idle(Scale::CHECK, |more| waited += more);
        assert_eq!(waited, Duration::from_secs(5));
        // One group of sixteen.
        assert!(idle.live_bytes >= 2 * HALF_BYTES as u64);
        assert!(idle.live_bytes < 3 * HALF_BYTES as u64);
        let at: Vec<f64> = idle.looks.iter().map(|(seconds, _)| *seconds).collect();
        assert_eq!(at, LOOKS);
        assert_ne!(idle.answer, 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_resident_is_at_least_what_is_live() {
        let idle = idle(Scale::CHECK, |_| ());
        let peak = idle.peak_rss_bytes.unwrap();
        assert!(peak >= 16 * idle.live_bytes / 2, "{peak}");
        for (seconds, rss) in idle.looks {
            let rss = rss.unwrap();
            assert!((idle.live_bytes / 2..=peak).contains(&rss), "{seconds} s");
        }
    }
}
