//! Blocks of one size at fixed addresses: [`BlockPool`].

use std::collections::BTreeSet;

use cudarc::driver::{DevicePtrMut, sys};
use larder_cuda::{BlockMove, BlockPool, DeviceAllocError, DeviceConfig};
use larder_model::Random;

use crate::common::graph::Graph;
use crate::common::setup::Setup;
use crate::common::{MIB, alone_and_clean, assert_filled, fill, under_all_schedules};

const SEEDS: u64 = 4;

const MEBIBYTE: usize = MIB as usize;

#[test]
fn a_pool_gives_the_lowest_block_and_its_tail_empties_once_it_is_compact() {
    alone_and_clean(|control| {
        under_all_schedules(control, SEEDS, || {
            let setup = Setup::new(2, DeviceConfig::new());
            let [one, two] = [0, 1].map(|index| &setup.streams[index]);
            let block_bytes = 300 << 10;
            let mut pool = setup.memory.block_pool(one, block_bytes, 200).unwrap();
            let write = |pool: &mut BlockPool, block: usize, value: u8| {
                let mut view = pool.get_mut(block).unwrap();
                let (address, _used) = view.device_ptr_mut(one);
                fill(one, address, block_bytes as u64, value);
            };
            for block in 0..200 {
                assert_eq!(pool.alloc(one), Ok(block));
                write(&mut pool, block, block as u8);
            }
            assert_eq!(pool.alloc(one), Err(DeviceAllocError::Full { max: 200 }));
            let all = pool.committed_bytes();
            for block in (0..200).filter(|block| block % 4 != 0) {
                pool.free(two, block).unwrap();
            }
            assert_eq!(pool.free(two, 1), Err(DeviceAllocError::NotCommitted));
            assert!(pool.get(1).is_none() && pool.get(200).is_none());
            assert_eq!((pool.alloc(two), pool.alloc(one)), (Ok(1), Ok(2)));
            pool.free(one, 1).unwrap();
            pool.free(two, 2).unwrap();
            let moves = pool.compact(one);
            let mut holds: Vec<usize> = (0..50).map(|index| index * 4).collect();
            for BlockMove { from, to } in moves {
                assert!(to < 50 && from >= 50, "{from} to {to}");
                pool.copy(one, from, to).unwrap();
                pool.free(one, from).unwrap();
                let place = holds.iter().position(|held| *held == from);
                holds[place.unwrap()] = to;
            }
            assert!(pool.committed_bytes() <= all / 4 + 2 * MIB);
            assert_eq!(pool.len(), 50);
            for (index, block) in holds.into_iter().enumerate() {
                let bytes = one.clone_dtoh(&pool.get(block).unwrap()).unwrap();
                assert!(bytes.iter().all(|byte| *byte == (index * 4) as u8));
            }
            assert!(pool.compact(one).is_empty());
            let copied = |pool: &mut BlockPool, from, to| {
                pool.copy(two, from, to).unwrap();
                one.clone_dtoh(&pool.get(to).unwrap()).unwrap()[0]
            };
            let values = [0, 3].map(|block| one.clone_dtoh(&pool.get(block).unwrap()).unwrap()[0]);
            assert_eq!(
                (copied(&mut pool, 0, 3), copied(&mut pool, 3, 3)),
                (values[0], values[0])
            );
            write(&mut pool, 3, 99);
            assert_eq!(copied(&mut pool, 3, 0), 99);
            assert_eq!(pool.copy(one, 0, 199), Err(DeviceAllocError::NotCommitted));
        });
    });
}

#[test]
fn a_pool_takes_the_lowest_block_that_has_memory_and_gives_back_every_unit_without_a_block() {
    alone_and_clean(|_| {
        let setup = Setup::new(1, DeviceConfig::new());
        let stream = &setup.streams[0];
        let unit = 2 * MEBIBYTE;
        for (seed, block_bytes) in [(1, 300 << 10), (2, unit), (3, 5 * MEBIBYTE), (4, 64 << 10)] {
            let max = 150;
            let mut pool = setup.memory.block_pool(stream, block_bytes, max).unwrap();
            let units = |block: usize| {
                block * block_bytes / unit..((block + 1) * block_bytes).div_ceil(unit)
            };
            let (mut random, mut used) = (Random::new(seed), BTreeSet::new());
            let backed = |used: &BTreeSet<usize>| -> BTreeSet<usize> {
                used.iter().flat_map(|block| units(*block)).collect()
            };
            for round in 0..1500 {
                // It fills, and then empties.
                if random.index(1500) > round {
                    let has = backed(&used);
                    let mut free = (0..max).filter(|block| !used.contains(block));
                    let lowest = free.clone().next();
                    let backed = free.find(|block| units(*block).all(|unit| has.contains(&unit)));
                    let Some(expected) = backed.or(lowest) else {
                        continue;
                    };
                    assert_eq!(pool.alloc(stream), Ok(expected));
                    used.insert(expected);
                } else if let Some(block) = used.iter().nth(random.index(used.len().max(1))) {
                    let block = *block;
                    pool.free(stream, block).unwrap();
                    used.remove(&block);
                }
                if round % 100 == 99 {
                    let (before, moves) = (backed(&used).len(), pool.compact(stream));
                    assert_eq!(pool.committed_bytes(), (before * unit) as u64);
                    let is_idle = moves.is_empty();
                    for BlockMove { from, to } in moves {
                        assert!(to < from && used.insert(to) && used.remove(&from));
                        pool.free(stream, from).unwrap();
                    }
                    let saved = before - backed(&used).len();
                    assert_eq!(
                        saved == 0,
                        is_idle,
                        "blocks are moved only if a unit is freed"
                    );
                    let free = (0..max).filter(|block| !used.contains(block));
                    let has = backed(&used);
                    let spare = free.filter(|block| units(*block).all(|unit| has.contains(&unit)));
                    let last = has.last().map_or(0, |unit| {
                        used.iter()
                            .filter(|block| units(**block).contains(unit))
                            .count()
                    });
                    let below = spare.filter(|block| units(*block).end <= *has.last().unwrap());
                    assert!(
                        last == 0 || below.count() < last,
                        "the last unit could be emptied"
                    );
                }
                let committed = backed(&used).len() * unit;
                assert_eq!(
                    (pool.len(), pool.committed_bytes()),
                    (used.len(), committed as u64)
                );
            }
            pool.clear(stream).unwrap();
            assert_eq!((pool.len(), pool.committed_bytes()), (0, 0));
        }
    });
}

#[test]
fn a_pool_moves_its_last_blocks_into_a_unit_that_is_new() {
    alone_and_clean(|_| {
        let setup = Setup::new(1, DeviceConfig::new());
        let stream = &setup.streams[0];
        let mut pool = setup.memory.block_pool(stream, MEBIBYTE / 2, 100).unwrap();
        (0..8).for_each(|block| assert_eq!(pool.alloc(stream), Ok(block)));
        (0..4).for_each(|block| pool.free(stream, block).unwrap());
        assert_eq!(
            (pool.alloc(stream), pool.committed_bytes()),
            (Ok(0), 2 * pool.unit_bytes())
        );
        (5..8).for_each(|block| pool.free(stream, block).unwrap());
        assert_eq!(pool.compact(stream), [BlockMove { from: 4, to: 1 }]);
        pool.free(stream, 4).unwrap();
        assert_eq!(pool.committed_bytes(), pool.unit_bytes());
    });
}

#[test]
fn a_cache_that_is_cleared_asleep_needs_no_memory_to_wake() {
    alone_and_clean(|_| {
        let setup = Setup::new(1, DeviceConfig::new());
        let stream = &setup.streams[0];
        let weights = setup.alloc(0, 8 * MIB, 9);
        let mut cache = setup.memory.block_pool(stream, MEBIBYTE, 64).unwrap();
        let first = cache.alloc(stream).unwrap();
        let address = |cache: &mut BlockPool| cache.get_mut(0).unwrap().device_ptr_mut(stream).0;
        let base = address(&mut cache);
        let capture = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(capture).unwrap();
        fill(stream, base, MIB, 77);
        let graph = Graph::end_capture(stream).unwrap();
        (1..48).for_each(|block| assert_eq!(cache.alloc(stream), Ok(block)));
        setup.memory.sleep().unwrap();
        // The other jobs leave room for the weights alone.
        let _ = setup.memory.set_limit(8 * MIB);
        assert!(setup.memory.wake().is_err());
        assert_eq!(cache.alloc(stream), Err(DeviceAllocError::Asleep));
        cache.clear(stream).unwrap();
        assert_eq!(setup.memory.wake(), Ok(8 * MIB));
        assert_eq!(setup.memory.pool_stats().pool_bytes, 8 * MIB);
        assert_filled(stream, weights.addr().get(), 8 * MIB, 9);
        assert!(cache.alloc(stream).is_err());
        let _ = setup.memory.set_limit(64 * MIB);
        assert_eq!(
            (cache.alloc(stream), address(&mut cache)),
            (Ok(first), base)
        );
        graph.launch(stream).unwrap();
        assert_filled(stream, base, MIB, 77);
        setup.free(0, weights);
    });
}
