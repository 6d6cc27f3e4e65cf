//! Look-ups by address: how small an index may be, what each finds, and that it follows changes.

use super::{BASE, FIXED, GRANULE, fixed, ranged};
use crate::common::{GIB, KIB, MIB, Pool, Random, Source, range, table};
use larder_core::{
    Addr, AddressIndex, Align, Bfc, BfcAllocator, Block, BlockAllocator, ConfigError, FreeError,
    Granule, HashIndex, PageIndex, Request,
};

fn slots(count: usize) -> &'static mut [u32] {
    Box::leak(vec![0; count].into_boxed_slice())
}

#[test]
fn an_index_too_small_for_the_table_is_refused() {
    let with = |count, records| {
        let index = HashIndex::new(slots(count));
        Bfc::with_index(FIXED, table(records), index).err()
    };
    // One record is kept back, so 9 make 8 chunks.
    assert_eq!(with(16, 9), None);
    assert_eq!(with(15, 9), Some(ConfigError::Index));
    assert_eq!(with(0, 2), Some(ConfigError::Index));
    let with = |page: u64, base: u64| {
        let page = Granule::new(page).expect("a power of two");
        let index = PageIndex::new(Addr::new(base), page, slots(4));
        Bfc::with_index(FIXED, table(9), index).err()
    };
    assert_eq!(with(256, 0), None);
    assert_eq!(with(16, 256), None);
    assert_eq!(
        with(512, 0),
        Some(ConfigError::Index),
        "two blocks could share a page"
    );
    assert_eq!(
        with(256, 128),
        Some(ConfigError::Index),
        "pages off the granule"
    );
}

fn random_addresses<I: AddressIndex>(mut pool: Pool<I>, seed: u64, covered: impl Fn(u64) -> bool) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut live: Vec<(Addr, u64)> = Vec::new();
    for _ in 0..400 {
        if random.below(2) == 0 {
            let bytes = 1 + random.below(8 * GRANULE);
            if let Ok(grant) = pool.try_grant(&Request::new(bytes)) {
                live.push((grant.block.addr(), grant.block.bytes()));
                drop(grant);
            }
        } else if !live.is_empty() {
            let i = random.index(live.len());
            if covered(live[i].0.get()) {
                let (addr, _) = live.swap_remove(i);
                let block = pool.bfc.block_from_addr(addr).expect("in use");
                pool.free(block);
                assert_eq!(pool.bfc.block_from_addr(addr), Err(FreeError::Unknown));
            }
        }
        for (addr, bytes) in &live {
            let found = pool.bfc.block_from_addr(*addr);
            if covered(addr.get()) {
                let block = found.expect("in use");
                assert_eq!((block.addr(), block.bytes()), (*addr, *bytes));
            } else {
                assert_eq!(found, Err(FreeError::Unknown));
            }
            for off in [1, GRANULE - 1] {
                let inside = Addr::new(addr.get() + off);
                assert_eq!(pool.bfc.block_from_addr(inside), Err(FreeError::Unknown));
            }
        }
        for (addr, _) in pool.free_chunks() {
            let found = pool.bfc.block_from_addr(Addr::new(addr));
            assert_eq!(found, Err(FreeError::Unknown));
        }
        for addr in [0, 1, u64::MAX, BASE - GRANULE] {
            let found = pool.bfc.block_from_addr(Addr::new(addr));
            assert_eq!(found, Err(FreeError::Unknown));
        }
    }
}

/// Two regions; the second lies outside of a page index over the first.
fn indexed<I: AddressIndex>(index: I) -> Pool<I> {
    let mut bfc = Bfc::with_index(FIXED, table(65), index).expect("it holds");
    for start in [BASE, 16 * BASE] {
        bfc.add_region(range(start, 128 * GRANULE))
            .expect("a good region");
    }
    let source = Source::new();
    Pool { bfc, source }
}

#[test]
fn a_hash_index_finds_each_block_by_its_first_address_and_nothing_else() {
    for seed in 0..8 {
        random_addresses(indexed(HashIndex::new(slots(128))), seed, |_| true);
    }
}

#[test]
fn a_page_index_finds_each_block_in_its_range_and_nothing_else() {
    for seed in 0..8 {
        let index = PageIndex::new(Addr::new(BASE), Granule::DEFAULT, slots(128));
        random_addresses(indexed(index), seed, |addr| addr < 16 * BASE);
    }
}

#[test]
fn without_an_index_no_address_is_found() {
    let mut pool = fixed(4);
    let block = pool.alloc(GRANULE);
    assert_eq!(
        pool.bfc.block_from_addr(block.addr()),
        Err(FreeError::Unknown)
    );
    pool.free(block);
}

#[test]
fn an_index_follows_blocks_through_shrinking_wanted_places_and_alignment() {
    let mut bfc =
        Bfc::with_index(ranged(GIB), table(65), HashIndex::new(slots(128))).expect("it holds");
    bfc.add_region(range(BASE + GRANULE, 64 * KIB))
        .expect("a good region");
    let mut pool = Pool {
        bfc,
        source: Source::contiguous(),
    };
    let place = range(BASE + 8 * GRANULE, 300);
    let at = pool.bfc.alloc_at(place).expect("free");
    pool.check();
    let align = Align::new(16 * KIB).expect("a power of two");
    let aligned = pool.grant(&Request::new(1000).aligned(align)).block;
    let large = pool.alloc(MIB);
    for block in [&at, &aligned, &large] {
        assert_eq!(pool.bfc.block_from_addr(block.addr()).as_ref(), Ok(block));
    }
    let addr = large.addr();
    pool.free(large);
    assert!(pool.trim() >= MIB - 64 * KIB);
    assert_eq!(pool.bfc.block_from_addr(addr), Err(FreeError::Unknown));
    pool.free_all([at, aligned]);
}

#[test]
fn a_block_is_measured_and_freed_by_its_first_address_and_by_no_other() {
    let mut pool = indexed(HashIndex::new(slots(128)));
    let block = pool.alloc(3 * GRANULE - 5);
    let addr = block.addr();
    for other in [addr.get() + 1, addr.get() + GRANULE, 0, u64::MAX] {
        let other = Addr::new(other);
        assert_eq!(pool.bfc.bytes_at(other), None);
        let refused = pool.unchanged(|pool| pool.bfc.free_addr(other));
        assert_eq!(refused, Err(FreeError::Unknown));
    }
    assert_eq!(pool.bfc.bytes_at(addr), Some(3 * GRANULE));
    assert_eq!(pool.bfc.free_addr(addr), Ok(3 * GRANULE));
    pool.check();
    assert_eq!(pool.bfc.bytes_at(addr), None);
    let again = pool.unchanged(|pool| pool.bfc.free_addr(addr));
    assert_eq!(again, Err(FreeError::Unknown));
    assert_eq!(pool.bfc.free(block).unwrap_err().error, FreeError::Unknown);
    assert_eq!(pool.bfc.stats().live_bytes, 0);
}

#[test]
fn the_shared_allocator_frees_by_address() {
    let mut bfc = Bfc::with_index(FIXED, table(9), HashIndex::new(slots(16))).expect("it holds");
    bfc.add_region(range(BASE, KIB)).expect("a good region");
    let allocator: BfcAllocator<'_, _, _> = BfcAllocator::new(bfc, Source::new());
    let grant = allocator.alloc(&Request::new(300)).expect("room");
    let addr = grant.block.addr();
    assert_eq!(allocator.bytes_at(addr), Some(512));
    assert_eq!(allocator.free_addr(addr), Ok(512));
    assert_eq!(allocator.free_addr(addr), Err(FreeError::Unknown));
    assert_eq!(allocator.bytes_at(addr), None);
}

#[test]
fn entries_that_were_not_0_as_promised_name_no_wrong_block() {
    for garbage in 0..9 {
        let entries = slots(16);
        entries.fill(garbage);
        let page = Granule::DEFAULT;
        let index = PageIndex::zeroed(Addr::new(BASE), page, entries);
        let mut bfc = Bfc::with_index(FIXED, table(9), index).expect("it holds");
        bfc.add_region(range(BASE, 16 * GRANULE))
            .expect("a good region");
        let mut alloc = |bytes| bfc.alloc(&Request::new(bytes)).expect("room").block;
        let (first, gone, last) = (alloc(2 * GRANULE), alloc(GRANULE), alloc(3 * GRANULE));
        bfc.free(gone).expect("a block");
        for page in 0..16 {
            let addr = Addr::new(BASE + page * GRANULE);
            let expected = [&first, &last]
                .into_iter()
                .find(|block| block.addr() == addr)
                .ok_or(FreeError::Unknown);
            assert_eq!(bfc.block_from_addr(addr).as_ref().map_err(|e| *e), expected);
            assert_eq!(bfc.bytes_at(addr), expected.ok().map(Block::bytes));
        }
    }
}
