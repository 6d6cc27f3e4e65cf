//! Tests of a device's allocator that scripts cannot express: devices of any size, streams that cannot be told apart,
//! full tables, and threads that run out of memory at the same time.

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::setup::Setup;
use common::{MIB, alone, alone_and_clean, assert_clean, fill, streams};
use larder_core::{Block, ChunkState};
use larder_cuda::{
    ArenaPolicy, Context, DeviceAllocError, DeviceAllocator, DeviceConfig, DriverError,
};

/// Eight times the memory of this device would be more addresses than the core supports.
#[test]
fn a_device_of_any_size_has_an_allocator() {
    alone_and_clean(|control| {
        control.reset(2, 500 << 30);
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::new(&context).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let block = memory.alloc(&stream, 300 << 30).unwrap();
        memory.free(&stream, block).unwrap();
        drop(memory);
        let config = DeviceConfig {
            address_bytes: 2 << 40,
            ..DeviceConfig::new()
        };
        let error = DeviceAllocator::with_config(&context, config).unwrap_err();
        let size = DriverError::Size { bytes: 2 << 40 };
        assert_eq!(error, DeviceAllocError::Driver(size));
    });
}

/// The default streams of all contexts have the same handle, and so have the per-thread default streams of all threads.
/// Memory that one of them freed must not go to another without a wait.
#[test]
fn a_stream_that_could_be_another_one_is_refused() {
    alone_and_clean(|control| {
        let (context, other) = (Context::new(0).unwrap(), Context::new(1).unwrap());
        let memory = DeviceAllocator::new(&context).unwrap();
        let ours = context.cudarc().default_stream();
        let block = memory.alloc(&ours, MIB).unwrap();
        let refused = Err(DeviceAllocError::Stream);
        assert_eq!(memory.alloc(&other.cudarc().default_stream(), MIB), refused);
        assert_eq!(
            memory.alloc(&other.cudarc().new_stream().unwrap(), MIB),
            refused
        );
        let per_thread = context.cudarc().per_thread_stream();
        assert_eq!(memory.alloc(&per_thread, MIB), refused);

        // A free on such a stream waits for the stream.
        control.schedule_deferred(3);
        fill(&per_thread, block.addr().get(), MIB, 1);
        memory.free(&per_thread, block).unwrap();
        assert_eq!(context.is_done(&per_thread), Ok(true));
        let block = memory.alloc(&ours, MIB).unwrap();
        fill(&ours, block.addr().get(), MIB, 2);
        memory.free(&ours, block).unwrap();
        context.synchronize().unwrap();
        control.schedule_eagerly();
    });
}

/// The host waits for the per-thread default stream; it must wait for the other stream too.
#[test]
fn a_block_is_kept_for_all_its_streams_though_the_first_has_no_stream_id() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..5 {
        let context = Context::new(0).unwrap();
        {
            let config = DeviceConfig::with_budget(4 * MIB);
            let memory = DeviceAllocator::with_config(&context, config).unwrap();
            let streams = streams(&context, 2);
            let own = context.cudarc().per_thread_stream();
            let block = memory.alloc(&streams[0], 3 * MIB).unwrap();
            control.schedule_deferred(seed);
            for step in 0..20 {
                fill(&streams[0], block.addr().get(), 4096, step);
            }
            memory
                .free_used_on(&[own, streams[0].clone()], block)
                .unwrap();
            let block = memory.alloc(&streams[1], 3 * MIB).unwrap();
            fill(&streams[1], block.addr().get(), 4096, 9);
            memory.free(&streams[1], block).unwrap();
            context.synchronize().unwrap();
            control.schedule_eagerly();
        }
        drop(context);
        assert_clean(control);
    }
}

/// First the arena's table fills up, then the allocator's. Then allocations fail, and frees recover everything.
#[test]
fn more_small_blocks_than_there_is_room_for_are_an_error() {
    alone_and_clean(|_| {
        let config = DeviceConfig {
            arenas: ArenaPolicy::Always,
            ..DeviceConfig::new()
        };
        let setup = Setup::new(2, config);
        for _ in 0..2 {
            let mut blocks = Vec::new();
            let error = loop {
                match setup.memory.alloc(&setup.streams[0], 1) {
                    Ok(block) => blocks.push(block),
                    Err(error) => break error,
                }
                assert!(blocks.len() < 1 << 20, "no end");
            };
            assert!(
                matches!(error, DeviceAllocError::Memory { .. }),
                "{error:?}"
            );
            let live: u64 = blocks.iter().map(Block::bytes).sum();
            assert_eq!(setup.memory.stats().live_bytes, live);
            for (index, block) in blocks.into_iter().enumerate() {
                setup.free(index % 2, block);
            }
            assert_eq!(setup.memory.stats().live_bytes, 0);
            // The first release may only record events; the second one releases the rest.
            for _ in 0..2 {
                setup.context.synchronize().unwrap();
                setup.memory.release(u64::MAX);
            }
            assert_eq!(setup.memory.stats().reserved_bytes, 0);
        }
    });
}

/// When two threads run out of memory at the same time, memory that one of them finds to be settled serves the other
/// too.
#[test]
fn threads_that_are_short_together_both_get_what_has_passed() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..10 {
        let setup = Setup::new(4, DeviceConfig::with_budget(8 * MIB));
        control.schedule_deferred(seed);
        thread::scope(|scope| {
            for mine in 0..2_usize {
                let setup = &setup;
                scope.spawn(move || {
                    // Each thread needs at most half of the budget.
                    for step in 0..200_usize {
                        let (own, other) = (mine * 2, mine * 2 + 1);
                        let block = setup.alloc(own, 4 * MIB, 1);
                        let used = [setup.streams[own].clone(), setup.streams[other].clone()];
                        setup.memory.order_after(&used[1], &used[0]).unwrap();
                        fill(&used[1], block.addr().get(), 64, 2);
                        match step % 3 {
                            0 => setup.memory.free_used_on(&used, block).unwrap(),
                            1 => setup.free(other, block),
                            _ => {
                                setup.memory.order_after(&used[0], &used[1]).unwrap();
                                setup.free(own, block);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        control.schedule_eagerly();
        drop(setup);
        assert_clean(control);
    }
}

#[test]
fn a_snapshot_is_of_one_moment() {
    alone_and_clean(|_| {
        let config = DeviceConfig {
            arenas: ArenaPolicy::Never,
            ..DeviceConfig::new()
        };
        let setup = Setup::new(2, config);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for mine in 0..2 {
                let (setup, over) = (&setup, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let blocks = [3 * MIB, 900, 70_000].map(|bytes| {
                            let stream = &setup.streams[mine];
                            setup.memory.alloc(stream, bytes).unwrap()
                        });
                        for block in blocks {
                            setup.free(mine, block);
                        }
                    }
                });
            }
            for _ in 0..300 {
                let snapshot = setup.memory.snapshot();
                let used = snapshot.chunks.iter().filter_map(|chunk| {
                    let used = matches!(chunk.state, ChunkState::Used { .. });
                    used.then(|| chunk.range.bytes())
                });
                let used: u64 = used.sum();
                if used != snapshot.stats.live_bytes {
                    over.store(true, Ordering::Relaxed);
                }
                assert_eq!(used, snapshot.stats.live_bytes);
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}
