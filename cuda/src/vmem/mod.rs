//! [`VmemAllocator`]: a device's memory first, the host's behind it, after AntMan's `GPUVMemAllocator`.
//!
//! Of the device only what it has without a wait of the host is taken: there is other memory. Each block
//! says where it is and goes back to its side, in the order of a stream there too. Nothing moves by
//! itself; a program that wants its values back on the device says which may move, at a moment of its
//! choice ([`migrate`](VmemAllocator::migrate)).
//!
//! V1 a block goes back to the side that gave it.
//! V2 the joint count has the granted bytes of every block that was given here and not freed here.
//! V3 a buffer's block is reached through the buffer only, so what moves is used by nobody else.
//!
//! There is no lock here; the sides have theirs, and none is held over a call of the other.

#![expect(
    clippy::result_large_err,
    reason = "an error has the numbers of both sides"
)]

mod buffer;
mod config;
mod error;
mod host;
mod limit;

use core::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::vmem::{JointBytes, Placement, VmemStats};
use larder_core::{Addr, Block};

pub use buffer::{Migrated, Movable, VmemBuffer};
pub use config::{HostSide, VmemConfig};
pub use error::{VmemAllocError, VmemFreeRejected};
use host::VmemHost;

use crate::limits::Budget;
use crate::{DeviceAllocError, DeviceAllocator};

/// A device's memory, and the host's where that is full. A clone is the same allocator.
///
/// Dropping the last clone waits for the streams that used the host's side and gives that back to the
/// driver; the device's allocator goes on as long as it has clones of its own.
///
/// ```no_run
/// use larder_core::Placement;
/// use larder_cuda::{Context, DeviceAllocator, HostSide, VmemAllocator, VmemConfig};
///
/// let context = Context::new(0)?;
/// let device = DeviceAllocator::new(&context)?;
/// let config = VmemConfig::new(HostSide::Pinned(4 << 30));
/// let memory = VmemAllocator::new(&device, config)?;
/// let stream = context.cudarc().new_stream()?;
/// let block = memory.alloc(&stream, 1 << 20)?;
/// if block.placement() == Placement::Host {
///     println!("the device is full: kernels on this block are slower");
/// }
/// memory.free(&stream, block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct VmemAllocator(Arc<VmemInner>);

/// A weak reference to a [`VmemAllocator`], which is gone with its last clone.
#[cfg(feature = "control")]
#[derive(Clone)]
pub(crate) struct WeakVmem(std::sync::Weak<VmemInner>);

#[cfg(feature = "control")]
impl WeakVmem {
    pub(crate) fn upgrade(&self) -> Option<VmemAllocator> {
        self.0.upgrade().map(VmemAllocator)
    }
}

struct VmemInner {
    device: DeviceAllocator,
    host: Option<Arc<VmemHost>>,
    planned_bytes: u64,
    joint: JointBytes,
}

/// Memory that belongs to the caller until it is freed, and where it is.
///
/// A value without a destructor: one that is not freed is lost until its side is dropped.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped block stays allocated"]
pub struct VmemBlock {
    block: Block,
    placement: Placement,
}

impl VmemBlock {
    /// Its first address, which kernels of the device take, wherever it is.
    pub const fn addr(&self) -> Addr {
        self.block.addr()
    }

    /// Granted size in bytes: at least what was requested.
    pub const fn bytes(&self) -> u64 {
        self.block.bytes()
    }

    /// The side that gave it.
    pub const fn placement(&self) -> Placement {
        self.placement
    }
}

impl VmemAllocator {
    /// Makes an allocator over a device's, which may be used by itself too: what is allocated there
    /// directly does not count here.
    ///
    /// # Errors
    /// If the driver refuses, or the device cannot use such memory of the host.
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
            host: VmemHost::new(context, config.host, budget)?,
            planned_bytes: u64::try_from(planned_bytes).unwrap_or(u64::MAX),
            joint: JointBytes::new(),
        })))
    }

    /// Gives memory for work that is queued on `stream` from now on: of the device, if it has some for
    /// which the host need not wait, and of the host otherwise. Costs what
    /// [`DeviceAllocator::alloc`] does; on the host's side the first regions are pinned, about a second
    /// for 3 GiB.
    ///
    /// # Errors
    /// [`VmemAllocError`].
    pub fn alloc(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<VmemBlock, VmemAllocError> {
        let inner = &*self.0;
        let device = match inner.device.alloc_without_host_wait(stream, bytes) {
            Ok(block) => return Ok(inner.count(block, Placement::Device)),
            Err(error) => error,
        };
        let host = inner.host_behind(device)?;
        match host.alloc(stream, bytes) {
            Ok(block) => Ok(inner.count(block, Placement::Host)),
            Err(host) => Err(VmemAllocError::Both { device, host }),
        }
    }

    /// Takes a block back on its side. Work that uses it is queued on `stream` already, or is ordered
    /// before what is queued there now. O(1), no driver call.
    ///
    /// # Errors
    /// Gives the block back if it is none of ours; see [`DeviceAllocator::free`].
    pub fn free(&self, stream: &Arc<CudaStream>, block: VmemBlock) -> Result<(), VmemFreeRejected> {
        let inner = &*self.0;
        let VmemBlock { block, placement } = block;
        // Counted off first: another thread may have the memory as soon as it is back (V2).
        let bytes = block.bytes();
        let ours = inner.requested_bytes(&block, placement).is_some();
        if ours {
            inner.joint.take_off(bytes);
        }
        let freed = match (&inner.host, placement) {
            (Some(host), Placement::Host) => host.free(stream, block),
            _ => inner.device.free(stream, block),
        };
        freed.map_err(|rejected| {
            if ours {
                inner.joint.put_back(bytes);
            }
            VmemFreeRejected {
                block: VmemBlock {
                    block: rejected.block,
                    placement,
                },
                error: rejected.error,
            }
        })
    }

    /// Bytes that were requested for a block; `None` if it is not one of this allocator's.
    pub fn requested_bytes(&self, block: &VmemBlock) -> Option<u64> {
        self.0.requested_bytes(&block.block, block.placement)
    }

    /// Counters of both sides and the joint ones. The device's have all that its allocator serves, the
    /// joint ones only what was given here.
    pub fn stats(&self) -> VmemStats {
        let inner = &*self.0;
        let host = inner.host.as_ref();
        VmemStats {
            device: inner.device.stats(),
            host: host.map(|host| host.stats()).unwrap_or_default(),
            joint_live_bytes: inner.joint.live(),
            joint_peak_bytes: inner.joint.peak(),
        }
    }

    /// Starts the joint peak and the host side's counters anew, so that the host's side serves again
    /// where the plan was passed. The device's counters are its allocator's own.
    pub fn clear_stats(&self) {
        let inner = &*self.0;
        if let Some(host) = &inner.host {
            host.clear_stats();
        }
        inner.joint.clear_peak();
    }

    /// The most live bytes on the host's side since this was last asked for, or since the beginning; now
    /// the next interval begins. [`stats`](Self::stats) counts on as if nobody had asked.
    pub fn take_host_peak(&self) -> u64 {
        self.0.host.as_ref().map_or(0, |host| host.take_peak())
    }

    /// Most bytes that both sides together may have had for the host's side to serve.
    pub fn planned_bytes(&self) -> u64 {
        self.0.planned_bytes
    }

    /// Gives idle regions of the host's side back to the driver; the bytes. Nothing is waited for.
    pub fn release_host(&self) -> u64 {
        self.0.host.as_ref().map_or(0, |host| host.release())
    }

    /// The device's side.
    pub fn device(&self) -> &DeviceAllocator {
        &self.0.device
    }

    #[cfg(feature = "control")]
    pub(crate) fn downgrade(&self) -> WeakVmem {
        WeakVmem(Arc::downgrade(&self.0))
    }
}

impl VmemInner {
    fn count(&self, block: Block, placement: Placement) -> VmemBlock {
        self.joint.add(block.bytes());
        VmemBlock { block, placement }
    }

    /// The host's side, if it may serve what the device refused.
    fn host_behind(&self, device: DeviceAllocError) -> Result<&VmemHost, VmemAllocError> {
        let host = match &self.host {
            Some(host) if device.is_want_of_memory() => host,
            _ => return Err(VmemAllocError::Device(device)),
        };
        let peak_bytes = self.joint.peak();
        if peak_bytes > self.planned_bytes {
            return Err(VmemAllocError::Planned {
                device,
                peak_bytes,
                planned_bytes: self.planned_bytes,
            });
        }
        Ok(host)
    }

    fn requested_bytes(&self, block: &Block, placement: Placement) -> Option<u64> {
        match (&self.host, placement) {
            (Some(host), Placement::Host) => {
                host.owns(block).then(|| host.requested_bytes(block))?
            }
            _ => self.device.requested_bytes(block),
        }
    }
}

impl fmt::Debug for VmemAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmemAllocator")
            .field("context", self.0.device.context())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
