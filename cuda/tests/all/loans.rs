//! Memory that is lent to reserved buffers, and recalled: [`Loan`](larder_cuda::Loan).

use std::sync::{Arc, Mutex};

use cudarc::driver::{DevicePtrMut, sys};
use larder_core::limits::LimitAnswer;
use larder_cuda::{
    BlockPool, Context, DeviceAllocError, DeviceAllocator, DeviceConfig, Limits, ReservedBuffer,
};

use crate::common::setup::Setup;
use crate::common::{MIB, alone_and_clean, fill};

const MEBIBYTE: usize = MIB as usize;

/// An allocator with a budget, and three streams.
pub(crate) fn budget(mebibytes: u64) -> Setup {
    Setup::new(3, DeviceConfig::with_budget(mebibytes * MIB))
}

pub(crate) fn commit(
    setup: &Setup,
    buffer: &mut ReservedBuffer<u8>,
    from: usize,
    to: usize,
) -> Result<(), DeviceAllocError> {
    // SAFETY: bytes of any value.
    unsafe { buffer.commit(&setup.streams[0], from * MEBIBYTE..to * MEBIBYTE) }
}

/// A buffer of an allocator with `committed` mebibytes, all but `guaranteed` of which are lent.
pub(crate) fn lent_of(
    setup: &Setup,
    memory: &DeviceAllocator,
    guaranteed: u64,
    committed: usize,
) -> ReservedBuffer<u8> {
    let mut buffer = memory.reserve(&setup.streams[0], 1 << 30).unwrap();
    buffer.loan().set_guaranteed_bytes(guaranteed * MIB);
    commit(setup, &mut buffer, 0, committed).unwrap();
    buffer
}

pub(crate) fn lent(setup: &Setup, guaranteed: u64, committed: usize) -> ReservedBuffer<u8> {
    lent_of(setup, &setup.memory, guaranteed, committed)
}

#[test]
fn a_block_recalls_what_is_missing_and_gets_it_once_the_owner_has_decommitted() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let stream = &setup.streams[0];
        let mut cache = lent(&setup, 8, 24);
        assert_eq!(
            (cache.loan().lent_bytes(), cache.loan().recalled_bytes()),
            (16 * MIB, 0)
        );
        assert!(setup.memory.alloc(stream, 20 * MIB).is_err());
        assert_eq!(cache.loan().recalled_bytes(), 12 * MIB);
        // Asked twice, it is recalled once.
        assert!(setup.memory.alloc(stream, 20 * MIB).is_err());
        assert_eq!(cache.loan().recalled_bytes(), 12 * MIB);
        let refused = commit(&setup, &mut cache, 24, 26);
        assert_eq!(refused, Err(DeviceAllocError::Recalled { bytes: 12 * MIB }));
        cache
            .decommit(stream, 12 * MEBIBYTE..24 * MEBIBYTE)
            .unwrap();
        assert_eq!(
            (cache.loan().lent_bytes(), cache.loan().recalled_bytes()),
            (4 * MIB, 0)
        );
        let block = setup.memory.alloc(stream, 20 * MIB).unwrap();
        // Nothing recalls what is guaranteed, and nothing is recalled if that would not be enough.
        assert!(setup.memory.alloc(stream, 8 * MIB).is_err());
        assert_eq!(cache.loan().recalled_bytes(), 0);
        assert!(setup.memory.alloc(stream, 4 * MIB).is_err());
        assert_eq!(cache.loan().recalled_bytes(), 4 * MIB);
        setup.free(0, block);
        cache.decommit(stream, 8 * MEBIBYTE..12 * MEBIBYTE).unwrap();
        commit(&setup, &mut cache, 8, 24).unwrap();
        cache.loan().set_guaranteed_bytes(24 * MIB);
        assert!(setup.memory.alloc(stream, 20 * MIB).is_err());
        assert_eq!(cache.loan().recalled_bytes(), 0);
    });
}

#[test]
fn a_commit_recalls_within_its_guarantee_and_not_beyond() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let mut first = lent(&setup, 8, 30);
        let mut second = lent(&setup, 16, 2);
        let beyond = commit(&setup, &mut second, 2, 18);
        assert!(
            matches!(beyond, Err(DeviceAllocError::Memory { .. })),
            "{beyond:?}"
        );
        // The part within the guarantee was recalled, all at once.
        assert_eq!(first.loan().recalled_bytes(), 14 * MIB);
        assert_eq!(second.committed_bytes(), 2 * MIB);
        let stream = &setup.streams[0];
        first
            .decommit(stream, 14 * MEBIBYTE..30 * MEBIBYTE)
            .unwrap();
        commit(&setup, &mut second, 2, 18).unwrap();
        assert_eq!(
            (first.loan().recalled_bytes(), second.loan().lent_bytes()),
            (0, 2 * MIB)
        );
        assert!(commit(&setup, &mut second, 18, 20).is_err());
        assert_eq!(
            first.loan().recalled_bytes(),
            0,
            "beyond a guarantee nothing is recalled"
        );
    });
}

#[test]
fn a_callback_gives_back_blocks_while_another_thread_waits_for_them() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let (owner, asker) = (&setup.streams[0], &setup.streams[1]);
        let pool = setup.memory.block_pool(owner, MEBIBYTE, 64).unwrap();
        pool.loan().set_guaranteed_bytes(8 * MIB);
        let pool = Arc::new(Mutex::new((pool, Vec::new())));
        let calls = Arc::new(Mutex::new(Vec::new()));
        {
            let (weak, calls, stream) = (Arc::downgrade(&pool), calls.clone(), owner.clone());
            let give_back = move |bytes| {
                calls.lock().unwrap().push(bytes);
                let Some(pool) = weak.upgrade() else { return };
                let (pool, blocks) = &mut *pool.lock().unwrap();
                while pool.loan().recalled_bytes() > 0 {
                    let block: usize = blocks.pop().unwrap();
                    pool.free(&stream, block).unwrap();
                }
            };
            pool.lock().unwrap().0.loan().on_recall(give_back);
        }
        for value in 0..32 {
            let (pool, blocks) = &mut *pool.lock().unwrap();
            let block = pool.alloc(owner).unwrap();
            fill_block(pool, &setup, block, value);
            blocks.push(block);
        }
        // The memory is still in use on the owner's stream, so the host waits.
        let block = setup.alloc(1, 16 * MIB, 77);
        assert_eq!(*calls.lock().unwrap(), [16 * MIB]);
        assert_eq!(pool.lock().unwrap().0.committed_bytes(), 16 * MIB);
        setup.free(1, block);
        assert!(setup.memory.alloc(asker, 28 * MIB).is_err());
        assert_eq!(
            pool.lock().unwrap().0.committed_bytes(),
            16 * MIB,
            "8 MiB are lent"
        );
        let block = setup.memory.alloc(asker, 24 * MIB).unwrap();
        setup.free(1, block);
        assert_eq!(pool.lock().unwrap().0.committed_bytes(), 8 * MIB);
        let (pool, blocks) = &mut *pool.lock().unwrap();
        assert_eq!(blocks.len(), 8);
        for (index, block) in blocks.iter().enumerate() {
            let bytes = owner.clone_dtoh(&pool.get(*block).unwrap()).unwrap();
            assert!(bytes.iter().all(|byte| *byte == index as u8));
        }
    });
}

fn fill_block(pool: &mut BlockPool, setup: &Setup, block: usize, value: u8) {
    let bytes = pool.block_bytes() as u64;
    let mut view = pool.get_mut(block).unwrap();
    let (address, _used) = view.device_ptr_mut(&setup.streams[0]);
    fill(&setup.streams[0], address, bytes, value);
}

#[test]
fn a_callback_is_called_again_while_it_gives_back_too_little() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let stream = setup.streams[0].clone();
        let cache = Arc::new(Mutex::new((lent(&setup, 0, 32), 0)));
        let weak = Arc::downgrade(&cache);
        cache.lock().unwrap().0.loan().on_recall(move |_| {
            let Some(cache) = weak.upgrade() else { return };
            let (cache, at) = &mut *cache.lock().unwrap();
            let end = (*at + 4) * MEBIBYTE;
            cache.decommit(&stream, *at * MEBIBYTE..end).unwrap();
            *at += 4;
        });
        let block = setup.memory.alloc(&setup.streams[0], 14 * MIB).unwrap();
        assert_eq!(cache.lock().unwrap().1, 16);
        setup.free(0, block);
    });
}

#[test]
fn a_device_without_memory_recalls_what_its_own_allocators_lend() {
    alone_and_clean(|_| {
        let contexts = [0, 1].map(|device| Context::new(device).unwrap());
        let limits = Limits::new(u64::MAX).unwrap();
        let make = |context: &Context| {
            DeviceAllocator::in_budget(context, DeviceConfig::new(), limits.process()).unwrap()
        };
        let reserve = |context: &Context, mebibytes: usize| {
            let stream = context.cudarc().new_stream().unwrap();
            let mut buffer = make(context).reserve::<u8>(&stream, 2 << 30).unwrap();
            buffer.loan().set_guaranteed_bytes(0);
            // SAFETY: bytes of any value.
            unsafe { buffer.commit(&stream, 0..mebibytes * MEBIBYTE) }.unwrap();
            buffer
        };
        let elsewhere = reserve(&contexts[1], 1000);
        let mut cache = reserve(&contexts[0], 900);
        let (blocks, stream) = (make(&contexts[0]), cache.stream().clone());
        assert!(blocks.alloc(&stream, 400 * MIB).is_err());
        assert_eq!(
            (
                cache.loan().recalled_bytes(),
                elsewhere.loan().recalled_bytes()
            ),
            (400 * MIB, 0)
        );
        cache.decommit(&stream, 0..400 * MEBIBYTE).unwrap();
        let block = blocks.alloc(&stream, 400 * MIB).unwrap();
        blocks.free(&stream, block).unwrap();
        drop((cache, elsewhere));
    });
}

#[test]
fn a_callback_may_allocate_and_is_not_called_inside_itself() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let cache = lent(&setup, 0, 32);
        let calls = Arc::new(Mutex::new(0));
        let (memory, stream) = (setup.memory.clone(), setup.streams[0].clone());
        let counted = calls.clone();
        cache.loan().on_recall(move |_| {
            *counted.lock().unwrap() += 1;
            assert!(memory.alloc(&stream, 4 * MIB).is_err());
        });
        assert!(setup.memory.alloc(&setup.streams[0], 2 * MIB).is_err());
        assert_eq!(
            (*calls.lock().unwrap(), cache.loan().recalled_bytes()),
            (1, 4 * MIB)
        );
        // The callback holds the allocator.
        cache.loan().on_recall(|_| {});
    });
}

#[test]
fn a_lowered_limit_recalls_the_excess() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let mut cache = lent(&setup, 8, 24);
        assert_eq!(
            setup.memory.set_limit(16 * MIB),
            LimitAnswer::Deferred { bytes: 8 * MIB }
        );
        assert_eq!(cache.loan().recalled_bytes(), 8 * MIB);
        cache
            .decommit(&setup.streams[0], 8 * MEBIBYTE..16 * MEBIBYTE)
            .unwrap();
        setup.streams[0].synchronize().unwrap();
        setup.memory.end_step();
        assert_eq!(setup.memory.pool_stats().pool_bytes, 16 * MIB);
        assert_eq!(cache.loan().recalled_bytes(), 0);
    });
}

#[test]
fn a_loan_of_one_allocator_serves_another_under_their_budget_and_none_elsewhere() {
    alone_and_clean(|_| {
        let setup = budget(64);
        let limits = Limits::new(64 * MIB).unwrap();
        let [ours, others] = ["ours", "others"].map(|name| limits.process().tenant(name, 32 * MIB));
        let (ours, others) = (ours.unwrap(), others.unwrap());
        let make = |budget| {
            DeviceAllocator::in_budget(&setup.context, DeviceConfig::new(), budget).unwrap()
        };
        let (caches, blocks, elsewhere) = (make(&ours), make(&ours), make(&others));
        let stream = &setup.streams[0];
        let reserve = |memory: &DeviceAllocator| {
            let buffer = memory.reserve::<u8>(stream, 1 << 30).unwrap();
            buffer.loan().set_guaranteed_bytes(0);
            buffer
        };
        let (mut cache, mut other) = (reserve(&caches), reserve(&elsewhere));
        commit(&setup, &mut cache, 0, 24).unwrap();
        commit(&setup, &mut other, 0, 28).unwrap();
        assert!(blocks.alloc(stream, 16 * MIB).is_err());
        assert_eq!(
            (cache.loan().recalled_bytes(), other.loan().recalled_bytes()),
            (8 * MIB, 0)
        );
        cache.decommit(stream, 4 * MEBIBYTE..20 * MEBIBYTE).unwrap();
        stream.synchronize().unwrap();
        let block = blocks.alloc(stream, 16 * MIB).unwrap();
        assert_eq!(ours.usage().used_bytes, 32 * MIB);
        blocks.free(stream, block).unwrap();
        // In a callback, for a block that needs all of the budget.
        let (cache, stream_of) = (Arc::new(Mutex::new(cache)), stream.clone());
        let weak = Arc::downgrade(&cache);
        cache.lock().unwrap().loan().on_recall(move |_| {
            let Some(cache) = weak.upgrade() else { return };
            let mut cache = cache.lock().unwrap();
            cache.decommit(&stream_of, 0..4 * MEBIBYTE).unwrap();
            cache
                .decommit(&stream_of, 20 * MEBIBYTE..24 * MEBIBYTE)
                .unwrap();
        });
        let block = blocks.alloc(stream, 32 * MIB).unwrap();
        assert_eq!(ours.usage().used_bytes, 32 * MIB);
        blocks.free(stream, block).unwrap();
    });
}

#[test]
fn the_loans_with_most_lent_bytes_come_first_and_as_few_as_possible() {
    alone_and_clean(|_| {
        let setup = budget(40);
        let caches = [lent(&setup, 2, 8), lent(&setup, 2, 18), lent(&setup, 2, 14)];
        let recalled = |of: &[ReservedBuffer<u8>; 3]| {
            of.each_ref()
                .map(|cache| cache.loan().recalled_bytes() / MIB)
        };
        assert!(setup.memory.alloc(&setup.streams[0], 20 * MIB).is_err());
        assert_eq!(recalled(&caches), [0, 16, 4]);
        // More than all of it cannot be had.
        assert!(setup.memory.alloc(&setup.streams[0], 36 * MIB).is_err());
        assert_eq!(recalled(&caches), [0, 16, 4]);
        assert!(setup.memory.alloc(&setup.streams[0], 34 * MIB).is_err());
        assert_eq!(recalled(&caches), [6, 16, 12]);
        // A higher guarantee takes back what is beyond it no more.
        caches[1].loan().set_guaranteed_bytes(16 * MIB);
        assert_eq!(recalled(&caches), [6, 2, 12]);
    });
}

#[test]
fn in_a_capture_nothing_is_recalled() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let stream = &setup.streams[0];
        let cache = lent(&setup, 0, 32);
        let capture = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(capture).unwrap();
        let refused = setup.memory.alloc(stream, 2 * MIB);
        assert!(matches!(refused, Err(DeviceAllocError::Capturing)));
        assert_eq!(cache.loan().recalled_bytes(), 0);
        let _ = stream.end_capture(
            sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
        );
    });
}

#[test]
fn threads_trade_lent_memory_for_blocks_and_nobody_is_refused_within_a_guarantee() {
    alone_and_clean(|_| {
        // Two caches with 12 MiB guaranteed each, and blocks of at most 8 MiB: all of the budget.
        let setup = Setup::new(3, DeviceConfig::with_budget(32 * MIB));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (setup, stream) = (&setup, &setup.streams[thread]);
                scope.spawn(move || {
                    let pool = setup.memory.block_pool(stream, MEBIBYTE, 32).unwrap();
                    pool.loan().set_guaranteed_bytes(12 * MIB);
                    let (mut pool, mut blocks) = (pool, Vec::new());
                    for round in 0..400_usize {
                        while pool.loan().recalled_bytes() > 0 {
                            pool.free(stream, blocks.pop().unwrap()).unwrap();
                        }
                        // In turns one cache wants much, and the other one little.
                        let wanted = if round / 40 % 2 == thread { 30 } else { 3 };
                        if blocks.len() > wanted {
                            pool.free(stream, blocks.pop().unwrap()).unwrap();
                        } else if blocks.len() < wanted {
                            match pool.alloc(stream) {
                                Ok(block) => blocks.push(block),
                                Err(
                                    DeviceAllocError::Recalled { .. }
                                    | DeviceAllocError::Memory { .. },
                                ) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                        std::thread::yield_now();
                    }
                    assert!(pool.loan().recalled_bytes() <= pool.loan().lent_bytes());
                });
            }
            let (setup, stream) = (&setup, &setup.streams[2]);
            scope.spawn(move || {
                for round in 0..200 {
                    let bytes = (1 + round % 4) * 2 * MIB;
                    // The owners of the caches decommit at their next calls.
                    let block = (0..1_000_000).find_map(|_| {
                        std::thread::yield_now();
                        setup.memory.alloc(stream, bytes).ok()
                    });
                    setup.memory.free(stream, block.unwrap()).unwrap();
                }
            });
        });
    });
}
