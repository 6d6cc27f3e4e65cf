//! The rules one by one, then random operations against a naive best fit.

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
    /// Checks the invariants over all chunks, and that every record is in a chain or spare.
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

#[test]
fn the_generous_rule_splits_at_twice_the_request_and_not_below() {
    assert!(GENEROUS.splits(512, 256));
    assert!(!GENEROUS.splits(768, 512));
    assert!(!GENEROUS.splits(256, 256));
}

#[test]
fn the_generous_rule_splits_at_the_waste_limit_and_not_below() {
    let request = 1024 * MIB;
    assert!(GENEROUS.splits(request + 128 * MIB, request));
    assert!(!GENEROUS.splits(request + 128 * MIB - 256, request));
}

#[test]
fn always_means_whenever_something_is_left() {
    assert!(SplitRule::Always.splits(512, 256));
    assert!(SplitRule::Always.splits(768, 512));
    assert!(!SplitRule::Always.splits(256, 256));
}

#[test]
fn regions_double_and_a_large_request_raises_them() {
    let regions = RegionPolicy::Doubling {
        first_bytes: 2 * MIB,
    };
    let mut bfc = allocator(GENEROUS, regions, 1 << 40);
    let mut reserved = 0;
    for (request, region) in [
        (2 * MIB, 2 * MIB),
        (1, 4 * MIB),
        (9 * MIB, 16 * MIB),
        (16 * MIB, 16 * MIB),
        (17 * MIB, 32 * MIB),
    ] {
        bfc.alloc(request).unwrap();
        reserved += region;
        assert_eq!(bfc.reserved_bytes(), reserved, "after {request} bytes");
    }
    assert_eq!(bfc.driver_allocations(), 5);
}

#[test]
fn neighbouring_regions_are_never_merged() {
    let mut bfc = allocator(
        SplitRule::Always,
        RegionPolicy::Doubling { first_bytes: MIB },
        1 << 40,
    );
    let first = bfc.alloc(MIB).unwrap();
    let second = bfc.alloc(2 * MIB).unwrap();
    assert_eq!(second.address, first.address + MIB);
    bfc.free(first);
    bfc.free(second);
    bfc.check_invariants();
    assert_eq!(bfc.free.len(), 2);
}

#[test]
fn one_region_counts_the_highest_address_used() {
    let mut bfc = allocator(SplitRule::Always, RegionPolicy::One, 10 * MIB);
    assert_eq!(bfc.reserved_bytes(), 0);
    let low = bfc.alloc(MIB).unwrap();
    let high = bfc.alloc(MIB).unwrap();
    bfc.free(high);
    bfc.free(low);
    assert_eq!(
        (bfc.reserved_bytes(), bfc.driver_allocations()),
        (2 * MIB, 1)
    );
    assert!(bfc.alloc(10 * MIB).is_some());
    assert_eq!(bfc.alloc(1), None);
}

#[test]
fn wholly_free_regions_go_back_before_a_refusal() {
    let regions = RegionPolicy::Doubling { first_bytes: MIB };
    let mut bfc = allocator(SplitRule::Always, regions, 8 * MIB);
    let small = bfc.alloc(MIB).unwrap();
    let medium = bfc.alloc(2 * MIB).unwrap();
    bfc.free(medium);
    assert_eq!(bfc.alloc(8 * MIB), None);
    assert_eq!(
        bfc.driver_frees(),
        0,
        "a hopeless request must not cost the cache"
    );
    assert!(bfc.alloc(7 * MIB).is_some());
    assert_eq!((bfc.driver_frees(), bfc.reserved_bytes()), (1, 8 * MIB));
    bfc.free(small);
    bfc.check_invariants();
}

#[test]
fn a_refusing_device_is_asked_for_less_once_in_a_life() {
    let regions = RegionPolicy::Doubling { first_bytes: MIB };
    let mut bfc = OrderedSet::new(
        SplitRule::Always,
        regions,
        None,
        SimulatedDevice::new(Some(3 * MIB)),
    );
    bfc.alloc(MIB).unwrap();
    bfc.alloc(MIB).unwrap();
    assert_eq!(bfc.reserved_bytes(), 3 * MIB);

    let mut bfc = OrderedSet::new(
        SplitRule::Always,
        regions,
        None,
        SimulatedDevice::new(Some(MIB - 1)),
    );
    bfc.alloc(1).unwrap();
    assert_eq!(bfc.reserved_bytes(), backed_off(MIB));
    assert_eq!(bfc.alloc(backed_off(MIB)), None);
    bfc.check_invariants();
}

#[test]
fn backing_off_ends_when_the_device_always_refuses() {
    for first_bytes in [256, 512, 2048, 2304, 2560, MIB] {
        let regions = RegionPolicy::Doubling { first_bytes };
        let mut bfc = OrderedSet::new(
            SplitRule::Always,
            regions,
            None,
            SimulatedDevice::new(Some(1)),
        );
        assert_eq!(bfc.alloc(256), None);
        assert_eq!(bfc.alloc(256), None);
        bfc.check_invariants();
    }
    let mut bytes = 1 << 40;
    let mut rounds = 0;
    while bytes > 0 {
        let less = backed_off(bytes);
        assert!(less < bytes && less.is_multiple_of(GRANULE_BYTES));
        bytes = less;
        rounds += 1;
    }
    assert!(rounds < 1000);
}

#[test]
fn requests_at_the_end_of_the_numbers_are_refused() {
    for regions in [
        RegionPolicy::One,
        RegionPolicy::Doubling { first_bytes: MIB },
    ] {
        let mut bfc = OrderedSet::new(GENEROUS, regions, None, SimulatedDevice::new(None));
        for bytes in [u64::MAX, u64::MAX - 255, (1 << 62) + 1, 1 << 63] {
            assert_eq!(bfc.alloc(bytes), None, "{bytes}");
        }
        bfc.check_invariants();
    }
}

/// Best fit by searching all chunks: (address, bytes, free) in address order.
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

/// Returns a size from a narrow set, so that ties happen, or from a wide one.
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
        // Phases that fill up and phases that drain.
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
