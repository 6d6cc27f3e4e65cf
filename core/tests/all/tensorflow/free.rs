//! CONFORMANCE 8.5: the joins of a freed chunk, and that regions are kept.

use crate::common::{Alike, Call, GIB, MIB, Source, Upstream, both, both_with_regions};
use larder_model::tensorflow::Bfc;

#[test]
fn s8_5_freeing_coalesces_with_next_then_previous_in_every_order() {
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        // Three blocks between two that stay.
        for mut pool in both_with_regions(&[(0x1000, 5 * 512)]) {
            let _first = pool.alloc(512);
            let mut blocks = [0, 1, 2].map(|_| Some(pool.alloc(512)));
            let _last = pool.alloc(512);
            let mut free = [false; 3];
            for i in order {
                pool.free(blocks[i].take().expect("freed once"));
                free[i] = true;
                let mut runs: Vec<(u64, u64)> = Vec::new();
                for (i, _) in free.iter().enumerate().filter(|(_, free)| **free) {
                    let addr = 0x1200 + 512 * i as u64;
                    match runs.last_mut() {
                        Some(run) if run.0 + run.1 == addr => run.1 += 512,
                        _ => runs.push((addr, 512)),
                    }
                }
                assert_eq!(pool.free_chunks(), runs);
            }
        }
    }
}

#[test]
fn s8_5_whole_free_regions_are_kept() {
    for mut pool in both(GIB) {
        let blocks = [MIB, 2 * MIB].map(|bytes| pool.alloc(bytes));
        pool.free_all(blocks.into());
        assert_eq!(pool.region_mib(), [1, 2]);
        let calls = [Call::Grow(MIB), Call::Grow(2 * MIB)];
        assert_eq!(pool.source().take_log(), calls);
    }
}

#[test]
fn s8_2_adjacent_regions_are_never_merged() {
    let source = Source::contiguous();
    source.gap_bytes.set(0);
    let mut pool = Upstream::over(Bfc::new(3 * MIB), source);
    let blocks = [MIB, 2 * MIB].map(|bytes| pool.alloc(bytes));
    let regions: Vec<_> = pool.bfc.regions().collect();
    let [low, high] = regions[..] else {
        panic!("{regions:?}");
    };
    assert_eq!(low.end(), high.start());
    pool.free_all(blocks.into());
    assert_eq!(pool.free_chunks().len(), 2);
    assert!(pool.try_alloc(3 * MIB).is_none());
}
