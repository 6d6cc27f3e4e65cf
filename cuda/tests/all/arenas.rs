//! Arenas of streams: any stream that is short of memory gets the memory that they hold, blocks that
//! several streams used are reused once all have passed, and the counters report the requested bytes.

use crate::common;

use std::thread;

use common::setup::Setup;
use common::{MIB, alone, alone_and_clean, assert_clean, assert_filled, fill, ran_in_child};
use larder_core::{AllocError, Block, ChunkState};
use larder_cuda::driver::Rule;
use larder_cuda::{ArenaPolicy, DeviceAllocError, DeviceAllocator, DeviceConfig};

/// Seeds of deferred schedules.
const SEEDS: u64 = 20;

/// The bytes that an arena takes at a time.
const PIECE: u64 = 2 * MIB;

/// The size of a block that an arena serves.
const SMALL: u64 = 40_000;

fn with_arenas(config: DeviceConfig) -> DeviceConfig {
    DeviceConfig {
        arenas: ArenaPolicy::Always,
        ..config
    }
}

/// Eagerly, and under each seed; each time with an allocator of its own that leaves nothing.
fn under_all_schedules(streams: usize, config: DeviceConfig, act: impl Fn(&Setup)) {
    alone_and_clean(|control| {
        common::under_all_schedules(control, SEEDS, || {
            act(&Setup::new(streams, with_arenas(config.clone())));
            assert_clean(control);
        });
    });
}

/// Two pages and a half, so that the second one is the arena's or the large block's.
const SHORT: u64 = 4 * MIB;

#[test]
fn a_piece_that_another_stream_used_last_goes_to_whoever_is_short() {
    under_all_schedules(2, DeviceConfig::with_budget(SHORT), |setup| {
        for round in 0..3 {
            let small = setup.alloc(0, SMALL, 1);
            setup.pass(&small, 0, 1, 2);
            setup.free(1, small);
            // No room beside the piece, which no block is in.
            let stream = round % 2;
            let large = setup.alloc(stream, SHORT, 3);
            assert_filled(&setup.streams[stream], large.addr().get(), SHORT, 3);
            setup.free(stream, large);
        }
    });
}

#[test]
fn a_piece_that_several_streams_used_goes_to_whoever_is_short() {
    under_all_schedules(3, DeviceConfig::with_budget(SHORT), |setup| {
        for round in 0..4 {
            let small = setup.alloc(0, SMALL, 1);
            setup.pass(&small, 0, 1, 2);
            let mut users = setup.streams[..2].to_vec();
            users.rotate_left(round % 2);
            setup.memory.free_used_on(&users, small).unwrap();
            let large = setup.alloc(2, SHORT, 3);
            assert_filled(&setup.streams[2], large.addr().get(), SHORT, 3);
            setup.free(2, large);
        }
    });
}

#[test]
fn what_an_arena_does_not_use_is_released() {
    under_all_schedules(2, DeviceConfig::new(), |setup| {
        let small = setup.alloc(0, SMALL, 1);
        setup.pass(&small, 0, 1, 2);
        setup.free(1, small);
        setup.context.synchronize().unwrap();
        let held = setup.memory.stats().reserved_bytes;
        let released = setup.memory.release(u64::MAX);
        assert_eq!((released.now_bytes, released.later_bytes), (held, 0));
        assert_eq!(setup.memory.stats().reserved_bytes, 0);
    });
}

#[test]
fn a_piece_before_one_that_is_in_use_goes_back_to_the_core() {
    alone_and_clean(|_| {
        let setup = Setup::new(1, with_arenas(DeviceConfig::new()));
        let mut blocks: Vec<_> = (0..200).map(|_| setup.alloc(0, SMALL, 1)).collect();
        blocks.sort_by_key(Block::addr);
        let last = blocks.pop().unwrap();
        for block in blocks {
            setup.free(0, block);
        }
        setup.context.synchronize().unwrap();
        setup.memory.release(u64::MAX);
        assert_eq!(setup.memory.stats().reserved_bytes, PIECE);
        setup.free(0, last);
    });
}

/// One stream makes, another takes: what has passed is used again before the arena takes more.
#[test]
fn blocks_that_another_stream_frees_are_used_again() {
    if ran_in_child() {
        return;
    }
    under_all_schedules(2, DeviceConfig::new(), |setup| {
        // Much that is free, so that the arena could grow for long.
        let large = setup.alloc(1, 64 * MIB, 1);
        setup.free(1, large);
        setup.context.synchronize().unwrap();
        setup.memory.release(0);
        for _ in 0..common::rounds(1000) {
            let small = setup.alloc(0, SMALL, 1);
            setup.pass(&small, 0, 1, 2);
            setup.free(1, small);
            setup.context.synchronize().unwrap();
        }
        let held: u64 = setup.memory.streams().iter().map(|s| s.arena_bytes).sum();
        assert!(held <= 2 * PIECE, "{held}");
    });
}

#[test]
fn streams_count_the_blocks_that_were_asked_for() {
    under_all_schedules(2, DeviceConfig::new(), |setup| {
        let sizes = [SMALL, 300, 64 << 10, 3 * MIB, MIB];
        let blocks: Vec<_> = sizes.map(|bytes| setup.alloc(0, bytes, 1)).into();
        let granted: u64 = blocks.iter().map(Block::bytes).sum();
        assert_eq!(setup.memory.stats().live_bytes, granted);
        for (index, block) in blocks.into_iter().enumerate() {
            setup.pass(&block, 0, 1, 2);
            setup.free(index % 2, block);
        }
        setup.context.synchronize().unwrap();
        setup.memory.release(u64::MAX);
        assert_eq!(setup.memory.stats().live_bytes, 0);
        let handle = setup.streams[0].cu_stream().addr();
        let streams = setup.memory.streams();
        let first = streams.iter().find(|stats| stats.stream == handle).unwrap();
        assert_eq!(first.allocations, sizes.len() as u64);
        assert_eq!(first.allocated_bytes, granted);
        let frees: u64 = streams.iter().map(|stats| stats.frees).sum();
        let freed: u64 = streams.iter().map(|stats| stats.freed_bytes).sum();
        assert_eq!((frees, freed), (sizes.len() as u64, granted));
    });
}

/// What a snapshot says of its chunks and of arenas is what its counters say.
#[track_caller]
fn assert_consistent(memory: &DeviceAllocator, live: u64) {
    let snapshot = memory.snapshot();
    let of = |wanted: fn(&ChunkState) -> bool| -> u64 {
        let chunks = snapshot.chunks.iter();
        let chunks = chunks.filter(|chunk| wanted(&chunk.state));
        chunks.map(|chunk| chunk.range.bytes()).sum()
    };
    let used = of(|state| matches!(state, ChunkState::Used { .. }));
    assert_eq!(snapshot.stats.live_bytes, live);
    let arenas: u64 = snapshot.streams.iter().map(|s| s.arena_bytes).sum();
    // Blocks of arenas, and those of the core alone.
    assert!(
        used >= live && used - live <= arenas,
        "{used} {live} {arenas}"
    );
    let overlap = |pair: &[larder_cuda::DeviceChunk]| pair[0].range.overlaps(pair[1].range);
    assert!(!snapshot.chunks.windows(2).any(overlap));
}

#[test]
fn a_snapshot_agrees_with_itself() {
    under_all_schedules(3, DeviceConfig::new(), |setup| {
        let mut live = Vec::new();
        let mut bytes = 0;
        for index in 0..60_u64 {
            let stream = index as usize % 3;
            let block = setup.alloc(stream, [SMALL, 3000, 5 * MIB / 2][index as usize % 3], 1);
            bytes += block.bytes();
            live.push((stream, block));
            if index % 3 == 0 {
                let (stream, block) = live.remove(index as usize / 3 % live.len());
                bytes -= block.bytes();
                let to = (stream + index as usize % 2) % 3;
                setup.pass(&block, stream, to, 2);
                setup.free(to, block);
            }
            assert_consistent(&setup.memory, bytes);
        }
        for (stream, block) in live {
            setup.free(stream, block);
        }
        assert_consistent(&setup.memory, 0);
    });
}

/// The arena's table, then the allocator's own, then an error; and all of it comes back.
#[test]
fn more_small_blocks_than_there_is_room_for_are_an_error() {
    alone_and_clean(|_| {
        let setup = Setup::new(2, with_arenas(DeviceConfig::new()));
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
            // The first one may queue events, behind which the rest goes.
            for _ in 0..2 {
                setup.context.synchronize().unwrap();
                setup.memory.release(u64::MAX);
            }
            assert_eq!(setup.memory.stats().reserved_bytes, 0);
        }
    });
}

#[test]
fn an_error_has_the_numbers_of_what_is_live() {
    under_all_schedules(2, DeviceConfig::with_budget(8 * MIB), |setup| {
        let small = setup.alloc(0, SMALL, 1);
        let large = setup.alloc(1, 4 * MIB, 1);
        let error = setup.memory.alloc(&setup.streams[0], 7 * MIB).unwrap_err();
        let DeviceAllocError::Memory {
            reason: AllocError::OutOfMemory(out),
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(out.requested_bytes, 7 * MIB);
        assert_eq!(out.limit_bytes, 8 * MIB);
        let stats = setup.memory.stats();
        assert_eq!(out.live_bytes, stats.live_bytes);
        assert_eq!(out.live_bytes, small.bytes() + large.bytes());
        setup.free(0, small);
        setup.free(1, large);
    });
}

/// What an allocation of the core could give at once is not waited for because an arena would like a
/// whole piece.
#[test]
fn a_small_block_that_fits_makes_nobody_wait() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..SEEDS {
        let setup = Setup::new(2, with_arenas(DeviceConfig::with_budget(8 * MIB)));
        let rest = setup.alloc(0, 7 * MIB, 1);
        let pending = setup.alloc(1, MIB / 2, 1);
        control.schedule_deferred(seed);
        for value in 0..60 {
            fill(
                &setup.streams[1],
                pending.addr().get(),
                pending.bytes(),
                value,
            );
        }
        setup.free(1, pending);
        control.reset_calls();
        let small = setup.alloc(0, SMALL, 1);
        assert_eq!(control.calls(Some("cuEventSynchronize")), 0);
        setup.free(0, small);
        setup.free(0, rest);
        control.schedule_eagerly();
        drop(setup);
        assert_clean(control);
    }
}

#[test]
fn a_block_taken_apart_is_found_in_its_arena() {
    alone_and_clean(|_| {
        let setup = Setup::new(2, with_arenas(DeviceConfig::new()));
        let blocks: Vec<_> = (0..6_u64)
            .map(|index| {
                setup.alloc(
                    index as usize % 2,
                    [SMALL, 3 * MIB, 100][index as usize % 3],
                    1,
                )
            })
            .collect();
        let raw: Vec<_> = blocks
            .into_iter()
            .map(|block| (block.bytes(), block.into_raw()))
            .collect();
        for (index, (bytes, raw)) in raw.iter().enumerate() {
            let block = setup.memory.block_from_raw(*raw).unwrap();
            assert_eq!((block.addr(), block.bytes()), (raw.addr, *bytes));
            setup.free(index % 2, block);
            setup.memory.block_from_raw(*raw).unwrap_err();
        }
        assert_eq!(setup.memory.stats().live_bytes, 0);
    });
}

/// Any refused call while arenas grow and shrink loses nothing.
#[test]
fn a_refused_call_leaves_arenas_whole() {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    // Every fourth call, or all of them.
    let apart = if common::all_faults() { 1 } else { 4 };
    for skip in (0..).step_by(apart) {
        let setup = Setup::new(2, with_arenas(DeviceConfig::with_budget(8 * MIB)));
        control.schedule_deferred(skip);
        let rule = Rule::any().after(skip);
        let before = control.calls(None);
        control.fail(rule).unwrap();
        let mut live: Vec<(usize, Block)> = Vec::new();
        for step in 0..60_usize {
            let stream = step % 2;
            let bytes = [SMALL, 64 << 10, 3 * MIB, 500][step % 4];
            match setup.memory.alloc(&setup.streams[stream], bytes) {
                Ok(block) => live.push((stream, block)),
                Err(DeviceAllocError::Memory { .. } | DeviceAllocError::Driver(_)) => {}
                Err(other) => panic!("{other}"),
            }
            if step % 16 == 15 {
                setup.memory.release(MIB);
            }
            while live.len() > 5 {
                let (stream, block) = live.remove(step % 3);
                let to = (stream + step) % 2;
                if setup
                    .memory
                    .order_after(&setup.streams[to], &setup.streams[stream])
                    .is_ok()
                {
                    setup.free(to, block);
                } else {
                    setup.free(stream, block);
                }
            }
        }
        control.clear_failures();
        let happened = control.calls(None) - before > skip;
        for (stream, block) in live {
            setup.free(stream, block);
        }
        control.schedule_eagerly();
        // What the driver refused to take back counts against the limit.
        let lost = setup.memory.page_stats().lost_bytes;
        let large = setup.alloc(0, 8 * MIB - lost, 1);
        setup.free(0, large);
        assert_eq!(setup.memory.stats().live_bytes, 0, "{skip}");
        drop(setup);
        assert_clean(control);
        if !happened {
            assert!(skip > 50);
            return;
        }
    }
}

/// Threads, two on each stream, hand blocks over, release and grow at the same time.
#[test]
fn threads_on_the_same_streams_keep_their_bytes() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..6 {
        let setup = Setup::new(2, with_arenas(DeviceConfig::with_budget(24 * MIB)));
        control.schedule_deferred(seed);
        let (send, receive) = std::sync::mpsc::channel::<Block>();
        let receive = std::sync::Mutex::new(receive);
        thread::scope(|scope| {
            for mine in 0..4_usize {
                let (setup, send, receive) = (&setup, send.clone(), &receive);
                scope.spawn(move || {
                    let stream = mine % 2;
                    let queue = &setup.streams[stream];
                    for step in 0..150_usize {
                        let bytes = [SMALL, 64 << 10, 900, 3 * MIB][(step + mine) % 4];
                        let Ok(block) = setup.memory.alloc(queue, bytes) else {
                            continue;
                        };
                        let value = (step * 4 + mine) as u8;
                        fill(queue, block.addr().get(), 64, value);
                        if step % 5 == 0 {
                            assert_filled(queue, block.addr().get(), 64, value);
                        }
                        let (own, other) = (&setup.streams[stream], &setup.streams[1 - stream]);
                        match step % 4 {
                            0 => {
                                setup.memory.order_after(other, own).unwrap();
                                setup.memory.free(other, block).unwrap();
                            }
                            1 => {
                                let both = [own.clone(), other.clone()];
                                setup.memory.free_used_on(&both, block).unwrap();
                            }
                            // Its work is queued: another thread frees it on the same stream.
                            2 if stream == 0 => send.send(block).unwrap(),
                            _ => setup.memory.free(own, block).unwrap(),
                        }
                        let handed = receive.lock().unwrap().try_recv();
                        if let Ok(block) = handed {
                            setup.memory.free(&setup.streams[0], block).unwrap();
                        }
                        if step % 40 == 39 {
                            setup.memory.release([MIB, u64::MAX][step / 40 % 2]);
                        }
                    }
                });
            }
        });
        drop(send);
        for block in receive.into_inner().unwrap() {
            setup.free(0, block);
        }
        setup.context.synchronize().unwrap();
        // The events that the release records are done at once.
        control.schedule_eagerly();
        setup.memory.release(u64::MAX);
        let stats = setup.memory.stats();
        assert_eq!((stats.live_bytes, stats.reserved_bytes), (0, 0));
        assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        control.schedule_eagerly();
        drop(setup);
        assert_clean(control);
    }
}
