//! Random operations compared with a naive best fit: the addresses of blocks, the bytes held, and
//! the times at which regions are added and released.

use larder_model::Random;

use super::*;

const MIB: u64 = 1 << 20;
const GENEROUS: SplitRule = SplitRule::Generous {
    waste_limit_bytes: 128 * MIB,
};

fn allocator(split: SplitRule, regions: RegionPolicy, limit: u64) -> OrderedSet {
    OrderedSet::new(split, regions, Some(limit), SimulatedDevice::new(None))
}

impl OrderedSet {
    /// Checks the invariants of all chunks, and that every record is in a chain or spare.
    fn check_invariants(&self) {
        let mut chained = 0;
        let mut free = 0;
        let mut covered = 0;
        let spare: BTreeSet<u32> = self.spare_records.iter().copied().collect();
        assert_eq!(
            spare.len(),
            self.spare_records.len(),
            "a record is spare twice"
        );
        for (index, chunk) in self.chunks.iter().enumerate() {
            let record = u32::try_from(index).unwrap();
            if spare.contains(&record) {
                continue;
            }
            chained += 1;
            covered += chunk.bytes;
            assert!(chunk.bytes > 0 && chunk.bytes.is_multiple_of(GRANULE_BYTES));
            assert!(chunk.address.is_multiple_of(GRANULE_BYTES));
            let key = (chunk.bytes, chunk.address, record);
            assert_eq!(self.free.contains(&key), chunk.free);
            free += usize::from(chunk.free);
            if let Some(next) = chunk.next {
                let above = self.chunks[next as usize];
                assert_eq!(above.prev, Some(record));
                assert_eq!(above.address, chunk.address + chunk.bytes);
                assert!(!(above.free && chunk.free), "two free neighbours");
            }
        }
        assert_eq!(chained + spare.len(), self.chunks.len());
        assert_eq!(free, self.free.len());
        assert_eq!(covered, self.device.used_bytes);
    }
}

/// A best fit that searches all chunks: (address, bytes, free) in address order.
struct Naive {
    split: SplitRule,
    regions: Vec<Vec<(u64, u64, bool)>>,
    next_region: u64,
    next_address: u64,
    limit: u64,
}

impl Naive {
    fn fit(&mut self, request: u64) -> Option<u64> {
        let mut best: Option<(u64, u64, usize, usize)> = None;
        for (region, blocks) in self.regions.iter().enumerate() {
            for (index, &(address, bytes, free)) in blocks.iter().enumerate() {
                let candidate = (bytes, address, region, index);
                if free && bytes >= request && best.is_none_or(|best| candidate < best) {
                    best = Some(candidate);
                }
            }
        }
        let (bytes, address, region, index) = best?;
        let kept = if self.split.splits(bytes, request) {
            request
        } else {
            bytes
        };
        self.regions[region][index] = (address, kept, false);
        if kept < bytes {
            self.regions[region].insert(index + 1, (address + kept, bytes - kept, true));
        }
        Some(address)
    }

    fn reserved(&self) -> u64 {
        self.regions
            .iter()
            .flatten()
            .map(|&(_, bytes, _)| bytes)
            .sum()
    }

    fn grow(&mut self, request: u64) -> bool {
        let available = self.limit - self.reserved();
        if request > available {
            return false;
        }
        let before = self.next_region;
        while self.next_region < request {
            self.next_region *= 2;
        }
        let bytes = self.next_region.min(available);
        if self.next_region == before {
            self.next_region *= 2;
        }
        self.regions.push(vec![(self.next_address, bytes, true)]);
        self.next_address += bytes;
        true
    }

    fn alloc(&mut self, bytes: u64) -> Option<u64> {
        let request = bytes.next_multiple_of(256);
        if let Some(address) = self.fit(request) {
            return Some(address);
        }
        if !self.grow(request) {
            let in_use = |blocks: &Vec<(u64, u64, bool)>| blocks.iter().any(|block| !block.2);
            let kept: u64 = self
                .regions
                .iter()
                .filter(|blocks| in_use(blocks))
                .flatten()
                .map(|block| block.1)
                .sum();
            if request > self.limit - kept {
                return None;
            }
            self.regions.retain(in_use);
            self.grow(request);
        }
        self.fit(request)
    }

    fn free(&mut self, address: u64) {
        for blocks in &mut self.regions {
            let Some(index) = blocks.iter().position(|block| block.0 == address) else {
                continue;
            };
            blocks[index].2 = true;
            if blocks.get(index + 1).is_some_and(|block| block.2) {
                blocks[index].1 += blocks.remove(index + 1).1;
            }
            if index > 0 && blocks[index - 1].2 {
                blocks[index - 1].1 += blocks.remove(index).1;
            }
        }
    }
}

/// Returns a size from a narrow range, so that ties happen, or from a wide one.
fn random_bytes(random: &mut Random) -> u64 {
    match random.below(3) {
        0 => 256 * (1 + random.below(4)),
        1 => 1 + random.below(20_000),
        _ => 1 << random.below(17),
    }
}

#[test]
fn random_operations_give_the_addresses_of_a_naive_best_fit() {
    let splits = [
        SplitRule::Always,
        SplitRule::Generous {
            waste_limit_bytes: 4096,
        },
        GENEROUS,
    ];
    let policies = [
        RegionPolicy::One,
        RegionPolicy::Doubling { first_bytes: 1024 },
    ];
    for seed in 1..=12_u64 {
        for (split, regions) in splits
            .iter()
            .flat_map(|s| policies.iter().map(move |p| (*s, *p)))
        {
            let limit = 256 * 1024 / (1 + seed % 3);
            let limit = limit - limit % 256;
            let mut bfc = allocator(split, regions, limit);
            let next_region = bfc.next_region_bytes;
            let mut naive = Naive {
                split,
                regions: Vec::new(),
                next_region,
                next_address: 0,
                limit,
            };
            compare(&mut bfc, &mut naive, seed);
        }
    }
}

fn compare(bfc: &mut OrderedSet, naive: &mut Naive, seed: u64) {
    let mut random = Random::new(seed);
    let mut live: Vec<ContenderBlock> = Vec::new();
    let mut refusals = 0;
    for step in 0..1500 {
        // Phases with more allocations alternate with phases with more frees.
        let allocates = random.below(10) < if step / 200 % 2 == 0 { 7 } else { 3 };
        if allocates || live.is_empty() {
            let bytes = random_bytes(&mut random);
            let slot = bfc.alloc(bytes);
            let expected = naive.alloc(bytes);
            assert_eq!(
                slot.map(|slot| slot.address),
                expected,
                "seed {seed} step {step}"
            );
            refusals += u32::from(slot.is_none());
            live.extend(slot);
        } else {
            let index = usize::try_from(random.below(live.len() as u64)).unwrap();
            let slot = live.swap_remove(index);
            bfc.free(slot);
            naive.free(slot.address);
        }
        assert_eq!(
            bfc.device.used_bytes,
            naive.reserved(),
            "seed {seed} step {step}"
        );
        if step % 16 == 0 {
            bfc.check_invariants();
        }
    }
    assert!(refusals > 0, "seed {seed} never filled the device");
    for slot in live.drain(..) {
        bfc.free(slot);
    }
    bfc.check_invariants();
    assert!(bfc.chunks.len() - bfc.spare_records.len() == bfc.free.len());
}
