//! A sleeping allocator holds no device memory, and wakes with every byte at its address. `programs::sleep` runs random
//! programs that sleep.

use crate::common;

mod refusals;
mod threads;
mod wakes;

use std::sync::Arc;

use common::{DEVICE_BYTES, MIB, alone, assert_clean, assert_filled, fill, ran_in_child};
use cudarc::driver::CudaStream;
use larder_core::Block;
use larder_cuda::driver::StandIn;
use larder_cuda::{ArenaPolicy, Context, DeviceAllocator, DeviceConfig};

const SEEDS: u64 = 4;

/// Sizes of blocks of all kinds: from an arena, from the core, of one page and of several.
const SIZES: [u64; 6] = [300, 5000, 64 << 10, MIB, 3 * MIB, 2 * MIB + 512];

/// Number of bytes that are written and read in each mebibyte.
const WRITTEN: u64 = 256;

struct Live {
    block: Block,
    stream: usize,
    value: u8,
}

impl Live {
    fn places(&self) -> impl Iterator<Item = u64> + use<> {
        let (start, bytes) = (self.block.addr().get(), self.block.bytes());
        let pieces = (0..bytes.div_ceil(MIB)).map(move |index| start + index * MIB);
        pieces.chain([start + bytes - WRITTEN])
    }
}

struct Rig {
    control: &'static StandIn,
    context: Context,
    memory: DeviceAllocator,
    streams: Vec<Arc<CudaStream>>,
    live: Vec<Live>,
}

impl Rig {
    fn new(control: &'static StandIn, config: DeviceConfig) -> Self {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, config).unwrap();
        Self::over(control, context, memory)
    }

    fn over(control: &'static StandIn, context: Context, memory: DeviceAllocator) -> Self {
        let streams = (0..2).map(|_| context.cudarc().new_stream().unwrap());
        Self {
            control,
            streams: streams.collect(),
            context,
            memory,
            live: Vec::new(),
        }
    }

    /// Allocates a block and writes to it; successive blocks alternate between the streams.
    fn alloc(&mut self, bytes: u64) {
        let value = self.live.len() as u8 + 1;
        let stream = self.live.len() % 2;
        let block = self.memory.alloc(&self.streams[stream], bytes).unwrap();
        let live = Live {
            block,
            stream,
            value,
        };
        for at in live.places() {
            fill(&self.streams[stream], at, WRITTEN, value);
        }
        self.live.push(live);
    }

    /// Allocates blocks and frees some of them on another stream, so that there are holes, and memory that has moved or
    /// is idle.
    fn fill(&mut self) {
        for bytes in SIZES.into_iter().chain(SIZES) {
            self.alloc(bytes);
        }
        for index in [9, 7, 3, 0] {
            let gone = self.live.remove(index);
            let stream = &self.streams[1 - gone.stream];
            let after = &self.streams[gone.stream];
            self.memory.order_after(stream, after).unwrap();
            self.memory.free(stream, gone.block).unwrap();
        }
        self.alloc(5 * MIB);
    }

    #[track_caller]
    fn check(&self) {
        for live in &self.live {
            for at in live.places() {
                assert_filled(&self.streams[live.stream], at, WRITTEN, live.value);
            }
        }
    }

    #[track_caller]
    fn assert_asleep(&self) {
        assert!(self.memory.is_asleep());
        self.context.settle();
        assert_eq!(self.control.used(0), 0, "bytes held asleep");
        assert_eq!(self.memory.pool_stats().pool_bytes, 0);
    }

    fn free_all(&mut self) {
        for live in self.live.drain(..) {
            let stream = &self.streams[live.stream];
            self.memory.free(stream, live.block).unwrap();
        }
    }
}

fn arenas() -> DeviceConfig {
    DeviceConfig {
        arenas: ArenaPolicy::Always,
        ..DeviceConfig::new()
    }
}

/// Runs `act` eagerly and under each seed. New memory does not read as zero.
fn under_all_schedules(act: impl Fn(&'static StandIn)) {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..=SEEDS {
        control.poison(true);
        match seed.checked_sub(1) {
            Some(seed) => control.schedule_deferred(seed),
            None => control.schedule_eagerly(),
        }
        act(control);
        control.set_memory(0, DEVICE_BYTES).unwrap();
        control.schedule_eagerly();
        control.poison(false);
        assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        assert_clean(control);
    }
}
