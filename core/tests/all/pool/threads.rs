//! Threads that share a pool: no buffer is given to two of them, and none is lost.

use std::sync::Mutex;

use larder_core::pool::{Pool, PoolAllocator, PoolConfig};
use larder_core::{
    Addr, AddrRange, Block, BlockAllocator, GrowRequest, Request, SubAllocError, SubAllocator,
};
use larder_model::Random;

/// A sub-allocator that knows the ranges in use, panics on any other release, and refuses every 50th call.
#[derive(Default)]
struct Judge(Mutex<(u64, Vec<AddrRange>)>);

impl SubAllocator for Judge {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let (calls, out) = &mut *self.0.lock().unwrap();
        *calls += 1;
        if calls.is_multiple_of(50) {
            return Err(SubAllocError);
        }
        let range = AddrRange::new(Addr::new(*calls << 20), request.bytes).unwrap();
        out.push(range);
        Ok(range)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let (calls, out) = &mut *self.0.lock().unwrap();
        *calls += 1;
        if calls.is_multiple_of(50) {
            return Err(SubAllocError);
        }
        let place = out.iter().position(|held| *held == range);
        out.swap_remove(place.expect("only what is out comes back, once"));
        Ok(())
    }
}

#[test]
fn threads_that_alloc_free_and_trim_share_no_buffer_and_lose_none() {
    let pool = Pool::new(PoolConfig::new(4, 1 << 16), 40).unwrap();
    let pool = PoolAllocator::<_>::new(pool, Judge::default());
    let used = Mutex::new(Vec::new());
    let give_back = |block: Block| {
        used.lock().unwrap().retain(|range| *range != block.range());
        pool.free(block).unwrap();
    };
    let work = |seed| {
        let mut random = Random::new(seed);
        let mut mine = Vec::new();
        for _ in 0..3000 {
            match random.below(20) {
                0 => {
                    pool.end_step();
                }
                1 => {
                    pool.trim();
                }
                2..=10 if mine.len() < 8 => {
                    let bytes = [300, 1000, 5000, 9000][random.below(4) as usize];
                    if let Ok(grant) = pool.alloc(&Request::new(bytes)) {
                        let mut used = used.lock().unwrap();
                        let range = grant.block.range();
                        let overlaps = used.iter().any(|other: &AddrRange| other.overlaps(range));
                        assert!(!overlaps, "seed {seed}: {range:?} is in use");
                        used.push(range);
                        mine.push(grant.block);
                    }
                }
                _ if mine.is_empty() => {}
                _ => {
                    let which = random.index(mine.len());
                    give_back(mine.swap_remove(which));
                }
            }
        }
        mine.into_iter().for_each(give_back);
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|seed| drop(scope.spawn(move || work(seed))));
    });
    pool.with(|pool| pool.check_invariants()).unwrap();
    // The next trim repeats refused releases.
    while pool.report().stuck_buffers + pool.report().idle_buffers > 0 {
        pool.trim();
    }
    assert_eq!(pool.stats().reserved_bytes, 0);
    assert_eq!(pool.close().1.0.into_inner().unwrap().1, []);
}
