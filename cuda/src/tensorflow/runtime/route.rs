//! The choice of the allocator for a device, by the required properties of the memory.
//!
//! | device | wanted | allocator |
//! |---|---|---|
//! | GPU | any | the GPU's |
//! | GPU | on the host, GPU-compatible (or forced) | pinned memory of the GPU's node |
//! | GPU | on the host | host memory of the GPU's node |
//! | CPU | GPU-compatible (or forced) | pinned memory of its node |
//! | CPU | any | host memory of its node |

use larder_core::AllocatorAttributes;

use super::error::RuntimeError;
use super::gpu::GpuAllocator;
use super::host::HostAllocator;
use super::topology::Node;
use super::{GpuOptions, Runtime};

/// The device that memory is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Device {
    /// A logical GPU.
    Gpu(usize),
    /// The processors of a node, or of any node.
    Cpu(Option<Node>),
}

/// The allocator that was chosen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Route {
    /// Device memory.
    Gpu(GpuAllocator),
    /// Host memory.
    Host(HostAllocator),
}

impl Route {
    /// Returns the allocator's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Gpu(gpu) => gpu.name(),
            Self::Host(host) => host.name(),
        }
    }
}

impl Runtime {
    /// Returns the allocator for memory of a device. Builds it on the first request, for a GPU's own memory
    /// with `options` and the limit of [`memory_limit`](Self::memory_limit).
    ///
    /// # Errors
    /// The errors of [`gpu_allocator`](Self::gpu_allocator), [`pinned_allocator`](Self::pinned_allocator) and
    /// [`cpu_allocator`](Self::cpu_allocator).
    pub fn route(
        &self,
        device: Device,
        attributes: AllocatorAttributes,
        options: &GpuOptions,
    ) -> Result<Route, RuntimeError> {
        let pinned = attributes.gpu_compatible() || self.config().force_gpu_compatible;
        let node = match device {
            Device::Gpu(id) if !attributes.on_host() => {
                return Ok(Route::Gpu(self.gpu(id, options)?.allocator));
            }
            Device::Gpu(id) => Some(self.gpu_node(id)?),
            Device::Cpu(node) => node,
        };
        let host = if pinned {
            self.pinned_allocator(node)?
        } else {
            self.cpu_allocator(node)?
        };
        Ok(Route::Host(host))
    }
}
