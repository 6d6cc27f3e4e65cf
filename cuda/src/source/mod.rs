//! Sources of memory: whole regions of device, pinned or managed memory, and pages of device memory that can
//! move. Each source is the core's [`SubAllocator`](larder_core::SubAllocator) or
//! [`PageDriver`](larder_core::pages::PageDriver). A new kind of memory is one more file. Memory of another
//! process, in `imported`, is not a source.

mod device;
#[cfg(unix)]
pub(crate) mod imported;
pub(crate) mod managed;
pub(crate) mod pinned;
pub(crate) mod ranges;
pub(crate) mod virtual_memory;

pub use device::DeviceMemory;
#[cfg(unix)]
pub use imported::{ImportError, ImportedBlock, SharedLayout};
pub use managed::ManagedMemory;
pub use pinned::{PinnedConfig, PinnedMemory};
pub use ranges::Ranges;
pub use virtual_memory::{VirtualCalls, VirtualConfig, VirtualMemory};
