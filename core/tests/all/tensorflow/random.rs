//! Random sequences. Without counts, each block is the one that CONFORMANCE 8.3 names; with counts, none has memory
//! freed after its demand, unless the free is safe. `cli/src/replay/upstream_agrees_tests.rs` compares addresses with
//! those of another BFC.

use std::collections::BTreeMap;

use crate::common::{MIB, Upstream, apart, rounds};
use larder_core::Block;
use larder_model::Random;
use larder_model::tensorflow::Bfc;

struct Sequence {
    pool: Upstream,
    live: Vec<Block>,
    timed: bool,
    /// The shared counter, and the safe frontier.
    count: u64,
    safe: u64,
    /// The count at which each granule was last freed.
    freed: BTreeMap<u64, u64>,
}

fn granules(block: &Block) -> impl Iterator<Item = u64> + use<> {
    let start = block.addr().get() / 256;
    start..start + block.bytes() / 256
}

impl Sequence {
    fn step(&mut self, random: &mut Random, narrow: bool) {
        match random.below(100) {
            0..55 => self.alloc(random, narrow),
            55..90 if !self.live.is_empty() => {
                let i = random.index(self.live.len());
                let block = self.live.swap_remove(i);
                self.count += u64::from(self.timed);
                self.freed
                    .extend(granules(&block).map(|granule| (granule, self.count)));
                self.pool.free_at(block, self.count);
            }
            90..93 => self.pool.source.refuse_grow(random.below(3) as u32),
            93..95 => self.pool.source.set_capacity(random.below(96) * MIB),
            95..97 => {
                let limit = random.below(64) * MIB + random.below(2) * 300;
                let in_force = self.pool.adjust(limit);
                assert!(in_force >= limit);
                assert!(self.pool.bfc.stats().reserved_bytes <= in_force);
            }
            _ if self.timed => {
                self.safe = self
                    .safe
                    .max((self.count + 1).saturating_sub(random.below(12)));
                self.pool.bfc.set_safe_frontier(self.safe);
            }
            _ => {}
        }
    }

    fn alloc(&mut self, random: &mut Random, narrow: bool) {
        let bytes = if narrow {
            MIB * (1 + random.below(4))
        } else {
            let log2 = 4 + random.below(21);
            random.below(1 << log2)
        };
        let demand = match random.below(2) {
            0 if self.timed => self.count.saturating_sub(random.below(8)).max(1),
            _ => 0,
        };
        let rounded = bytes.next_multiple_of(256);
        let fits = |chunk: &(u64, u64)| bytes > 0 && chunk.1 >= rounded;
        let free = self.pool.free_chunks().into_iter().filter(fits);
        let best = free.min_by_key(|(start, bytes)| (*bytes, *start));
        self.pool.source.take_log();
        let given = self.pool.alloc_freed_by(bytes, demand);
        let calls = self.pool.source.take_log().len();
        if !self.timed {
            let addr = given.as_ref().map(|block| block.addr().get());
            assert!(addr == best.map(|chunk| chunk.0) || best.is_none());
            assert!(best.is_none() || calls == 0, "growth goes last");
        }
        let Some(block) = given else { return };
        assert!(block.bytes() < 2 * rounded && block.bytes() < rounded + 128 * MIB);
        for granule in granules(&block) {
            let freed = self.freed.get(&granule).copied().unwrap_or(0);
            let allowed = demand == 0 || freed <= demand || freed < self.safe;
            assert!(allowed, "freed at {freed}, demanded {demand}");
        }
        self.live.push(block);
    }
}

fn run(first_seed: u64, timed: bool) {
    for seed in first_seed..first_seed + rounds(100) {
        let mut random = Random::new(seed);
        let limit = random.below(64) * MIB + random.below(3) * 300 + 4 * MIB;
        let first_region = if seed % 5 == 0 { limit } else { MIB };
        let mut bfc = Bfc::new(limit).with_first_region(first_region);
        if seed % 2 == 0 {
            bfc = bfc.collecting();
        }
        println!("seed {seed}, limit {limit}, timed {timed}");
        let mut sequence = Sequence {
            pool: Upstream::over(bfc, apart()),
            live: Vec::new(),
            timed,
            count: 0,
            safe: 0,
            freed: BTreeMap::new(),
        };
        for _ in 0..300 {
            sequence.step(&mut random, seed % 3 == 0);
        }
    }
}

#[test]
fn s8_random_sequences_get_the_smallest_chunk_that_suffices_and_grow_only_without_one() {
    run(1000, false);
}

#[test]
fn s8_7_random_sequences_with_counts_get_nothing_freed_after_the_demand() {
    run(5000, true);
}
