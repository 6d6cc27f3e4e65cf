//! Random sequences beside the obvious version, with counts and without.

use crate::common::upstream::Upstream;
use crate::common::{MIB, Pool, Random, Source, at_once, tuple_of};
use larder_core::{BfcConfig, Block, ChunkState, EventNumber, Growth, Request};

struct Twins {
    pool: Pool,
    upstream: Upstream,
    source: Source,
    live: Vec<Block>,
    count: u64,
    timed: bool,
}

impl Twins {
    fn new(config: BfcConfig, timed: bool) -> Self {
        let Growth::Doubling { first_bytes } = config.growth else {
            panic!("upstream doubles");
        };
        Self {
            pool: Pool::over(config, Source::new(), 2048),
            upstream: Upstream::new(config.limit_bytes, first_bytes, config.collect_regions),
            source: Source::new(),
            live: Vec::new(),
            count: 0,
            timed,
        }
    }

    fn step(&mut self, random: &mut Random, narrow: bool) {
        match random.below(100) {
            0..55 => self.alloc(random, narrow),
            55..90 => self.free(random),
            90..93 => {
                let refusals = random.below(3) as u32;
                self.pool.source.refuse_grows.set(refusals);
                self.source.refuse_grows.set(refusals);
            }
            93..95 => {
                let capacity = random.below(96) * MIB;
                self.pool.source.capacity_bytes.set(capacity);
                self.source.capacity_bytes.set(capacity);
            }
            95..97 if !self.timed => {
                let limit = random.below(64) * MIB + random.below(2) * 300;
                let change = self.pool.adjust(limit);
                assert_eq!(
                    change.limit_bytes,
                    self.upstream.adjust(limit, &self.source)
                );
                assert_eq!(change.excess_bytes, 0, "clamped");
            }
            _ if self.timed => {
                let safe = self.count.saturating_sub(random.below(12));
                self.pool.complete(0, safe);
                self.upstream.set_safe_frontier(safe + 1);
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
        let mut request = Request::new(bytes);
        let mut freed_before = 0;
        if self.timed && random.below(2) == 0 {
            freed_before = self.count.saturating_sub(random.below(8)).max(1);
            request = request.freed_by(EventNumber::new(freed_before));
        }
        let given = self.pool.try_grant(&request).ok();
        let expected = self.upstream.alloc(bytes, freed_before, &self.source);
        let addr = given.as_ref().map(|grant| grant.block.addr().get());
        assert_eq!(addr, expected, "{bytes} bytes\n{}", self.pool.bfc.dump());
        self.live.extend(given.map(|grant| grant.block));
    }

    fn free(&mut self, random: &mut Random) {
        if self.live.is_empty() {
            return;
        }
        let i = random.below(self.live.len() as u64) as usize;
        let block = self.live.swap_remove(i);
        let addr = block.addr().get();
        if self.timed {
            self.count += 1;
            self.pool.free_after(block, 0, self.count);
            self.upstream.free(addr, self.count);
        } else {
            self.pool.free(block);
            self.upstream.free(addr, 0);
        }
    }

    fn compare(&mut self) {
        assert_eq!(tuple_of(&self.pool.bfc.stats()), self.upstream.tuple());
        assert_eq!(self.pool.bfc.stats().limit_bytes, self.upstream.limit);
        assert_eq!(self.pool.region_bytes(), self.upstream.region_bytes());
        assert_eq!(self.pool.source.take_log(), self.source.take_log());
        let used = |state| matches!(state, ChunkState::Used { .. });
        let chunks = self.pool.chunks();
        let chunks = chunks
            .iter()
            .map(|c| (c.range.start(), c.range.bytes(), used(c.state)));
        assert_eq!(chunks.collect::<Vec<_>>(), self.upstream.picture());
        if !self.timed {
            let stats = self.pool.bfc.pool_stats();
            assert_eq!(
                (stats.pool_bytes, stats.stable_bytes),
                self.upstream.pool_stats()
            );
        }
    }
}

fn twins_agree(first_seed: u64, timed: bool) {
    for seed in first_seed..first_seed + 40 {
        let mut random = Random::new(seed);
        let limit = random.below(64) * MIB + random.below(3) * 300 + 4 * MIB;
        let config = BfcConfig {
            collect_regions: seed % 2 == 0,
            ..if seed % 5 == 0 {
                at_once(limit)
            } else {
                BfcConfig::tensorflow(limit)
            }
        };
        println!("seed {seed}, limit {limit}, timed {timed}");
        let mut twins = Twins::new(config, timed);
        for _ in 0..300 {
            twins.step(&mut random, seed % 3 == 0);
            // A completed count that no allocation has met yet is merged here and not there.
            if !timed {
                twins.compare();
            }
        }
        assert_eq!(twins.pool.tuple(), twins.upstream.tuple());
        assert_eq!(twins.pool.source.take_log(), twins.source.take_log());
    }
}

#[test]
fn s8_random_sequences_give_the_answers_chunks_and_calls_of_upstream() {
    twins_agree(1000, false);
}

#[test]
fn s8_7_random_sequences_with_counts_give_the_answers_of_upstream() {
    twins_agree(5000, true);
}
