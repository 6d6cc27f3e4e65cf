//! [`VmemAllocator`]: device memory first, then host memory, like AntMan's `GPUVMemAllocator`.
//!
//! The device serves only requests that it can serve without blocking the host, since there is other memory.
//! A block is freed to its own side, which the allocator's number in the block identifies, in the order of a
//! stream. Nothing moves automatically: a program that wants values on the device passes their buffers to
//! [`migrate`](VmemAllocator::migrate) at a time of its choice.
//!
//! VMGPU1 a block is freed to the side that it came from.
//! VMGPU2 the joint count is the sum of the granted bytes of all blocks that were allocated here and not
//! freed here.
//! VMGPU3 a buffer's block is reached only through the buffer, so nothing else uses a block that moves.
//!
//! There is no lock here. Each side has its own locks, and none is held during a call to the other side.

mod buffer;
mod config;
mod host;
mod limit;

use core::fmt;
use std::sync::Arc;
#[cfg(feature = "job")]
use std::sync::Weak;

use cudarc::driver::CudaStream;
use larder_core::vmem::{JointBytes, Placement, VmemStats};
use larder_core::{Block, BlockAllocator, Rejected, Request, Stats};

pub use buffer::{Migrated, Movable, VmemBuffer};
pub use config::{HostSide, VmemConfig};
use host::VmemHost;

use crate::limits::{Budget, LimitedPool};
use crate::stream::allocator::{BlockInfo, Live, StreamAllocator};
use crate::{Context, DeviceAllocError, DeviceAllocator, DeviceFreeError};

/// Device memory, and host memory if the device is full. Clones share the allocator.
///
/// Dropping the last clone waits for the streams that used the host's side and releases that side's memory to
/// the driver; the device's allocator lives until its own last clone is dropped.
///
/// ```no_run
/// use larder_core::Placement;
/// use larder_cuda::{Context, DeviceAllocator, HostSide, StreamAllocator, VmemAllocator, VmemConfig};
///
/// let context = Context::new(0)?;
/// let device = DeviceAllocator::new(&context)?;
/// let config = VmemConfig::new(HostSide::Pinned(4 << 30));
/// let memory = VmemAllocator::new(&device, config)?;
/// let stream = context.cudarc().new_stream()?;
/// let block = memory.alloc(&stream, 1 << 20)?;
/// if memory.placement(&block) == Placement::Host {
///     println!("the device is full: kernels on this block are slower");
/// }
/// memory.free(&stream, block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct VmemAllocator(Arc<VmemInner>);

struct VmemInner {
    device: DeviceAllocator,
    host: Option<Arc<VmemHost>>,
    planned_bytes: u64,
    joint: JointBytes,
}

impl VmemAllocator {
    /// Makes an allocator over a device's allocator. The latter may also be used directly; its direct
    /// allocations do not count here.
    ///
    /// # Errors
    /// If the driver refuses, or the device cannot use such host memory.
    pub fn new(device: &DeviceAllocator, config: VmemConfig) -> Result<Self, DeviceAllocError> {
        Self::make(device, config, None)
    }

    fn make(
        device: &DeviceAllocator,
        config: VmemConfig,
        budget: Option<&Budget>,
    ) -> Result<Self, DeviceAllocError> {
        let context = device.context();
        let total_bytes = context.device_info()?.total_bytes;
        let planned_bytes = u128::from(total_bytes) * u128::from(config.planned_percent) / 100;
        Ok(Self(Arc::new(VmemInner {
            device: device.clone(),
            host: host::make(context, config.host, budget)?,
            planned_bytes: u64::try_from(planned_bytes).unwrap_or(u64::MAX),
            joint: JointBytes::new(),
        })))
    }

    /// Returns the side that a block came from.
    pub fn placement(&self, block: &Block) -> Placement {
        match self.0.host_of(block) {
            Some(_) => Placement::Host,
            None => Placement::Device,
        }
    }

    /// Returns the counters of both sides and the joint counters. The device's counters include everything
    /// that its allocator serves; the joint counters include only blocks that were allocated here.
    pub fn vmem_stats(&self) -> VmemStats {
        let inner = &*self.0;
        let host = inner.host.as_ref();
        VmemStats {
            device: inner.device.stats(),
            host: host
                .map(|host| LimitedPool::stats(&**host))
                .unwrap_or_default(),
            joint_live_bytes: inner.joint.live(),
            joint_peak_bytes: inner.joint.peak(),
        }
    }

    /// Returns the planned number of bytes: the host's side serves requests while the peak of bytes in use on
    /// both sides together is at most this.
    pub fn planned_bytes(&self) -> u64 {
        self.0.planned_bytes
    }

    /// Releases idle regions of the host's side to the driver and returns their bytes. Does not wait for
    /// streams.
    pub fn release_host(&self) -> u64 {
        self.0.host.as_ref().map_or(0, |host| host.release())
    }

    /// Returns the allocator of the device's side.
    pub fn device(&self) -> &DeviceAllocator {
        &self.0.device
    }

    /// Returns the host's side as a pool with a limit. The result does not keep it alive.
    #[cfg(feature = "job")]
    pub(crate) fn host_pool(&self) -> Option<Weak<dyn LimitedPool>> {
        let pool: Weak<VmemHost> = Arc::downgrade(self.0.host.as_ref()?);
        Some(pool)
    }
}

impl StreamAllocator for VmemAllocator {
    fn context(&self) -> &Context {
        self.0.device.context()
    }

    /// Allocates from the device if the host need not wait for that, otherwise from the host's side. Costs as
    /// much as [`DeviceAllocator::alloc`]; when the host's side grows, pinning takes about a second for 3
    /// GiB.
    fn alloc_as(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        let inner = &*self.0;
        let given = match inner.device.alloc_without_host_wait(stream, request) {
            Ok(block) => Ok(block),
            Err(device) => inner.alloc_behind(device, stream, request),
        };
        given.inspect(|block| inner.joint.add(block.bytes()))
    }

    /// Frees a block to its side. O(1), no driver call.
    fn free(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        let inner = &*self.0;
        // Subtracted first, since another thread may allocate the memory as soon as it is free (VMGPU2).
        let bytes = block.bytes();
        let ours = self.info(&block).is_some();
        if ours {
            inner.joint.take_off(bytes);
        }
        let freed = match inner.host_of(&block) {
            Some(host) => host.free(stream, block),
            None => inner.device.free(stream, block),
        };
        freed.inspect_err(|_| {
            if ours {
                inner.joint.put_back(bytes);
            }
        })
    }

    fn info(&self, block: &Block) -> Option<BlockInfo> {
        match self.0.host_of(block) {
            Some(host) => host.info(block),
            None => self.0.device.info(block),
        }
    }

    /// Returns the device's counters and limit, with the joint peak if it is higher.
    fn stats(&self) -> Stats {
        let device = self.0.device.stats();
        Stats {
            peak_live_bytes: self.0.joint.peak().max(device.peak_live_bytes),
            ..device
        }
    }

    /// Restarts the joint peak and the counters of the host's side, so that this side serves requests again
    /// after the planned number of bytes was exceeded. The device's counters are left to its allocator.
    fn clear_stats(&self) {
        let inner = &*self.0;
        if let Some(host) = &inner.host {
            host.clear_stats();
        }
        inner.joint.clear_peak();
    }

    /// Returns the number and bytes of the blocks in use on both sides, including direct allocations from the
    /// device.
    fn live(&self) -> Live {
        let device = self.0.device.live();
        let host = self.0.host.as_ref().map(|host| host.live());
        let host = host.unwrap_or_default();
        Live {
            blocks: device.blocks + host.blocks,
            bytes: device.bytes + host.bytes,
        }
    }
}

impl VmemInner {
    /// Returns the host's side if the block came from it.
    fn host_of(&self, block: &Block) -> Option<&VmemHost> {
        self.host
            .as_deref()
            .filter(|host| host.shared().owns(block))
    }

    /// Allocates from the host's side after the device's refusal, if this side may serve the request.
    fn alloc_behind(
        &self,
        device: DeviceAllocError,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        let host = match &self.host {
            Some(host) if device.is_want_of_memory() => host,
            _ => return Err(device),
        };
        let device = Box::new(device);
        let peak_bytes = self.joint.peak();
        if peak_bytes > self.planned_bytes {
            return Err(DeviceAllocError::Planned {
                device,
                peak_bytes,
                planned_bytes: self.planned_bytes,
            });
        }
        host.alloc_as(stream, request).map_err(|host| {
            let host = Box::new(host);
            DeviceAllocError::Both { device, host }
        })
    }
}

impl fmt::Debug for VmemAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmemAllocator")
            .field("context", self.0.device.context())
            .field("stats", &self.vmem_stats())
            .finish_non_exhaustive()
    }
}
