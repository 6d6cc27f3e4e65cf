//! [`VmemAllocator`]: device memory first, then host memory, after AntMan's `GPUVMemAllocator`.
//!
//! The device serves only requests that it can serve without a wait of the host, since there is other memory.
//! A block is freed to its own side, which its number identifies, in the order of a stream. Nothing moves by
//! itself; a program that wants its values back on the device names the buffers, at a moment of its choice
//! ([`migrate`](VmemAllocator::migrate)).
//!
//! VMGPU1 a block is freed to the side that gave it.
//! VMGPU2 the joint count is the granted bytes of every block that was allocated here and not freed here.
//! VMGPU3 a buffer's block is reached only through the buffer, so nothing else uses a block that moves.
//!
//! There is no lock here; the sides have theirs, and none is held during a call of the other.

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
/// Dropping the last clone waits for the streams that used the host's side and releases its memory to the
/// driver; the device's allocator lives as long as it has clones of its own.
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
    /// Makes an allocator over a device's, which may also be used directly: its direct allocations do not
    /// count here.
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

    /// Returns the side that gave a block.
    pub fn placement(&self, block: &Block) -> Placement {
        match self.0.host_of(block) {
            Some(_) => Placement::Host,
            None => Placement::Device,
        }
    }

    /// Returns the counters of both sides and the joint ones. The device's include everything that its
    /// allocator serves, the joint ones only blocks allocated here.
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

    /// Returns the peak of bytes in use on both sides together up to which the host's side serves.
    pub fn planned_bytes(&self) -> u64 {
        self.0.planned_bytes
    }

    /// Releases idle regions of the host's side to the driver and returns their bytes. Does not wait.
    pub fn release_host(&self) -> u64 {
        self.0.host.as_ref().map_or(0, |host| host.release())
    }

    /// Returns the device's side.
    pub fn device(&self) -> &DeviceAllocator {
        &self.0.device
    }

    /// Returns the host's side as a pool with a limit, without keeping it alive.
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

    /// Allocates from the device if that needs no wait of the host, otherwise from the host's side. Costs as
    /// much as [`DeviceAllocator::alloc`]; on the host's side the first regions are pinned, about a second
    /// for 3 GiB.
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
        // Subtracted first, since another thread may have the memory as soon as it is free (VMGPU2).
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

    /// Returns the device's counters and limit, with the joint peak.
    fn stats(&self) -> Stats {
        let device = self.0.device.stats();
        Stats {
            peak_live_bytes: self.0.joint.peak().max(device.peak_live_bytes),
            ..device
        }
    }

    /// Restarts the joint peak and the host side's counters, so that the host's side serves again after the
    /// plan was exceeded. The device's counters are left to its allocator.
    fn clear_stats(&self) {
        let inner = &*self.0;
        if let Some(host) = &inner.host {
            host.clear_stats();
        }
        inner.joint.clear_peak();
    }

    /// Returns the blocks of both sides, including direct allocations.
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
    /// Returns the host's side if it gave the block.
    fn host_of(&self, block: &Block) -> Option<&VmemHost> {
        self.host
            .as_deref()
            .filter(|host| host.shared().owns(block))
    }

    /// Allocates from the host's side, if it may serve after the device's refusal.
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
