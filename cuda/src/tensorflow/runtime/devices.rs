//! Logical devices: the GPU and the allocator of each.

use std::sync::Arc;

use larder_core::prmalloc::PlannedPoolConfig;

use super::config::GpuKind;
use super::error::{LimitMismatch, RuntimeError};
use super::gpu::{GpuAllocator, GpuMemory};
use super::kind::MemoryKind;
use super::limit::{limit_of_available, limit_of_fraction};
use super::slot::OnceSlot;
use super::topology::{Node, PciAddress};
use super::visitors::Visited;
use super::watch::RegionReporter;
use super::watched_pool::WatchedPool;
use super::{Runtime, RuntimeInner};
use crate::driver::loaded_or_from_env;
use crate::stream::per_stream::PerStream;
use crate::{
    Context, DeviceAllocator, DeviceConfig, DriverPool, HostSide, ManagedMemory, TensorPoolConfig,
    VmemAllocator, VmemConfig,
};

/// One mebibyte.
const MIB: u64 = 1 << 20;

/// A device as a program sees it: a GPU, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LogicalDevice {
    /// The GPU's ordinal.
    pub ordinal: usize,
    /// Its part of the GPU's memory in bytes; `None` to compute it as [`Runtime::memory_limit`] does.
    pub limit_bytes: Option<u64>,
}

impl LogicalDevice {
    /// Makes a logical device that is a whole GPU.
    pub const fn whole(ordinal: usize) -> Self {
        Self {
            ordinal,
            limit_bytes: None,
        }
    }

    /// Splits a GPU into several devices of `mebibytes` MiB each, like TensorFlow's list of virtual devices.
    pub fn parts(ordinal: usize, mebibytes: &[u64]) -> Vec<Self> {
        let part = |mebibytes: &u64| Self {
            ordinal,
            limit_bytes: Some(mebibytes.saturating_mul(MIB)),
        };
        mebibytes.iter().map(part).collect()
    }
}

/// Options of a GPU's memory.
#[derive(Clone, PartialEq, Debug)]
pub struct GpuOptions {
    /// Empty or `BFC`.
    pub allocator_type: String,
    /// Whether memory is taken only as needed, after idle pages were moved; otherwise the whole limit is a
    /// page budget, and no page moves until most of it is held.
    pub allow_growth: bool,
    /// Share of the device's memory; 0 for [`limit_of_available`].
    pub memory_fraction: f64,
    /// Whether to use managed memory, which host and device share.
    pub unified_memory: bool,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            allocator_type: String::new(),
            allow_growth: false,
            memory_fraction: 0.0,
            unified_memory: false,
        }
    }
}

/// The answer to a request for a GPU's allocator.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuGiven {
    /// The allocator.
    pub allocator: GpuAllocator,
    /// Set if the allocator was made with another limit than the one requested now. The first limit stays in
    /// force.
    pub mismatch: Option<LimitMismatch>,
}

/// A logical device and its allocator.
pub(super) struct Logical {
    device: LogicalDevice,
    pub(super) slot: OnceSlot<GpuAllocator>,
}

impl Logical {
    pub(super) fn list(devices: impl IntoIterator<Item = LogicalDevice>) -> Vec<Self> {
        let logical = |device| Self {
            device,
            slot: OnceSlot::new(),
        };
        devices.into_iter().map(logical).collect()
    }
}

impl Runtime {
    /// Returns the allocator of a logical device, made on the first request. The first request sets the
    /// options and the limit; a later one returns the same allocator, with a note if it asks for another
    /// limit.
    ///
    /// # Errors
    /// [`RuntimeError::Device`] for an invalid number, [`RuntimeError::AllocatorType`] for an unknown type,
    /// and if the driver refuses. The next request tries again.
    pub fn gpu_allocator(
        &self,
        id: usize,
        options: &GpuOptions,
        bytes: u64,
    ) -> Result<GpuGiven, RuntimeError> {
        let inner = &*self.0;
        let logical = inner.logical(id)?;
        let allocator = logical
            .slot
            .get_or_build(|| inner.build_gpu(id, logical.device.ordinal, options, bytes))?;
        if !self.gpus_enabled() {
            self.enable_gpus();
        }
        let made_bytes = allocator.made_bytes();
        let mismatch = (made_bytes != bytes).then_some(LimitMismatch {
            asked_bytes: bytes,
            made_bytes,
        });
        Ok(GpuGiven {
            allocator: allocator.clone(),
            mismatch,
        })
    }

    /// Returns the allocator of a logical device, with the limit of [`memory_limit`](Self::memory_limit),
    /// which is computed only when the allocator is made: free memory changes, so later requests are not
    /// compared with the limit.
    ///
    /// # Errors
    /// The errors of [`gpu_allocator`](Self::gpu_allocator) and [`memory_limit`](Self::memory_limit).
    pub fn gpu(&self, id: usize, options: &GpuOptions) -> Result<GpuGiven, RuntimeError> {
        if let Some(allocator) = self.0.logical(id)?.slot.get() {
            return Ok(GpuGiven {
                allocator: allocator.clone(),
                mismatch: None,
            });
        }
        let bytes = self.memory_limit(id, options)?;
        let mut given = self.gpu_allocator(id, options, bytes)?;
        given.mismatch = None;
        Ok(given)
    }

    /// Returns the limit of a logical device: its part if it has one, otherwise the options' share of the
    /// device's memory if that is not 0, otherwise [the free memory less a reserve](limit_of_available).
    ///
    /// # Errors
    /// [`RuntimeError::Fraction`], [`RuntimeError::Oversubscription`], and if the driver refuses.
    pub fn memory_limit(&self, id: usize, options: &GpuOptions) -> Result<u64, RuntimeError> {
        let device = self.0.logical(id)?.device;
        if let Some(bytes) = device.limit_bytes {
            return Ok(bytes);
        }
        let context = Context::new(device.ordinal)?;
        if options.memory_fraction == 0.0 {
            let (available, _) = context.try_current(|driver| driver.memory_info())?;
            return Ok(limit_of_available(available));
        }
        limit_of_fraction(&context.device_info()?, options.memory_fraction)
    }

    /// Returns the node that a logical device is attached to; the first node if that is unknown.
    ///
    /// # Errors
    /// [`RuntimeError::Device`], and if there is no driver.
    pub fn gpu_node(&self, id: usize) -> Result<Node, RuntimeError> {
        let device = self.0.logical(id)?.device;
        self.0.node_of(device.ordinal)
    }

    /// Returns the number of logical devices. Loads the driver if none were named.
    ///
    /// # Errors
    /// If there is no driver, or it refuses.
    pub fn gpu_count(&self) -> Result<usize, RuntimeError> {
        Ok(self.0.devices()?.len())
    }
}

impl RuntimeInner {
    /// Returns the logical devices. If none were named, they are the driver's devices, each as a whole.
    fn devices(&self) -> Result<&[Logical], RuntimeError> {
        if let Some(devices) = self.devices.get() {
            return Ok(devices);
        }
        let count = usize::try_from(loaded_or_from_env()?.device_count()?).unwrap_or(0);
        let list = || Logical::list((0..count).map(LogicalDevice::whole));
        Ok(self.devices.get_or_init(list))
    }

    fn logical(&self, id: usize) -> Result<&Logical, RuntimeError> {
        let devices = self.devices()?;
        let count = devices.len();
        devices.get(id).ok_or(RuntimeError::Device { id, count })
    }

    /// Returns the GPU allocators that exist, by number.
    pub(super) fn gpus(&self) -> impl Iterator<Item = &GpuAllocator> {
        let devices = self.devices.get().map(Vec::as_slice).unwrap_or_default();
        devices.iter().filter_map(|logical| logical.slot.get())
    }

    fn node_of(&self, ordinal: usize) -> Result<Node, RuntimeError> {
        // No device has an ordinal beyond `i32`.
        let ordinal = i32::try_from(ordinal).unwrap_or(-1);
        let address = PciAddress::of_device(loaded_or_from_env()?, ordinal)?;
        Ok(self.topology.node_of(address))
    }

    fn build_gpu(
        &self,
        id: usize,
        ordinal: usize,
        options: &GpuOptions,
        bytes: u64,
    ) -> Result<GpuAllocator, RuntimeError> {
        if !matches!(options.allocator_type.as_str(), "" | "BFC") {
            let text = options.allocator_type.clone();
            return Err(RuntimeError::AllocatorType { text });
        }
        let kind = self.config.gpu_kind;
        if kind == GpuKind::MemoryGuard && options.unified_memory {
            let what = "memory_guard on managed memory";
            return Err(RuntimeError::Unsupported { what });
        }
        let context = Context::new(ordinal)?;
        let taker = self.visitors.take(Visited::Gpu(self.node_of(ordinal)?));
        let ordinal = context.ordinal();
        let index = u32::try_from(ordinal).unwrap_or(0);
        let watch = self.watch(taker.visitors.clone(), index, MemoryKind::gpu(index));
        let memory = self.gpu_memory(&context, kind, options, bytes, watch)?;
        taker.made();
        Ok(GpuAllocator::new(id, ordinal, kind, bytes, memory))
    }

    fn gpu_memory(
        &self,
        context: &Context,
        kind: GpuKind,
        options: &GpuOptions,
        bytes: u64,
        watch: RegionReporter,
    ) -> Result<GpuMemory, RuntimeError> {
        if options.unified_memory {
            let source = ManagedMemory::new(context)?;
            let collects = self.config.collect_regions;
            return Ok(GpuMemory::of(WatchedPool::new(
                source, watch, bytes, collects,
            )?));
        }
        let blocks = match kind {
            GpuKind::CudaMalloc => Some(DriverPool::unpooled(context)),
            GpuKind::CudaMallocAsync => Some(DriverPool::new(context)?),
            _ => None,
        };
        if let Some(blocks) = blocks {
            let blocks = blocks.with_limit(bytes).watched(Box::new(watch));
            return Ok(GpuMemory::of(blocks));
        }
        let config = self.device_config(options, bytes);
        let device = DeviceAllocator::with_config(context, config)?;
        device.watch(Box::new(watch));
        let mut memory = match kind {
            GpuKind::MemoryGuard => {
                let checked = PerStream::new(device.clone(), self.config.memory_guard);
                let checked = Arc::new(checked);
                GpuMemory {
                    checked: Some(checked.clone()),
                    ..GpuMemory::shared(checked)
                }
            }
            GpuKind::TensorPool => {
                let pool = PlannedPoolConfig {
                    planner: self.config.planner,
                    ..PlannedPoolConfig::new()
                };
                let config = TensorPoolConfig::with_pool(pool);
                let tensor = Arc::new(PerStream::new(device.clone(), config));
                GpuMemory {
                    tensor: Some(tensor.clone()),
                    ..GpuMemory::shared(tensor)
                }
            }
            _ if self.config.vmem => {
                let behind = self.vmem_config(context, bytes)?;
                let vmem = VmemAllocator::new(&device, behind)?;
                GpuMemory {
                    vmem: Some(vmem.clone()),
                    ..GpuMemory::of(vmem)
                }
            }
            _ => GpuMemory::of(device.clone()),
        };
        memory.device = Some(device);
        Ok(memory)
    }

    /// Returns the configuration of a device with a host's side. A limit above the device's memory raises the
    /// planned percentage, since the host's side holds the rest.
    fn vmem_config(&self, context: &Context, bytes: u64) -> Result<VmemConfig, RuntimeError> {
        let total = context.device_info()?.total_bytes;
        let mut percent = self.config.planned_percent;
        if bytes > total && bytes < u64::MAX {
            let share = u128::from(bytes) * 100 / u128::from(total.max(1)) + 1;
            percent = percent.max(u64::try_from(share).unwrap_or(u64::MAX));
        }
        let mut config = VmemConfig::new(HostSide::Pinned(self.config.vmem_host_limit_bytes));
        config.planned_percent = u32::try_from(percent).unwrap_or(u32::MAX);
        Ok(config)
    }

    fn device_config(&self, options: &GpuOptions, bytes: u64) -> DeviceConfig {
        let grows = self.config.force_growth.unwrap_or(options.allow_growth);
        if grows {
            return DeviceConfig {
                limit_bytes: bytes,
                ..DeviceConfig::new()
            };
        }
        DeviceConfig::with_budget(bytes)
    }
}
