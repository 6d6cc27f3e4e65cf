//! Log-normal sizes and lifetimes, as in long-running programs: many small and short-lived blocks,
//! a few large blocks, and a few that stay.

use crate::block::Block;
use crate::clock::{Clock, Live, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// Number of allocations in a full run.
const BLOCKS: u32 = 1_000_000;

/// The median of the sizes, and their deviation: two thirds of the sizes are within a factor of
/// e^deviation of the median.
const MEDIAN_BYTES: f64 = 200.0;
const BYTES_DEVIATION: f64 = 1.5;
const MAX_BYTES: f64 = 1024.0 * 1024.0;

/// Lifetimes in allocations.
const MEDIAN_LIFE: f64 = 4000.0;
const LIFE_DEVIATION: f64 = 3.5;

/// The events of a run, drawn before the clock starts.
struct MixedScript {
    /// Each event is a size in bytes, to allocate into the slot that was freed last, or into a new
    /// one if none is free; or, if marked with [`FREE`], a slot to free.
    events: Vec<u32>,
    /// Maximum number of live blocks.
    slots: usize,
    /// The event after which most bytes are live, and these bytes.
    peak: (usize, u64),
}

/// The mark of an event that frees. Sizes are below it.
const FREE: u32 = 1 << 31;

pub fn mixed(scale: Scale) -> Outcome {
    let blocks = scale.of(BLOCKS);
    let script = MixedScript::draw(blocks);
    let mut slots: Vec<Option<Block>> = Vec::with_capacity(script.slots);
    let mut empty: Vec<u32> = Vec::with_capacity(script.slots);
    let mut tally = Tally::default();
    let mut live = None;
    let clock = Clock::start();
    for (index, event) in script.events.iter().enumerate() {
        if event & FREE == 0 {
            let stamp = tally.wrote(index as u64);
            let mut block = Block::new(*event as usize, stamp);
            // Live bytes are compared with resident bytes.
            block.touch_pages();
            match empty.pop() {
                Some(slot) => slots[slot as usize] = Some(block),
                None => slots.push(Some(block)),
            }
        } else {
            let slot = event & !FREE;
            if let Some(block) = slots[slot as usize].take() {
                tally.read(block.finish());
                empty.push(slot);
            }
        }
        if index == script.peak.0 {
            // The workload's own tables also count as live.
            let tables = size_of_val(script.events.as_slice()) + size_of_val(slots.as_slice());
            live = Some(Live::look(script.peak.1 + tables as u64));
        }
    }
    clock.stop(blocks as u64, tally.answer()).with_live(live)
}

impl MixedScript {
    fn draw(blocks: usize) -> Self {
        let mut random = Random::new(120);
        let mut sizes = Vec::with_capacity(blocks);
        // The blocks that end before each allocation.
        let mut ends = Vec::with_capacity(blocks);
        for block in 0..blocks {
            let bytes = MEDIAN_BYTES * (BYTES_DEVIATION * random.normal()).exp();
            sizes.push(bytes.clamp(8.0, MAX_BYTES) as u32);
            let life = MEDIAN_LIFE * (LIFE_DEVIATION * random.normal()).exp();
            let end = (block + 1) as f64 + life;
            ends.push((end.min(blocks as f64) as u32, block as u32));
        }
        ends.sort_unstable();
        Self::weave(&sizes, &ends)
    }

    fn weave(sizes: &[u32], ends: &[(u32, u32)]) -> Self {
        let mut events = Vec::with_capacity(2 * sizes.len());
        let mut ends = ends.iter().peekable();
        let mut slot_of = Vec::with_capacity(sizes.len());
        let mut empty = Vec::new();
        let mut slots = 0;
        let mut live = 0;
        let mut peak = (0, 0);
        for time in 0..=sizes.len() {
            while let Some((_, block)) = ends.next_if(|(end, _)| *end as usize <= time) {
                let slot = slot_of[*block as usize];
                events.push(slot | FREE);
                empty.push(slot);
                live -= u64::from(sizes[*block as usize]);
            }
            if let Some(&bytes) = sizes.get(time) {
                live += u64::from(bytes);
                if live > peak.1 {
                    peak = (events.len(), live);
                }
                slot_of.push(empty.pop().unwrap_or(slots));
                slots = slots.max(slot_of[time] + 1);
                events.push(bytes);
            }
        }
        Self {
            events,
            slots: slots as usize,
            peak,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_freed_once_and_after_it_was_allocated() {
        let script = MixedScript::draw(5000);
        let mut live: Vec<Option<u64>> = Vec::new();
        let mut empty = Vec::new();
        let mut max = 0;
        for (index, event) in script.events.iter().enumerate() {
            if event & FREE == 0 {
                let slot = empty.pop().unwrap_or(live.len());
                live.resize(live.len().max(slot + 1), None);
                live[slot] = Some(u64::from(*event));
            } else {
                let slot = (event & !FREE) as usize;
                assert!(live[slot].take().is_some(), "slot {slot} freed twice");
                empty.push(slot);
            }
            let sum: u64 = live.iter().flatten().sum();
            assert!(index != script.peak.0 || sum == script.peak.1);
            max = max.max(sum);
        }
        assert_eq!(max, script.peak.1);
        assert_eq!(live.len(), script.slots);
        assert_eq!(script.events.len(), 10_000);
        assert!(live.iter().all(Option::is_none));
    }
}
