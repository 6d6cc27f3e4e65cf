//! A process's memory after a peak, while no thread calls the allocator.
//!
//! About 1 GiB of blocks is allocated in groups, and one sixteenth of the groups is kept. The memory is read
//! `seconds` after the last free.

use std::thread;
use std::time::Duration;

use crate::block::Block;
use crate::clock::{Clock, Live, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// Number of groups in a full run. The last of every `KEPT` groups stays.
const GROUPS: u32 = 224;
const KEPT: usize = 16;

/// Bytes of a group's small blocks, and of its large blocks.
const HALF_BYTES: usize = 2 << 20;
const SMALL: [f64; 2] = [16.0, 2048.0];
const LARGE: [f64; 2] = [65_536.0, 1_048_576.0];

pub fn idle(seconds: u64, scale: Scale) -> Outcome {
    let mut random = Random::new(64);
    let mut tally = Tally::default();
    let count = scale.of(GROUPS).next_multiple_of(KEPT);
    let clock = Clock::start();
    let mut groups: Vec<Option<BlockGroup>> = (0..count)
        .map(|_| Some(BlockGroup::new(&mut random, &mut tally)))
        .collect();
    let blocks: usize = groups
        .iter()
        .flatten()
        .map(|group| group.blocks.len())
        .sum();
    for (index, group) in groups.iter_mut().enumerate() {
        if index % KEPT != KEPT - 1
            && let Some(group) = group.take()
        {
            group.finish(&mut tally);
        }
    }
    thread::sleep(Duration::from_secs(seconds));
    let live = Live::look(groups.iter().flatten().map(BlockGroup::bytes).sum());
    for group in groups.into_iter().flatten() {
        group.finish(&mut tally);
    }
    clock
        .stop(blocks as u64, tally.answer())
        .with_live(Some(live))
}

/// Blocks that are allocated together and freed together.
struct BlockGroup {
    blocks: Vec<Block>,
    bytes: u64,
}

impl BlockGroup {
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

    /// Returns the bytes of the group's blocks and of their list.
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
    fn a_sixteenth_stays_and_the_look_is_after_the_wait() {
        let outcome = idle(1, Scale::CHECK);
        assert!(outcome.seconds >= 1.0);
        let live = outcome.live.unwrap();
        // One group of sixteen is kept.
        let group = 2 * HALF_BYTES as u64;
        assert!((group..group * 3 / 2).contains(&live.bytes));
        if let Some(rss_bytes) = live.rss_bytes {
            assert!(rss_bytes >= live.bytes / 2);
        }
    }
}
