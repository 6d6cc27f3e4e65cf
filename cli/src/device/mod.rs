//! Contenders that use one stream of a driver, NVIDIA's or the stand-in: `larder-cuda`'s allocator
//! of device memory and, for comparison, the allocators that programs use today
//! (`driver_allocators`).
//!
//! On NVIDIA's driver, the time of an operation is what a program would see. On the stand-in it
//! includes the stand-in's own work for each call, and says nothing about a GPU. The stand-in
//! counts its calls by name (`calls`); on NVIDIA's driver, only the calls that an allocator itself
//! counts are known.

mod calls;
#[allow(
    unsafe_code,
    reason = "cudarc's allocation without zeroing is unsafe to call"
)]
mod driver_allocators;

use std::error::Error;
use std::sync::{Arc, OnceLock};

use larder_core::Block;
use larder_cuda::driver::{Choice, Driver, LoadError, StandIn};
use larder_cuda::{Context, CudaStream, DeviceAllocator, DeviceConfig, DeviceStep};
use larder_jobs::embedded_stand_in;
use slab::Slab;

use calls::CallBaseline;

use crate::ours::backed;
use crate::replay::{
    CallsByName, Contender, ContenderBlock, ContenderSpec, DriverCalls, StepFigures,
};
use crate::snapshot::Span;

/// Default size of the stand-in's device in bytes, more than any trace needs.
const PLENTY: u64 = 1 << 40;

/// Bytes of reserved addresses, less than 2^32 granules of 256 bytes.
const ADDRESS_BYTES: u64 = 768 << 30;

/// The contenders that need a driver.
pub(crate) const CONTENDERS: &[ContenderSpec] = &[
    ContenderSpec {
        name: "device",
        about: "larder-cuda's device memory, in stream order, by its default: pages move where memory is short, and early while that takes few calls",
        build: device,
    },
    ContenderSpec {
        name: "device-budget",
        about: "the same, moving pages only once all of the device is held",
        build: device_budget,
    },
    ContenderSpec {
        name: "device-planned",
        about: "as `device`, with each step of the trace a step of the stream: planned once known",
        build: device_planned,
    },
    ContenderSpec {
        name: "cudarc",
        about: "cudarc's own blocks, not zeroed, with its events; the device's default pool below",
        build: driver_allocators::cudarc,
    },
    ContenderSpec {
        name: "cuda-async",
        about: "the driver's stream-ordered pool, which keeps all it gets",
        build: driver_allocators::cuda_async,
    },
];

static DRIVER: OnceLock<&'static Driver> = OnceLock::new();

/// Loads the driver that the contenders run on.
pub(crate) fn use_driver(choice: Choice) -> Result<&'static Driver, LoadError> {
    let driver = embedded_stand_in::load(choice)?;
    Ok(DRIVER.get_or_init(|| driver))
}

fn device(device_bytes: Option<u64>) -> Box<dyn Contender> {
    Box::new(DeviceContender::new(device_bytes, limited(device_bytes)))
}

fn device_budget(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let config = DeviceConfig::with_budget(device_bytes.unwrap_or(u64::MAX));
    Box::new(DeviceContender::new(device_bytes, config))
}

/// Builds the contender that plans the steps of its stream, as in `planned`.
fn device_planned(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let mut planned = DeviceContender::new(device_bytes, limited(device_bytes));
    planned.plans = true;
    Box::new(planned)
}

fn limited(device_bytes: Option<u64>) -> DeviceConfig {
    DeviceConfig {
        limit_bytes: device_bytes.unwrap_or(u64::MAX),
        ..DeviceConfig::new()
    }
}

/// Returns the stand-in's control; `None` on NVIDIA's driver.
fn stand_in() -> Option<&'static StandIn> {
    DRIVER.get().and_then(|driver| driver.stand_in())
}

/// Returns the name of the driver in use, `real` or `stand-in`.
fn which() -> Option<&'static str> {
    let driver = DRIVER.get()?;
    Some(driver.stand_in().map_or("real", |_| "stand-in"))
}

/// Sets the size of the stand-in's device.
fn prepare(device_bytes: Option<u64>) {
    if let Some(stand_in) = stand_in() {
        // If the stand-in refuses, the device keeps its old size, as the replay will show.
        let _ = stand_in.set_memory(0, device_bytes.unwrap_or(PLENTY));
    }
}

struct DeviceContender {
    /// `None` if the driver refused to create an allocator; every allocation then fails.
    memory: Option<(DeviceAllocator, Arc<CudaStream>)>,
    calls: Option<CallBaseline>,
    blocks: Slab<Block>,
    /// Whether steps are planned, and the current step.
    plans: bool,
    step: Option<DeviceStep>,
}

impl DeviceContender {
    fn new(device_bytes: Option<u64>, config: DeviceConfig) -> Self {
        prepare(device_bytes);
        let config = DeviceConfig {
            address_bytes: ADDRESS_BYTES,
            // Disabled in every build, as it is by default in a release build.
            check_captures: false,
            ..config
        };
        let memory = make(config).inspect_err(|error| eprintln!("no device memory: {error}"));
        Self {
            memory: memory.ok(),
            // Reading the allocator's own counters makes no call.
            calls: stand_in().map(|stand_in| CallBaseline::new(stand_in, || ())),
            blocks: Slab::new(),
            plans: false,
            step: None,
        }
    }
}

fn make(config: DeviceConfig) -> Result<(DeviceAllocator, Arc<CudaStream>), Box<dyn Error>> {
    let context = Context::new(0)?;
    let memory = DeviceAllocator::with_config(&context, config)?;
    let stream = context.cudarc().new_stream()?;
    Ok((memory, stream))
}

impl Contender for DeviceContender {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        let (memory, stream) = self.memory.as_ref()?;
        let block = memory.alloc(stream, bytes).ok()?;
        let address = block.addr().get();
        let handle = u32::try_from(self.blocks.insert(block)).ok()?;
        Some(ContenderBlock { address, handle })
    }

    fn free(&mut self, slot: ContenderBlock) {
        let freed = self
            .blocks
            .try_remove(slot.handle as usize)
            .is_some_and(|block| {
                let memory = self.memory.as_ref();
                memory.is_some_and(|(memory, stream)| memory.free(stream, block).is_ok())
            });
        assert!(freed, "the replay frees only live blocks");
    }

    fn reserved_bytes(&self) -> u64 {
        let memory = self.memory.as_ref();
        memory.map_or(0, |(memory, _)| memory.stats().reserved_bytes)
    }

    fn max_reserved_bytes(&self) -> Option<u64> {
        let (memory, _) = self.memory.as_ref()?;
        Some(memory.stats().peak_reserved_bytes)
    }

    fn driver_calls(&self) -> Option<DriverCalls> {
        let (memory, _) = self.memory.as_ref()?;
        let calls = memory.driver_calls();
        Some(DriverCalls {
            create: calls.create,
            map: calls.map,
            unmap: calls.unmap,
            release: calls.release,
            set_access: calls.set_access,
        })
    }

    fn driver(&self) -> Option<&'static str> {
        which()
    }

    fn calls_by_name(&self) -> Option<CallsByName> {
        if let Some(calls) = &self.calls {
            return Some(calls.by_name());
        }
        let calls = self.driver_calls()?;
        let named = [
            ("cuMemCreate", calls.create),
            ("cuMemMap", calls.map),
            ("cuMemUnmap", calls.unmap),
            ("cuMemRelease", calls.release),
            ("cuMemSetAccess", calls.set_access),
        ];
        let made = named.into_iter().filter(|(_, calls)| *calls > 0);
        Some(made.map(|(name, calls)| (name.to_owned(), calls)).collect())
    }

    fn steps(&self) -> Option<StepFigures> {
        let (memory, stream) = self.memory.as_ref()?;
        Some(memory.step_stats(stream)?.into())
    }

    fn held(&self) -> Option<Vec<Span>> {
        let (memory, _) = self.memory.as_ref()?;
        let chunks = memory.snapshot().chunks.into_iter();
        Some(
            chunks
                .filter_map(|chunk| backed(chunk.range, chunk.state))
                .collect(),
        )
    }

    fn end_step(&mut self) {
        let Some((memory, stream)) = &self.memory else {
            return;
        };
        if self.plans {
            // The previous step must end first, because a step begun inside another is part of it.
            self.step = None;
            self.step = memory.step(stream).ok();
        } else {
            memory.end_step();
        }
    }

    fn start_over(&mut self) {
        if let (true, Some((memory, stream))) = (self.plans, &self.memory) {
            memory.release(u64::MAX);
            memory.start_over(stream);
        }
    }
}

impl Drop for DeviceContender {
    fn drop(&mut self) {
        self.step = None;
        if let Some((memory, stream)) = &self.memory {
            for block in self.blocks.drain() {
                let freed = memory.free(stream, block);
                debug_assert!(freed.is_ok(), "a block of ours");
            }
        }
    }
}
