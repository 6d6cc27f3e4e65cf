//! CONFORMANCE 8.7: chunks freed with a count of the stream, requests for a count, and the forced merge.

use crate::common::{Alike, Call, MIB, Upstream, range};
use larder_core::Block;

/// A pool with the shared counter of frees attached.
struct Timed {
    pool: Upstream,
    count: u64,
}

impl Timed {
    /// One region of `granules` granules at 0x1000, all of it in blocks of one granule.
    fn full(granules: u64, limit: u64) -> (Self, Vec<Option<Block>>) {
        let mut pool = Upstream::with_regions(limit, &[(0x1000, granules * 256)]);
        let blocks = (0..granules).map(|_| Some(pool.alloc(256))).collect();
        (Self { pool, count: 0 }, blocks)
    }

    #[track_caller]
    fn free(&mut self, block: &mut Option<Block>) {
        self.count += 1;
        let block = block.take().expect("freed once");
        self.pool.free_at(block, self.count);
    }

    /// Counts below `count` are safe.
    fn set_safe_frontier(&mut self, count: u64) {
        self.pool.bfc.set_safe_frontier(count);
    }

    fn alloc_freed_before(&mut self, bytes: u64, count: u64) -> Option<Block> {
        self.pool.alloc_freed_by(bytes, count)
    }

    fn free_granules(&self) -> Vec<(u64, u64)> {
        let chunks = self.pool.free_chunks();
        chunks
            .iter()
            .map(|(addr, bytes)| ((addr - 0x1000) / 256, bytes / 256))
            .collect()
    }
}

#[test]
fn s8_7_a_freed_chunk_stays_uncoalesced_until_the_frontier_has_passed_its_count() {
    let (mut timed, mut blocks) = Timed::full(8, 8 * 256);
    for block in &mut blocks[..4] {
        timed.free(block);
    }
    assert_eq!(timed.free_granules(), [(0, 1), (1, 1), (2, 1), (3, 1)]);
    // Safe is what was freed before the completed point: counts 1 and 2.
    timed.set_safe_frontier(3);
    let pair = timed
        .alloc_freed_before(512, 1)
        .expect("the first two have merged");
    assert_eq!(pair.addr().get(), 0x1000);
    assert_eq!(
        timed.free_granules(),
        [(2, 1), (3, 1)],
        "3 and 4 are not safe"
    );
    assert!(timed.alloc_freed_before(512, 2).is_none());
    timed.set_safe_frontier(4);
    assert!(
        timed.alloc_freed_before(512, 2).is_none(),
        "4 is not below 4"
    );
    timed.set_safe_frontier(5);
    assert!(timed.alloc_freed_before(512, 2).is_some());
}

#[test]
fn s8_7_a_free_neighbour_without_a_count_is_not_coalesced_with_either() {
    let (mut timed, mut blocks) = Timed::full(4, 4 * 256);
    timed.pool.free(blocks[1].take().expect("a block"));
    timed.free(&mut blocks[0]);
    timed.free(&mut blocks[2]);
    assert_eq!(timed.free_granules(), [(0, 1), (1, 1), (2, 1)]);
    timed.set_safe_frontier(3);
    assert!(
        timed.alloc_freed_before(768, 1).is_some(),
        "all three merged"
    );
}

#[test]
fn s8_7_a_demand_skips_chunks_freed_later_and_no_demand_takes_any() {
    let (mut timed, mut blocks) = Timed::full(4, 4 * 256);
    timed.free(&mut blocks[2]); // count 1
    timed.free(&mut blocks[0]); // count 2
    let old = timed.alloc_freed_before(256, 1).expect("freed at 1");
    assert_eq!(old.addr().get(), 0x1000 + 512, "the lower one is too young");
    assert!(timed.alloc_freed_before(256, 1).is_none());
    let young = timed
        .alloc_freed_before(256, 2)
        .expect("freed at 2 is not after 2");
    assert_eq!(young.addr().get(), 0x1000);
    timed.free(&mut Some(old)); // count 3
    timed.free(&mut Some(young)); // count 4
    assert_eq!(
        timed.pool.alloc(256).addr().get(),
        0x1000,
        "without a demand: lowest address"
    );
}

#[test]
fn s8_7_an_old_larger_chunk_serves_a_demand_that_the_best_fit_is_too_young_for() {
    let (mut timed, mut blocks) = Timed::full(8, 8 * 256);
    for i in [4, 5, 6] {
        timed.pool.free(blocks[i].take().expect("a block"));
    }
    timed.free(&mut blocks[0]);
    timed.free(&mut blocks[2]);
    let block = timed.alloc_freed_before(256, 1).expect("count 1");
    assert_eq!(block.addr().get(), 0x1000);
    let block = timed.alloc_freed_before(256, 1).expect("never with_point");
    assert_eq!(block.addr().get(), 0x1000 + 4 * 256);
}

#[test]
fn s8_7_without_a_demand_counts_are_merged_by_force_before_failing() {
    let (mut timed, mut blocks) = Timed::full(6, 6 * 256);
    for block in &mut blocks[1..4] {
        timed.free(block);
    }
    assert!(
        timed.alloc_freed_before(512, 3).is_none(),
        "a demand never forces"
    );
    assert_eq!(timed.free_granules(), [(1, 1), (2, 1), (3, 1)]);
    let block = timed.pool.alloc(512);
    assert_eq!(block.bytes(), 512);
    assert_eq!(
        timed.free_granules().len(),
        1,
        "merged until one was large enough, not further"
    );
    assert!(timed.pool.try_alloc(512).is_none());
}

#[test]
fn s8_7_growing_goes_before_forced_merging() {
    let (mut timed, mut blocks) = Timed::full(4, 4 * 256 + MIB);
    timed.free(&mut blocks[0]);
    timed.free(&mut blocks[1]);
    let _block = timed.pool.alloc(512);
    assert_eq!(timed.pool.source.take_log().len(), 1, "a new region");
    assert_eq!(timed.free_granules()[..2], [(0, 1), (1, 1)]);
}

#[test]
fn s8_7_what_is_merged_by_force_carries_the_latest_count() {
    let (mut timed, mut blocks) = Timed::full(6, 6 * 256);
    for block in &mut blocks[..4] {
        timed.free(block); // counts 1 to 4
    }
    // All four must be merged for this, and it cannot be had: the fifth is in use.
    assert!(timed.pool.try_alloc(5 * 256).is_none());
    assert_eq!(timed.free_granules(), [(0, 4)]);
    assert!(timed.alloc_freed_before(256, 3).is_none());
    let block = timed.alloc_freed_before(256, 4).expect("count 4");
    assert_eq!(block.addr().get(), 0x1000);
    assert!(
        timed.alloc_freed_before(256, 3).is_none(),
        "the rest keeps the count"
    );
    timed.set_safe_frontier(5);
    assert!(timed.alloc_freed_before(256, 3).is_some());
}

/// Upstream keeps a queue in the order of freeing and merges along it; CONFORMANCE 8.3 and 8.7 name the
/// queue but not the order.
#[test]
fn s8_7_forced_merging_goes_in_the_order_of_freeing() {
    let (mut timed, mut blocks) = Timed::full(6, 6 * 256);
    for i in [4, 3, 1, 0] {
        timed.free(&mut blocks[i]);
    }
    assert_eq!(timed.pool.alloc(512).addr().get(), 0x1000 + 3 * 256);
}

#[test]
fn s8_7_collection_takes_no_region_whose_chunks_are_not_safe() {
    let mut pool = Upstream::collecting(4 * 256);
    pool.bfc.add_region(range(0x1000, 512));
    pool.source.hand_out(range(0x1000, 512));
    let block = pool.alloc(512);
    pool.free_at(block, 5);
    assert!(pool.alloc_freed_by(1024, 9).is_none());
    assert_eq!(pool.source.take_log(), [], "work may still use it");
    pool.bfc.set_safe_frontier(6);
    assert!(pool.alloc_freed_by(1024, 9).is_some());
    assert_eq!(
        pool.source.take_log(),
        [Call::Release(512), Call::Grow(1024)]
    );
}

#[test]
fn s8_7_a_count_below_the_frontier_is_coalesced_as_a_plain_free() {
    let (mut timed, mut blocks) = Timed::full(4, 4 * 256);
    timed.set_safe_frontier(100);
    timed.free(&mut blocks[0]);
    timed.free(&mut blocks[1]);
    assert!(timed.alloc_freed_before(512, 1).is_some());
}
