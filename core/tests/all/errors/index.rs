//! Look-ups by address in an index, also after blocks have changed.

use crate::common::{BASE, GIB, GRANULE, KIB, MIB, Pool, UNIT, apart, range, ranged};
use larder_core::sync::AtomicU32;
use larder_core::{
    Addr, Align, BestFit, Block, FreeError, Granule, PageIndex, RegionConfig, Request,
};
use larder_model::{Random, Source};

const PAGES: usize = 128;

/// Returns an index over the 128 granules from `BASE` on, with `number` in each entry.
fn index(number: u32) -> PageIndex<'static> {
    let entries = [(); PAGES].map(|()| AtomicU32::new(number));
    PageIndex::new(
        Addr::new(BASE),
        Granule::DEFAULT,
        Box::leak(Box::new(entries)),
    )
}

fn block_at(pool: &Pool, index: PageIndex<'_>, addr: Addr) -> Result<Block, FreeError> {
    let found = index.find(addr).ok_or(FreeError::Unknown)?;
    pool.shared.with(|pool| pool.block_from_raw(found))
}

#[test]
fn an_index_finds_each_block_in_its_range_and_nothing_else() {
    for seed in 0..8 {
        println!("seed {seed}");
        let index = index(0);
        let regions = [(BASE, 128 * GRANULE), (16 * BASE, 128 * GRANULE)];
        let mut pool = Pool::with_regions(RegionConfig::fixed(), &regions);
        let covered = |addr: Addr| addr.get() < 16 * BASE;
        let mut random = Random::new(seed);
        let mut live: Vec<(Addr, u64)> = Vec::new();
        for _ in 0..400 {
            if random.below(2) == 0 {
                let bytes = 1 + random.below(8 * GRANULE);
                if let Ok(grant) = pool.try_grant(&Request::new(bytes)) {
                    index.enter(&grant.block);
                    live.push((grant.block.addr(), grant.block.bytes()));
                }
            } else if !live.is_empty() {
                let (addr, _) = live[random.index(live.len())];
                if let Ok(block) = block_at(&pool, index, addr) {
                    live.retain(|(live, _)| *live != addr);
                    pool.free(block);
                    let again = block_at(&pool, index, addr);
                    assert_eq!(again, Err(FreeError::Unknown));
                }
            }
            for (addr, bytes) in &live {
                match block_at(&pool, index, *addr) {
                    Ok(block) => assert_eq!((block.addr(), block.bytes()), (*addr, *bytes)),
                    Err(FreeError::Unknown) => assert!(!covered(*addr)),
                    Err(error) => panic!("{error}"),
                }
                for off in [1, GRANULE - 1] {
                    let inside = Addr::new(addr.get() + off);
                    assert_eq!(block_at(&pool, index, inside), Err(FreeError::Unknown));
                }
            }
            for (addr, _) in pool.free_chunks() {
                let found = block_at(&pool, index, Addr::new(addr));
                assert_eq!(found, Err(FreeError::Unknown));
            }
            for addr in [0, 1, u64::MAX, BASE - GRANULE] {
                let found = block_at(&pool, index, Addr::new(addr));
                assert_eq!(found, Err(FreeError::Unknown));
            }
        }
    }
}

#[test]
fn an_index_finds_blocks_through_shrinking_growing_wanted_places_and_alignment() {
    let index = index(0);
    let behind = Source::new(BASE + 17 * GRANULE, GIB);
    let mut pool = Pool::over(ranged(UNIT, GIB), behind, 65);
    pool.add_region(BASE + GRANULE, 16 * GRANULE);
    let place = range(BASE + 4 * GRANULE, 300);
    let at = pool
        .shared
        .get_mut()
        .alloc_at(place, None, None)
        .expect("free");
    pool.check();
    let align = Align::new(4 * KIB).expect("a power of two");
    let aligned = pool.try_grant(&Request::new(1000).aligned(align));
    let aligned = aligned.expect("room").block;
    let mut block = pool.alloc(3 * GRANULE);
    for block in [&at, &aligned, &block] {
        index.enter(block);
        let found = block_at(&pool, index, block.addr());
        assert_eq!(found.as_ref(), Ok(block));
    }
    // A block keeps its handle when its size changes.
    for bytes in [1, 2 * GRANULE, GRANULE, 3 * GRANULE] {
        block = pool.shared.get_mut().resize(block, bytes).expect("room");
        let found = block_at(&pool, index, block.addr());
        assert_eq!(found.as_ref(), Ok(&block));
    }
    let large = pool.alloc(MIB);
    index.enter(&large);
    let addr = large.addr();
    pool.free(large);
    assert!(pool.shared.trim() >= MIB - 64 * KIB);
    assert_eq!(block_at(&pool, index, addr), Err(FreeError::Unknown));
    pool.free_all([at, aligned, block]);
}

#[test]
fn entries_that_say_anything_name_no_wrong_block() {
    for garbage in 0..9 {
        let index = index(garbage);
        let mut pool = Pool::over(RegionConfig::fixed(), apart(), 9);
        pool.add_region(BASE, 16 * GRANULE);
        let mut alloc = |bytes| {
            let block = pool.alloc(bytes);
            index.enter(&block);
            block
        };
        let (first, gone, last) = (alloc(2 * GRANULE), alloc(GRANULE), alloc(3 * GRANULE));
        pool.free(gone);
        for page in 0..16 {
            let addr = Addr::new(BASE + page * GRANULE);
            let expected = [&first, &last]
                .into_iter()
                .find(|block| block.addr() == addr)
                .ok_or(FreeError::Unknown);
            let found = block_at(&pool, index, addr);
            assert_eq!(found.as_ref().map_err(|error| *error), expected);
        }
        pool.free_all([first, last]);
    }
}
