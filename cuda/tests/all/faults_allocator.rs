//! Every driver call that a device's allocator makes in a scenario over three streams is refused once: in a plain run,
//! with arenas, and in steps with windows. Nothing panics, each answer is memory or a reason, and every block keeps its
//! bytes. The same scenario then succeeds with the same allocator, and nothing is left when the allocator is dropped
//! with blocks in use.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{AllocError, Block};
use larder_cuda::{ArenaPolicy, Context, DeviceAllocError, DeviceAllocator, DeviceConfig};

use crate::common::refusal::{Refusal, SWEEP, Sweep};
use crate::common::{self, MIB};

const BUDGET: u64 = 12 * MIB;

/// Number of bytes that are written and read in each mebibyte.
const WRITTEN: u64 = 64;

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

struct Scenario<'a> {
    refusal: &'a Refusal,
    memory: DeviceAllocator,
    streams: Vec<Arc<CudaStream>>,
    live: Vec<(&'static str, Live)>,
    values: u8,
    way: Way,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Plain,
    Arenas,
    /// Each run is a step of two streams, and opens a window on each.
    Steps,
}

impl Scenario<'_> {
    /// Allocates a block. `fits` says whether there is room; if there is, an error needs a refusal, now or earlier.
    fn alloc(&mut self, name: &'static str, stream: usize, bytes: u64, fits: bool) {
        let queue = &self.streams[stream];
        let before = self.memory.stats().live_bytes;
        let (outcome, refused) = self.refusal.around_told(|| self.memory.alloc(queue, bytes));
        let block = match outcome {
            Ok(block) => block,
            Err(error) => {
                let full = matches!(
                    error,
                    DeviceAllocError::Memory {
                        reason: AllocError::OutOfMemory(_),
                        ..
                    }
                );
                let driver = matches!(error, DeviceAllocError::Driver(_));
                assert!(full || (driver && refused), "{name}: {error}");
                // A live block may keep the pieces of its arena that lie before its own.
                let fits = fits && self.way != Way::Arenas;
                assert!(!fits || self.refusal.happened(), "{name}: {error}");
                // Blocks freed on several streams may have been recovered meanwhile.
                assert!(self.memory.stats().live_bytes <= before, "{name}");
                if !(fits && refused) {
                    return;
                }
                // Only one call is refused, so the second try must succeed.
                self.memory
                    .alloc(queue, bytes)
                    .unwrap_or_else(|error| panic!("{name}, once more: {error}"))
            }
        };
        assert!(fits || self.refusal.happened(), "{name} was to be too much");
        self.values = self.values % 250 + 1;
        let live = Live {
            block,
            stream,
            value: self.values,
        };
        for at in live.places() {
            common::fill(queue, at, WRITTEN, live.value);
        }
        self.live.push((name, live));
    }

    fn take(&mut self, name: &str) -> Option<Live> {
        let place = self.live.iter().position(|(own, _)| *own == name)?;
        Some(self.live.swap_remove(place).1)
    }

    fn check(&self, live: &Live) {
        for at in live.places() {
            common::assert_filled(&self.streams[live.stream], at, WRITTEN, live.value);
        }
    }

    fn check_all(&self) {
        for (_, live) in &self.live {
            self.check(live);
        }
    }

    /// Frees a block while queued work still uses it.
    fn free(&mut self, name: &str) {
        let Some(live) = self.take(name) else { return };
        for at in live.places() {
            common::fill(&self.streams[live.stream], at, WRITTEN, 0);
        }
        let stream = &self.streams[live.stream];
        let free = || self.memory.free(stream, live.block);
        self.refusal.around(free).unwrap();
    }

    /// Uses a block on another stream too, and frees it after the work of both.
    fn free_on_both(&mut self, name: &str, other: usize) {
        let Some(live) = self.take(name) else { return };
        let streams = [&self.streams[live.stream], &self.streams[other]].map(Clone::clone);
        let ask = || self.memory.order_after(&streams[1], &streams[0]);
        let (ordered, refused) = self.refusal.around_told(ask);
        match ordered {
            Ok(()) => {
                for at in live.places() {
                    common::fill(&streams[1], at, WRITTEN, 0);
                }
            }
            Err(DeviceAllocError::Driver(_)) if refused => {}
            Err(error) => panic!("{error}"),
        }
        let ask = || self.memory.free_used_on(&streams, live.block);
        self.refusal.around(ask).unwrap();
    }

    fn release(&self, bytes: u64) {
        self.refusal.around(|| self.memory.release(bytes));
    }

    /// Opens a window, allocates a block in it, frees the block on another stream, and drops the window.
    fn window(&mut self, stream: usize, other: usize) {
        let queue = &self.streams[stream];
        let ask = || self.memory.prime(queue, 2 * MIB);
        let (opened, refused) = self.refusal.around_told(ask);
        let window = match opened {
            Ok(window) => window,
            Err(DeviceAllocError::Driver(_)) if refused => return,
            Err(DeviceAllocError::Memory { .. }) if self.refusal.happened() => return,
            Err(error) => panic!("{error}"),
        };
        let (inside, refused) = self.refusal.around_told(|| self.memory.alloc(queue, MIB));
        match inside {
            Ok(inside) => {
                common::fill(queue, inside.addr().get(), WRITTEN, 5);
                let other = &self.streams[other];
                let ordered = self
                    .refusal
                    .around(|| self.memory.order_after(other, queue));
                let to = if ordered.is_ok() { other } else { queue };
                common::fill(to, inside.addr().get(), WRITTEN, 6);
                let free = || self.memory.free(to, inside);
                self.refusal.around(free).unwrap();
            }
            Err(DeviceAllocError::Driver(_)) if refused => {}
            Err(error) => panic!("{error}"),
        }
        self.refusal.around(|| drop(window));
    }

    /// Does everything that an allocator can do, within a budget of six pages. Ends with blocks in use.
    fn run(&mut self) {
        let mut steps = Vec::new();
        if self.way == Way::Steps {
            for stream in 1..3 {
                let queue = &self.streams[stream];
                let step = self.refusal.around(|| self.memory.step(queue));
                steps.push(step.unwrap());
            }
            self.window(1, 0);
            self.window(2, 1);
        }
        self.run_inside();
        for step in steps {
            self.refusal.around(|| drop(step));
        }
    }

    fn run_inside(&mut self) {
        self.alloc("a", 0, 3 * MIB, true);
        self.alloc("b", 1, 2 * MIB, true);
        self.alloc("c", 2, 4096, true);
        self.alloc("d", 2, 3 * MIB, true);
        // Memory that one stream freed goes to another after a wait.
        self.free("a");
        self.alloc("a", 1, 3 * MIB, true);
        self.refusal.around(|| self.memory.end_step());
        self.free_on_both("b", 0);
        self.alloc("b", 2, 2 * MIB, true);
        self.check_all();
        // Pages move. Some are still pending on other streams, so the host waits.
        self.free("a");
        self.free("d");
        self.alloc("e", 0, 5 * MIB, true);
        self.alloc("f", 1, 9 * MIB, false);
        self.free("e");
        self.free_on_both("b", 1);
        self.alloc("f", 1, 8 * MIB, true);
        self.check_all();
        self.free("f");
        self.free("c");
        self.release(2 * MIB);
        self.alloc("g", 2, 5 * MIB, true);
        self.refusal.around(|| self.memory.end_step());
        self.free("g");
        self.release(u64::MAX);
        self.alloc("h", 0, 4 * MIB, true);
        self.alloc("i", 1, 300, true);
        self.check_all();
    }

    fn free_all(&mut self) {
        while let Some((name, _)) = self.live.first() {
            let name = *name;
            self.free(name);
        }
    }
}

fn sweep(seed: fn(u64) -> Option<u64>, way: Way) {
    Sweep { seed, ..SWEEP }.run(100, |refusal| {
        let context = Context::new(0).unwrap();
        let streams = common::streams(&context, 3);
        let arenas = match way {
            Way::Arenas => ArenaPolicy::Always,
            Way::Plain | Way::Steps => ArenaPolicy::Never,
        };
        let config = DeviceConfig {
            arenas,
            ..DeviceConfig::with_budget(BUDGET)
        };
        let memory = refusal.at_last(|| DeviceAllocator::with_config(&context, config.clone()));
        let mut scenario = Scenario {
            refusal,
            memory,
            streams,
            live: Vec::new(),
            values: 0,
            way,
        };
        scenario.run();
        let again = Refusal::none(refusal.control);
        if refusal.happened() {
            scenario.free_all();
            context.synchronize().unwrap();
            scenario.memory.release(u64::MAX);
            scenario = Scenario {
                refusal: &again,
                ..scenario
            };
            scenario.run();
        }
        let Scenario {
            refusal,
            memory,
            streams,
            ..
        } = scenario;
        refusal.around(|| drop(memory));
        drop(streams);
        refusal.control.schedule_eagerly();
        assert_eq!(context.settle(), 0);
    });
}

#[test]
fn any_call_of_an_allocator_may_be_refused() {
    sweep(|_| None, Way::Plain);
}

#[test]
fn any_call_may_be_refused_while_work_is_queued() {
    sweep(|_| Some(7), Way::Plain);
}

#[test]
fn any_call_may_be_refused_while_streams_have_arenas() {
    sweep(|_| Some(3), Way::Arenas);
}

#[test]
fn any_call_may_be_refused_in_steps_with_windows() {
    sweep(|_| Some(5), Way::Steps);
}
