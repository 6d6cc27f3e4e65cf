//! Windows of captures: the memory captured into a graph belongs to the graph as long as the window lives,
//! and memory of it that several streams used is reused behind all of them.

use crate::common;
use std::sync::{Arc, Barrier};
use std::thread;

use crate::programs::kernels::{self, Kernel, Kernels, Launch};
use crate::tensor_pool::rig as tensor_pool;
use common::graph::Graph;
use common::{MIB, alone, alone_and_clean, assert_clean, assert_filled, fill, ran_in_child};
use cudarc::driver::{CudaStream, sys};
use larder_core::{AllocError, Block, Request};
use larder_cuda::{
    ArenaPolicy, CaptureStatus, Context, DeviceAllocError, DeviceAllocator, DeviceConfig,
    DeviceTensorPool, Event, EventConfig, StreamAllocator,
};

/// Seeds of deferred schedules.
const SEEDS: u64 = 40;

const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

struct Setup {
    context: Context,
    memory: DeviceAllocator,
    streams: Vec<Arc<CudaStream>>,
    kernels: Kernels,
}

impl Setup {
    fn new(streams: usize, config: DeviceConfig) -> Self {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, config).unwrap();
        let streams = common::streams(&context, streams);
        for stream in &streams {
            memory.add_stream(stream).unwrap();
        }
        Self {
            kernels: Kernels::load(&context).unwrap(),
            context,
            memory,
            streams,
        }
    }

    fn alloc(&self, stream: usize, bytes: u64) -> Block {
        self.memory.alloc(&self.streams[stream], bytes).unwrap()
    }

    fn free(&self, stream: usize, block: Block) {
        self.memory.free(&self.streams[stream], block).unwrap();
    }

    fn fill(&self, stream: usize, block: &Block, value: u8) {
        let stream = &self.streams[stream];
        fill(stream, block.addr().get(), block.bytes(), value);
    }

    fn launch(&self, stream: usize, kernel: Kernel, blocks: [&Block; 3], value: u32) {
        let [out, left, right] = blocks.map(|block| block.addr().get());
        let launch = Launch {
            out,
            left,
            right,
            words: WORDS,
            value,
        };
        self.kernels
            .launch(&self.streams[stream], kernel, launch)
            .unwrap();
    }

    /// Makes later work of one stream follow that of another, also inside a capture.
    fn follow(&self, stream: usize, after: usize) -> Event {
        let event = Event::new(&self.context, EventConfig::default()).unwrap();
        event.record(&self.streams[after]).unwrap();
        event.wait_on(&self.streams[stream]).unwrap();
        event
    }

    fn captures(&self, stream: usize) -> bool {
        let status = self.context.capture_status(&self.streams[stream]).unwrap();
        status == CaptureStatus::Active
    }
}

/// What kernels work on, in words; and in bytes, which is no block of an arena.
const WORDS: u32 = 50_000;
const BYTES: u64 = 4 * WORDS as u64;

/// Eagerly and under each seed, with and without arenas.
fn under_all_schedules(streams: usize, act: impl Fn(&Setup)) {
    alone_and_clean(|control| {
        kernels::register(control);
        for arenas in [ArenaPolicy::Never, ArenaPolicy::Always] {
            common::under_all_schedules(control, SEEDS / 2, || {
                let config = DeviceConfig {
                    arenas,
                    ..DeviceConfig::new()
                };
                act(&Setup::new(streams, config));
                assert_clean(control);
            });
        }
    });
}

/// Captures on a stream: `out = 2 * (value + i) * 3`, by three blocks of which the last may lie where
/// the first one was.
fn capture(setup: &Setup, stream: usize, out: &Block, value: u32) -> Graph {
    let queue = &setup.streams[stream];
    queue.begin_capture(RELAXED).unwrap();
    let first = setup.alloc(stream, BYTES);
    setup.launch(stream, Kernel::Fill, [&first; 3], value);
    let second = setup.alloc(stream, BYTES);
    setup.launch(stream, Kernel::Scale, [&second, &first, &first], 3);
    setup.free(stream, first);
    let third = setup.alloc(stream, BYTES);
    setup.launch(stream, Kernel::Add, [&third, &second, &second], 0);
    setup.free(stream, second);
    setup.launch(stream, Kernel::Scale, [out, &third, &third], 1);
    setup.free(stream, third);
    Graph::end_capture(queue).unwrap()
}

/// Checks the contents of `out` afterwards.
#[track_caller]
fn assert_captured(setup: &Setup, stream: usize, out: &Block, value: u32) {
    let bytes = common::read(&setup.streams[stream], out.addr().get(), BYTES);
    for (index, word) in bytes.chunks_exact(4).enumerate() {
        let word = u32::from_le_bytes(word.try_into().unwrap());
        assert_eq!(word, (value + index as u32) * 6, "word {index}");
    }
}

#[test]
fn a_graph_keeps_its_memory_while_the_window_lives() {
    if ran_in_child() {
        return;
    }
    under_all_schedules(2, |setup| {
        let out = setup.alloc(0, BYTES);
        let window = setup.memory.prime(&setup.streams[0], 3 * BYTES).unwrap();
        let graph = capture(setup, 0, &out, 5);
        assert!(window.peak_bytes() <= 2 * BYTES.next_multiple_of(256));
        let late = setup.alloc(0, 100);
        window.close();
        // Its last block comes back, and the graph still runs.
        setup.free(0, late);
        for round in 0..3_u8 {
            graph.launch(&setup.streams[0]).unwrap();
            // Others take all they can get, on both streams, while the graph may still run.
            let mut others = Vec::new();
            for index in 0..20_u64 {
                let stream = index as usize % 2;
                let block = setup.alloc(stream, [BYTES, MIB, 900][index as usize % 3]);
                setup.fill(stream, &block, round);
                others.push((stream, block));
            }
            for (stream, block) in others {
                setup.free(stream, block);
            }
            if round == 1 {
                setup.memory.release(u64::MAX);
            }
            assert_captured(setup, 0, &out, 5);
        }
        graph.launch(&setup.streams[0]).unwrap();
        setup.context.synchronize().unwrap();
        drop((graph, window));
        setup.free(0, out);
        assert_eq!(setup.memory.stats().live_bytes, 0);
    });
}

#[test]
fn several_windows_are_open_on_several_streams() {
    if ran_in_child() {
        return;
    }
    under_all_schedules(3, |setup| {
        let outs = [0, 1, 2].map(|stream| setup.alloc(stream, BYTES));
        let windows = [0, 1, 2].map(|stream: usize| {
            let queue = &setup.streams[stream];
            setup.memory.prime(queue, 3 * BYTES).unwrap()
        });
        let graphs = [0, 1, 2].map(|stream| capture(setup, stream, &outs[stream], stream as u32));
        // Their blocks, given back on each other's streams.
        let extra = setup.alloc(0, 100);
        windows.iter().for_each(|window| window.close());
        setup.free(1, extra);
        for _ in 0..2 {
            for (stream, graph) in graphs.iter().enumerate() {
                graph.launch(&setup.streams[stream]).unwrap();
            }
        }
        for (stream, out) in outs.iter().enumerate() {
            assert_captured(setup, stream, out, stream as u32);
        }
        setup.context.synchronize().unwrap();
        drop((graphs, windows));
        for (stream, out) in outs.into_iter().enumerate() {
            setup.free(stream, out);
        }
        setup.memory.release(0);
        assert_eq!(setup.memory.stats().live_bytes, 0);
    });
}

/// A stream that was forked off in the capture uses a block and frees it: the stream of the window has
/// not joined it, so its next block must lie elsewhere.
#[test]
fn a_block_freed_on_a_forked_stream_is_not_given_again_inside() {
    under_all_schedules(2, |setup| {
        for both in [false, true] {
            let out = setup.alloc(0, BYTES);
            let window = setup.memory.prime(&setup.streams[0], 6 * BYTES).unwrap();
            let queue = &setup.streams[0];
            queue.begin_capture(RELAXED).unwrap();
            let fork = setup.follow(1, 0);
            let aside = setup.alloc(0, BYTES);
            setup.launch(1, Kernel::Fill, [&aside; 3], 9);
            setup.launch(1, Kernel::Scale, [&out, &aside, &aside], 6);
            if both {
                let used = [setup.streams[0].clone(), setup.streams[1].clone()];
                setup.memory.free_used_on(&used, aside).unwrap();
            } else {
                setup.free(1, aside);
            }
            let next = setup.alloc(0, BYTES);
            setup.launch(0, Kernel::Fill, [&next; 3], 1);
            let join = setup.follow(0, 1);
            setup.free(0, next);
            let graph = Graph::end_capture(queue).unwrap();
            window.close();
            for _ in 0..2 {
                graph.launch(&setup.streams[0]).unwrap();
                assert_captured(setup, 0, &out, 9);
            }
            drop((graph, window, fork, join));
            setup.free(0, out);
        }
        setup.context.synchronize().unwrap();
        setup.memory.release(0);
        assert_eq!(setup.memory.stats().live_bytes, 0);
    });
}

/// The last block of a window comes back on another stream, whose work the window's own has not waited
/// for.
#[test]
fn a_windows_memory_goes_back_behind_all_that_used_it() {
    under_all_schedules(3, |setup| {
        for (round, held) in [false, true, false, true].into_iter().enumerate() {
            let window = setup.memory.prime(&setup.streams[0], 4 * MIB).unwrap();
            let block = setup.alloc(0, 4 * MIB);
            setup.fill(0, &block, 1);
            let event = setup.follow(1, 0);
            let mut window = Some(window);
            if !held {
                // With a live block, and gone: the block's return ends it.
                window = None;
            }
            for value in 0..4 {
                setup.fill(1, &block, value);
            }
            if round < 2 {
                setup.free(1, block);
            } else {
                let event = setup.follow(2, 0);
                let _ = setup.follow(2, 1);
                setup.fill(2, &block, 9);
                let used = [0, 1, 2].map(|stream: usize| setup.streams[stream].clone());
                setup.memory.free_used_on(&used, block).unwrap();
                drop(event);
            }
            drop(window);
            let next = setup.alloc(0, 4 * MIB);
            setup.fill(0, &next, 77);
            assert_filled(&setup.streams[0], next.addr().get(), next.bytes(), 77);
            setup.free(0, next);
            drop(event);
        }
        setup.context.synchronize().unwrap();
        setup.memory.release(0);
        assert_eq!(setup.memory.stats().live_bytes, 0);
    });
}

#[test]
fn a_small_window_goes_back_where_it_came_from() {
    under_all_schedules(2, |setup| {
        for stream in [0, 1] {
            let window = setup.memory.prime(&setup.streams[0], 10_000).unwrap();
            let block = setup.alloc(0, 5000);
            setup.fill(0, &block, 1);
            let range = block.range();
            let block = setup.memory.block_from_raw(block.into_raw()).unwrap();
            assert_eq!(block.range(), range, "the window itself");
            let event = setup.follow(stream, 0);
            setup.free(stream, block);
            drop((window, event));
            setup.context.synchronize().unwrap();
            setup.memory.release(u64::MAX);
            assert_eq!(setup.memory.stats().live_bytes, 0);
            assert_eq!(setup.memory.stats().reserved_bytes, 0);
        }
    });
}

#[test]
fn a_window_without_room_says_so_and_the_capture_goes_on() {
    under_all_schedules(2, |setup| {
        let window = setup.memory.prime(&setup.streams[0], 1 << 20).unwrap();
        setup.streams[0].begin_capture(RELAXED).unwrap();
        let block = setup.alloc(0, MIB / 2);
        let error = setup.memory.alloc(&setup.streams[0], MIB).unwrap_err();
        let DeviceAllocError::Window {
            reason: AllocError::OutOfMemory(out),
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(out.live_bytes, block.bytes());
        assert_eq!(out.reserved_bytes, window.bytes());
        assert_eq!(out.free_bytes, window.bytes() - block.bytes());
        assert!(setup.captures(0));
        // Another stream is not concerned.
        let other = setup.alloc(1, 3 * MIB);
        setup.free(1, other);
        setup.free(0, block);
        let all = setup.alloc(0, MIB);
        setup.fill(0, &all, 1);
        setup.free(0, all);
        assert!(setup.captures(0));
        drop(Graph::end_capture(&setup.streams[0]).unwrap());
        // Closed by being dropped.
        drop(window);
        let block = setup.alloc(0, 2 * MIB);
        setup.free(0, block);
        assert_eq!(setup.memory.stats().live_bytes, 0);
    });
}

#[test]
fn there_is_one_open_window_of_a_stream_and_none_begins_in_a_capture() {
    under_all_schedules(2, |setup| {
        let queue = &setup.streams[0];
        let first = setup.memory.prime(queue, MIB).unwrap();
        let live = setup.memory.stats().live_bytes;
        let error = setup.memory.prime(queue, MIB).unwrap_err();
        assert_eq!(error, DeviceAllocError::Capturing);
        let of_first = setup.alloc(0, 100);
        first.close();
        let second = setup.memory.prime(queue, MIB).unwrap();
        // The first one's end is not the second one's.
        first.close();
        setup.free(0, of_first);
        drop(first);
        assert_eq!(second.peak_bytes(), 0);
        let of_second = setup.alloc(0, 1000);
        assert_eq!(second.peak_bytes(), of_second.bytes());
        setup.free(0, of_second);
        drop(second);
        queue.begin_capture(RELAXED).unwrap();
        let error = setup.memory.prime(queue, MIB).unwrap_err();
        assert_eq!(error, DeviceAllocError::Capturing);
        assert!(setup.captures(0));
        drop(Graph::end_capture(queue).unwrap());
        assert!(setup.memory.stats().live_bytes < live);
    });
}

/// An event for memory would be the graph's if the capture began just before it, and spoil it once it is asked.
#[test]
fn a_stream_that_may_capture_is_left_alone_until_its_window_is_closed() {
    alone_and_clean(|_| {
        let setup = Setup::new(2, DeviceConfig::with_budget(8 * MIB));
        let memory = &setup.memory;
        let block = setup.alloc(0, 6 * MIB);
        setup.fill(0, &block, 1);
        setup.free(0, block);
        let window = memory.prime(&setup.streams[0], 4096).unwrap();
        let events = || {
            let handle = setup.streams[0].cu_stream().addr();
            let mut streams = memory.streams().into_iter();
            streams.find(|stats| stats.stream == handle).unwrap().events
        };
        let before = events();
        // Of what the stream freed, nothing; and whoever is short waits for it in vain.
        let refused = memory.alloc(&setup.streams[1], 6 * MIB);
        assert!(matches!(refused, Err(DeviceAllocError::Memory { .. })));
        assert_eq!(events(), before);
        // The program itself may order streams.
        memory
            .order_after(&setup.streams[1], &setup.streams[0])
            .unwrap();
        assert_eq!(events(), before + 1);
        window.close();
        drop(window);
        let block = setup.alloc(1, 6 * MIB);
        setup.free(1, block);
    });
}

/// Threads open and close windows of one stream: at most one is open, and whoever has it gets its
/// blocks from it.
#[test]
fn threads_that_prime_one_stream_take_turns() {
    alone_and_clean(|control| {
        kernels::register(control);
        let setup = Setup::new(1, DeviceConfig::new());
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        let barrier = Barrier::new(3);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    barrier.wait();
                    let mut opened = 0;
                    while opened < 300 {
                        let Ok(window) = memory.prime(stream, MIB) else {
                            thread::yield_now();
                            continue;
                        };
                        opened += 1;
                        let block = memory.alloc(stream, 3000).unwrap();
                        assert_eq!(window.peak_bytes(), block.bytes(), "from elsewhere");
                        memory.free(stream, block).unwrap();
                        if opened % 2 == 0 {
                            window.close();
                        }
                    }
                });
            }
        });
        assert_eq!(setup.memory.stats().live_bytes, 0);
    });
}

/// An arena that is full looks what others have passed, which a capture would not survive: so not then.
#[test]
fn a_full_arena_asks_no_events_in_a_capture() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    kernels::register(control);
    let config = DeviceConfig {
        check_captures: false,
        arenas: ArenaPolicy::Always,
        ..DeviceConfig::new()
    };
    for seed in 0..SEEDS {
        let setup = Setup::new(2, config.clone());
        control.schedule_deferred(seed);
        let passed = setup.alloc(0, 60_000);
        let mut blocks = Vec::new();
        for value in 0..40 {
            setup.fill(1, &passed, value);
        }
        setup.free(1, passed);
        // An event of the other stream is recorded, and its work goes on.
        setup.memory.release(0);
        let queue = &setup.streams[0];
        let global = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        queue.begin_capture(global).unwrap();
        control.reset_calls();
        let error = loop {
            match setup.memory.alloc(queue, 60_000) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
        };
        assert_eq!(error, DeviceAllocError::Capturing);
        let calls = control.call_table();
        let asked = calls.iter().find(|(name, _)| name.starts_with("cuEvent"));
        assert_eq!(asked, None);
        assert!(setup.captures(0));
        drop(Graph::end_capture(queue).unwrap());
        for block in blocks {
            setup.free(0, block);
        }
        control.schedule_eagerly();
        drop(setup);
        assert_clean(control);
    }
}

/// Without a window: an error that spoils nothing. Where captures are not looked for, only what the
/// stream has free is given.
#[test]
fn a_capture_without_a_window_gets_no_new_memory() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    kernels::register(control);
    for (check_captures, arenas) in [
        (true, ArenaPolicy::Never),
        (true, ArenaPolicy::Always),
        (false, ArenaPolicy::Never),
        (false, ArenaPolicy::Always),
    ] {
        let config = DeviceConfig {
            check_captures,
            arenas,
            ..DeviceConfig::new()
        };
        let setup = Setup::new(2, config);
        let queue = &setup.streams[0];
        for bytes in [1000, MIB] {
            // What the other stream used last, the first one would have to wait for.
            let block = setup.alloc(0, bytes);
            let other = setup.alloc(1, 6 * MIB);
            setup.fill(1, &other, 1);
            setup.free(1, other);
            setup.fill(0, &block, 1);
            setup.free(0, block);
            control.reset_calls();
            queue.begin_capture(RELAXED).unwrap();
            let answer = setup.memory.alloc(queue, bytes);
            match answer {
                Ok(block) if !check_captures => setup.free(0, block),
                Err(error) if check_captures => assert_eq!(error, DeviceAllocError::Capturing),
                other => panic!("{other:?}"),
            }
            for bytes in [50_000, 5 * MIB, 60 * MIB] {
                match setup.memory.alloc(queue, bytes) {
                    Ok(block) if !check_captures => setup.free(0, block),
                    answer => assert_eq!(answer, Err(DeviceAllocError::Capturing)),
                }
            }
            let calls = control.call_table();
            let mapped = calls
                .iter()
                .find(|(name, _)| name.starts_with("cuMemCreate") || name.starts_with("cuEvent"));
            assert_eq!(mapped, None);
            assert!(setup.captures(0));
            drop(Graph::end_capture(queue).unwrap());
        }
        assert_eq!(setup.memory.stats().live_bytes, 0);
        setup.context.synchronize().unwrap();
        drop(setup);
        assert_clean(control);
    }
}

/// As a program makes it: in every build, for blocks of an arena, of the core and of a plan.
#[test]
fn an_allocator_as_it_comes_gives_a_capture_nothing() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for arenas in [ArenaPolicy::Never, ArenaPolicy::Always] {
        let config = DeviceConfig {
            arenas,
            ..DeviceConfig::new()
        };
        let setup = Setup::new(2, config);
        let (memory, queue) = (&setup.memory, &setup.streams[0]);
        for _ in 0..4 {
            let _step = memory.step(&setup.streams[1]).unwrap();
            let block = setup.alloc(1, MIB);
            setup.free(1, block);
        }
        for (stream, bytes) in [(0, 1000), (0, MIB), (1, MIB)] {
            let queue = &setup.streams[stream];
            let block = setup.alloc(stream, bytes);
            setup.free(stream, block);
            queue.begin_capture(RELAXED).unwrap();
            let given = memory.alloc(queue, bytes);
            assert_eq!(given, Err(DeviceAllocError::Capturing));
            let given = StreamAllocator::alloc_as(memory, queue, &Request::new(bytes));
            assert_eq!(given, Err(DeviceAllocError::Capturing));
            assert!(setup.captures(stream));
            drop(Graph::end_capture(queue).unwrap());
        }
        // A plan, too.
        let pool = DeviceTensorPool::new(memory, queue, tensor_pool::soon()).unwrap();
        while !pool.is_planned() {
            let _step = pool.step();
            let block = pool.alloc(MIB).unwrap();
            pool.free(block).unwrap();
        }
        queue.begin_capture(RELAXED).unwrap();
        assert_eq!(pool.alloc(MIB), Err(DeviceAllocError::Capturing));
        drop(Graph::end_capture(queue).unwrap());
        drop((pool, setup));
        assert_clean(control);
    }
}

#[test]
fn a_look_for_captures_is_one_call_and_none_for_a_default_stream() {
    alone_and_clean(|control| {
        let setup = Setup::new(1, DeviceConfig::new());
        let default = setup.context.cudarc().default_stream();
        for (stream, calls) in [(&setup.streams[0], 1), (&default, 0)] {
            let held = setup.memory.alloc(stream, MIB).unwrap();
            setup.memory.free(stream, held).unwrap();
            control.reset_calls();
            let again = setup.memory.alloc(stream, MIB).unwrap();
            setup.memory.free(stream, again).unwrap();
            assert_eq!(control.calls(None), calls, "{:?}", control.call_table());
            // Also where no context is current.
            let memory = &setup.memory;
            let elsewhere = || {
                let block = memory.alloc(stream, MIB)?;
                memory.free(stream, block).unwrap();
                Ok::<_, DeviceAllocError>(())
            };
            let given = thread::scope(|scope| scope.spawn(elsewhere).join().unwrap());
            assert_eq!(given, Ok(()));
        }
        // A blocking stream captures: no memory of the default one becomes its graph's.
        let flags = sys::CUstream_flags::CU_STREAM_DEFAULT as u32;
        let mut blocking = std::ptr::null_mut();
        setup.context.cudarc().bind_to_thread().unwrap();
        // SAFETY: the handle outlives the call.
        unsafe { sys::cuStreamCreate(&raw mut blocking, flags) }
            .result()
            .unwrap();
        // SAFETY: the stream was made just now, and is destroyed below.
        unsafe { sys::cuStreamBeginCapture_v2(blocking, RELAXED) }
            .result()
            .unwrap();
        let block = setup.memory.alloc(&default, MIB).unwrap();
        setup.memory.free(&default, block).unwrap();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream captures; the handle outlives the call.
        unsafe { sys::cuStreamEndCapture(blocking, &raw mut graph) }
            .result()
            .unwrap();
        // SAFETY: made just now.
        unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
        // SAFETY: nothing is queued on it.
        unsafe { sys::cuStreamDestroy_v2(blocking) }
            .result()
            .unwrap();
    });
}
