//! Random work on four streams, and random jumps of their events.

use std::collections::BTreeMap;

use super::{BASE, GRANULE, free_granules, full, on, stream, take};
use crate::common::{self, KIB, Pool, Random, Source, point, range};
use larder_core::{Align, AllocError, BestFit, Block, EventNumber, Request, StreamPoint};

/// Slots that never merge; each predicted exactly.
#[test]
fn random_jumps_never_resurrect_or_lose_a_point() {
    const SLOTS: usize = 12;
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let (mut pool, mut blocks) = full(2 * SLOTS as u64);
        let mut points: BTreeMap<u64, StreamPoint> = BTreeMap::new();
        let mut completed = [0u64; 3];
        for _ in 0..150 {
            let number = random.below(3) as u8;
            let at = &mut completed[usize::from(number)];
            match random.below(4) {
                0 => {
                    let log2 = random.below(42);
                    let jump = (1 << log2) + random.below(3) - 1;
                    let event = at.saturating_add(jump);
                    *at = (*at).max(event);
                    pool.complete(number, event);
                }
                1 => {
                    let i = 2 * random.index(SLOTS);
                    let log2 = random.below(30);
                    let event = at.saturating_add(1 + random.below(1 << log2) + (1 << log2));
                    if let Some(block) = blocks[i].take() {
                        points.insert(block.addr().get(), point(number, event));
                        pool.free_after(block, number, event);
                    }
                }
                _ => {
                    if let Ok(grant) = pool.try_grant(&on(GRANULE, number)) {
                        let addr = grant.block.addr().get();
                        let freed = points.remove(&addr).expect("free by our books");
                        let done =
                            freed.event.number() <= completed[usize::from(freed.stream.number())];
                        let waits = !done && freed.stream != stream(number);
                        assert_eq!(grant.wait, waits.then_some(freed));
                        blocks[((addr - BASE) / GRANULE) as usize] = Some(grant.block);
                    } else {
                        assert!(points.is_empty());
                    }
                }
            }
            let expected: Vec<(u64, u64, bool)> = points
                .iter()
                .map(|(addr, point)| {
                    let done = completed[usize::from(point.stream.number())];
                    ((addr - BASE) / GRANULE, 1, point.event.number() > done)
                })
                .collect();
            assert_eq!(free_granules(&pool), expected);
        }
    }
}

/// What each granule was last used for, and whether a grant respects it.
struct Uses {
    last: BTreeMap<u64, StreamPoint>,
    done: [u64; 4],
    newest: [u64; 4],
}

impl Uses {
    fn granules(block: &Block) -> impl Iterator<Item = u64> + use<> {
        let start = block.addr().get() / GRANULE;
        start..start + block.bytes() / GRANULE
    }

    #[track_caller]
    fn check(&self, block: &Block, request: &Request, wait: Option<StreamPoint>) {
        assert!(wait.is_none() || request.may_wait);
        for granule in Self::granules(block) {
            let Some(last) = self.last.get(&granule) else {
                continue;
            };
            let number = usize::from(last.stream.number());
            let done = last.event.number() <= self.done[number];
            let own = last.stream == request.stream
                && request.freed_by.is_none_or(|event| last.event <= event);
            let waited = wait.is_some_and(|w| w.stream == last.stream && w.event >= last.event);
            assert!(
                done || own || waited,
                "{last:?} for {request:?}, wait {wait:?}"
            );
        }
    }
}

fn random_request(random: &mut Random, uses: &Uses) -> Request {
    let number = random.below(4) as u8;
    let log2 = random.below(8);
    let mut request = on(1 + random.below(GRANULE << log2), number);
    if random.below(4) == 0 {
        request = request.aligned(Align::new(1 << (8 + random.below(5))).expect("a power"));
    }
    if random.below(3) == 0 {
        request = request.without_wait();
    }
    if random.below(6) == 0 {
        let newest = uses.newest[usize::from(number)];
        request = request.freed_by(EventNumber::new(newest.saturating_sub(random.below(6))));
    }
    request
}

#[test]
fn random_work_on_four_streams_never_gets_memory_that_is_still_used() {
    // One region that grows, and regions with gaps between them.
    for contiguous in [true, false] {
        for seed in 0..60 {
            println!("contiguous {contiguous}, seed {seed}");
            let mut random = Random::new(seed);
            let config = common::ranged(16 * KIB, 256 * KIB);
            let mut pool = Pool::over(config, Source::new(), 512);
            pool.source().contiguous.set(contiguous);
            let mut live: Vec<(Block, u8)> = Vec::new();
            let mut uses = Uses {
                last: BTreeMap::new(),
                done: [0; 4],
                newest: [0; 4],
            };
            for _ in 0..200 {
                random_step(&mut random, &mut pool, &mut live, &mut uses);
                common::assert_disjoint(live.iter().map(|(block, _)| block));
            }
            for (block, number) in live {
                pool.free_after(block, number, uses.newest[usize::from(number)]);
            }
            for number in 0..4u8 {
                pool.complete(number, uses.newest[usize::from(number)]);
            }
            pool.trim();
            let report = pool.shared.get_mut().report();
            assert_eq!((report.pending_bytes, report.reserved_bytes), (0, 0));
            assert_eq!(pool.source().out_bytes(), 0);
        }
    }
}

fn random_step(random: &mut Random, pool: &mut Pool, live: &mut Vec<(Block, u8)>, uses: &mut Uses) {
    match random.below(20) {
        0..9 => {
            let request = random_request(random, uses);
            if let Ok(grant) = pool.try_grant(&request) {
                uses.check(&grant.block, &request, grant.wait);
                live.push((grant.block, request.stream.number()));
            }
        }
        9..16 if !live.is_empty() => {
            let i = random.index(live.len());
            let (block, number) = live.swap_remove(i);
            if random.below(4) == 0 {
                for granule in Uses::granules(&block) {
                    uses.last.remove(&granule);
                }
                pool.free(block);
            } else {
                let newest = &mut uses.newest[usize::from(number)];
                *newest += random.below(3);
                for granule in Uses::granules(&block) {
                    uses.last.insert(granule, point(number, *newest));
                }
                pool.free_after(block, number, *newest);
            }
        }
        16..19 => {
            let number = random.below(4) as usize;
            let behind = random.below(4);
            let event = uses.newest[number].saturating_sub(behind);
            uses.done[number] = uses.done[number].max(event);
            pool.complete(number as u8, event);
        }
        _ => {
            pool.trim();
        }
    }
}

#[test]
fn a_block_at_a_wanted_place_is_never_one_that_queued_work_uses() {
    let (mut pool, mut blocks) = full(3);
    pool.free_after(take(&mut blocks[1]), 1, 5);
    let place = range(BASE + GRANULE, GRANULE);
    let refused = pool.unchanged(|pool| pool.shared.get_mut().alloc_at(place, None, None));
    assert_eq!(refused, Err(AllocError::PlaceTaken));
    pool.complete(1, 5);
    assert!(pool.shared.get_mut().alloc_at(place, None, None).is_ok());
    pool.check();
}
