//! Larder's contenders on a driver: `larder-cuda`'s allocator of device memory, over a real device or
//! the stand-in's, on one stream.
//!
//! The time of each operation is the program's on a real driver; on the stand-in it includes the
//! stand-in's own work for each call.

use std::sync::{Arc, OnceLock};

use larder_core::Block;
use larder_cuda::driver::{Choice, Driver, LoadError, load};
use larder_cuda::{Context, DeviceAllocator, DeviceConfig, DeviceStep};

use crate::replay::{Contender, ContenderSpec, DriverCalls, Slot, StepFigures};

/// Memory of the stand-in's device where no size is asked for: more than any trace needs.
const PLENTY: u64 = 1 << 40;

/// Addresses, as many as granules of 256 bytes counted in 32 bits allow, with room to spare.
const ADDRESS_BYTES: u64 = 768 << 30;

/// The contenders that need a driver.
pub const CONTENDERS: &[ContenderSpec] = &[
    ContenderSpec {
        name: "device",
        about: "larder-cuda's device memory, in stream order: pages move before more is asked for",
        build: device,
    },
    ContenderSpec {
        name: "device-budget",
        about: "the same, moving pages once three quarters of the device are held",
        build: device_budget,
    },
    ContenderSpec {
        name: "device-planned",
        about: "as `device`, with each step of the trace a step of the stream: planned once known",
        build: device_planned,
    },
];

/// Steps of the stream are planned, as in `planned`.
fn device_planned(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let config = DeviceConfig {
        limit_bytes: device_bytes.unwrap_or(u64::MAX),
        ..DeviceConfig::new()
    };
    let mut planned = OnDevice::new("device-planned", device_bytes, config);
    planned.plans = true;
    Box::new(planned)
}

static DRIVER: OnceLock<&'static Driver> = OnceLock::new();

/// Loads the driver that the contenders run on.
///
/// # Errors
/// If it cannot be loaded.
pub fn use_driver(choice: Choice) -> Result<&'static Driver, LoadError> {
    let driver = load(choice)?;
    Ok(DRIVER.get_or_init(|| driver))
}

fn device(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let config = DeviceConfig {
        limit_bytes: device_bytes.unwrap_or(u64::MAX),
        ..DeviceConfig::new()
    };
    Box::new(OnDevice::new("device", device_bytes, config))
}

fn device_budget(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let config = DeviceConfig::with_budget(device_bytes.unwrap_or(u64::MAX));
    Box::new(OnDevice::new("device-budget", device_bytes, config))
}

struct OnDevice {
    name: &'static str,
    /// None if the driver refused to make one: then nothing is ever given.
    memory: Option<(DeviceAllocator, Arc<larder_cuda::CudaStream>)>,
    /// Blocks by handle, and handles not in use.
    blocks: Vec<Option<Block>>,
    vacant: Vec<u32>,
    /// Steps are planned; the one under way.
    plans: bool,
    step: Option<DeviceStep>,
    live: u64,
}

impl OnDevice {
    fn new(name: &'static str, device_bytes: Option<u64>, config: DeviceConfig) -> Self {
        let stand_in = DRIVER.get().and_then(|driver| driver.stand_in());
        if let Some(stand_in) = stand_in {
            // Only that number of the device is wrong if it is refused, and the replay shows it.
            let _ = stand_in.set_memory(0, device_bytes.unwrap_or(PLENTY));
        }
        let config = DeviceConfig {
            address_bytes: ADDRESS_BYTES,
            ..config
        };
        let memory = make(config).inspect_err(|error| eprintln!("{name}: {error}"));
        Self {
            name,
            memory: memory.ok(),
            blocks: Vec::new(),
            vacant: Vec::new(),
            plans: false,
            step: None,
            live: 0,
        }
    }
}

type Made = (DeviceAllocator, Arc<larder_cuda::CudaStream>);

fn make(config: DeviceConfig) -> Result<Made, Box<dyn std::error::Error>> {
    let context = Context::new(0)?;
    let memory = DeviceAllocator::with_config(&context, config)?;
    let stream = context.cudarc().new_stream()?;
    Ok((memory, stream))
}

impl Contender for OnDevice {
    fn name(&self) -> &'static str {
        self.name
    }

    fn alloc(&mut self, bytes: u64) -> Option<Slot> {
        let (memory, stream) = self.memory.as_ref()?;
        let block = memory.alloc(stream, bytes).ok()?;
        let address = block.addr().get();
        let handle = match self.vacant.pop() {
            Some(handle) => handle,
            None => {
                self.blocks.push(None);
                u32::try_from(self.blocks.len() - 1).ok()?
            }
        };
        *self.blocks.get_mut(handle as usize)? = Some(block);
        self.live += 1;
        Some(Slot { address, handle })
    }

    fn free(&mut self, slot: Slot) {
        let block = self.blocks.get_mut(slot.handle as usize);
        let freed = block.and_then(Option::take).is_some_and(|block| {
            let memory = self.memory.as_ref();
            memory.is_some_and(|(memory, stream)| memory.free(stream, block).is_ok())
        });
        assert!(freed, "the replay frees only live blocks");
        self.vacant.push(slot.handle);
        self.live -= 1;
        if let (true, 0, Some((memory, stream))) = (self.plans, self.live, &self.memory) {
            // The program starts over, as between two passes over a trace.
            memory.release(u64::MAX);
            memory.start_over(stream);
        }
    }

    fn reserved_bytes(&self) -> u64 {
        let memory = self.memory.as_ref();
        memory.map_or(0, |(memory, _)| memory.stats().reserved_bytes)
    }

    fn most_reserved_bytes(&self) -> Option<u64> {
        let (memory, _) = self.memory.as_ref()?;
        Some(memory.stats().peak_reserved_bytes)
    }

    fn driver_allocations(&self) -> u64 {
        self.driver_calls().map_or(0, |calls| calls.create)
    }

    fn driver_frees(&self) -> u64 {
        self.driver_calls().map_or(0, |calls| calls.release)
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

    fn steps(&self) -> Option<StepFigures> {
        let (memory, stream) = self.memory.as_ref()?;
        Some(memory.step_stats(stream)?.into())
    }

    fn end_step(&mut self) {
        let Some((memory, stream)) = &self.memory else {
            return;
        };
        if self.plans {
            // The one before ends first: a step begun inside another is part of it.
            self.step = None;
            self.step = memory.step(stream).ok();
        } else {
            memory.end_step();
        }
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        self.step = None;
        if let Some((memory, stream)) = &self.memory {
            for block in self.blocks.drain(..).flatten() {
                let freed = memory.free(stream, block);
                debug_assert!(freed.is_ok(), "a block of ours");
            }
        }
    }
}
