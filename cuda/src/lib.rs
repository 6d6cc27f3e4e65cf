//! Stream-ordered GPU memory for programs that use [cudarc](https://docs.rs/cudarc), on NVIDIA's driver or on a
//! stand-in that needs no GPU. Of NVIDIA's devices it has run only on H200s, for twenty minutes in all.
//!
//! ```no_run
//! use larder_cuda::{Context, DeviceAllocator};
//!
//! let memory = DeviceAllocator::new(&Context::new(0)?)?; // the first device
//! let stream = memory.context().cudarc().new_stream()?;
//! for batch in 0..100_u8 {
//!     let _step = memory.step(&stream)?; // repeated allocations are planned
//!     let input = memory.upload(&stream, &[batch; 1000])?;
//!     let output = memory.zeros::<f32>(&stream, 1000)?;
//!     // kernels and all functions of cudarc accept the buffers
//!     # drop((input, output));
//! } // the buffers are freed in stream order
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | type | memory | for |
//! |---|---|---|
//! | [`DeviceAllocator`] | device, in stream order | programs |
//! | [`DeviceBuffer`] | device, typed and freed when dropped | cudarc's functions, kernels |
//! | [`BlockPool`], [`GrowingBuffer`], [`ReservedBuffer`] | device, at addresses that never change, committed in parts | caches |
//! | [`PinnedBuffer`] of a [`PinnedAllocator`] | pinned host, typed | copies that overlap other work |
//! | [`SyncedMemory`] | both, copied when the other side uses it | programs that alternate between host and device |
//! | [`VmemAllocator`], [`VmemBuffer`] | device, or host when the device is full | programs that must not fail |
//! | [`DeviceTensorPool`] | device, planned from the steps of one stream | programs |
//! | [`DriverPool`] | device, from the driver's own allocator | comparisons, or use alongside it |
//! | `ExportedBlock`, `ImportedBlock` | device, shared with other processes (Unix) | programs, communication libraries |
//! | [`StreamAllocator`] | any of these in stream order | programs that choose at run time |
//! | [`StreamMemory`] | any of these on one stream, as the core's trait; [`CheckedMemory`] guards it | decorators, debugging |
//! | [`VirtualMemory`] | device, mapped by pages | `Shared`: a `PagePool`, or a `RegionPool` that grows at its end |
//! | [`DeviceMemory`], [`PinnedMemory`], [`ManagedMemory`] | whole regions: device, pinned host, managed | `Shared`: a `RegionPool` |
//!
//! [`Limits`] sets how much a process, its tenants and their pools may hold, at any time. `job::Job`, with the
//! feature `job`, makes a program one of several jobs on a GPU, each with its control file.
//!
//! The example `train` is a whole program: a network trained with its own kernels, on typed memory in planned steps.
//!
//! # Which driver
//! The driver is NVIDIA's, unless [`driver::load`] or the variable `LARDER_CUDA_DRIVER` (`real`, `stand-in`, `auto`)
//! chooses another before the first context. A process has one driver, which cudarc uses too.
//!
//! # Versions of CUDA
//! cudarc is built for exactly one version of CUDA's interface. A program, or a library in it, may name one through a
//! feature of cudarc (`cudarc/cuda-12040`); this crate names none. If none is named, cudarc uses the version of
//! `nvcc`, or the newest that it knows if there is no `nvcc`. If two are named, cudarc does not compile ("the name
//! `CUDA_VERSION` is defined multiple times"). The version determines which functions cudarc may call. It need not be
//! the driver's: this crate looks up its functions at run time.
//!
//! # Threads and contexts
//! All types may be used from any thread. A call makes its [`Context`] current, and restores the previous one when it
//! returns. A context lives as long as anything made in it.
//!
//! # Errors
//! A [`DriverError`] names the function and the driver's error code. A sub-allocator reports only success or failure
//! to the core; its `last_error` has the reason. Memory whose free the driver refuses is never lost: it stays with
//! the caller, or with the context, which tries again.

#![warn(missing_debug_implementations)]

pub mod driver;
#[cfg(feature = "job")]
pub mod job;
pub mod limits;

mod access;
mod account;
mod checked;
mod device;
mod error;
mod lock_wait;
mod source;
mod stream;
mod tensorflow;
mod typed;
mod with_tables;

pub use tensorflow::runtime;
pub use typed::synced;

/// cudarc's stream, which this crate's functions take.
pub use cudarc::driver::CudaStream;

pub use access::DeviceAccess;
pub use checked::{CheckedConfig, CheckedMemory, checked};
pub use device::{
    ArenaPolicy, CaptureWindow, DeviceAllocator, DeviceBacking, DeviceChunk, DeviceConfig,
    DeviceSnapshot, DeviceStep, FixedBlock, Released, SleepError, Slept,
};
#[cfg(unix)]
pub use device::{ExportError, ExportedBlock};
pub use driver::CaptureStatus;
pub use driver::context::Context;
pub use driver::event::{Event, EventConfig};
pub use driver::{DriverError, LoadError};
pub use error::{DeviceAllocError, DeviceFreeError, Returned};
pub use limits::{
    Budget, BudgetName, ForeignCharge, ForeignMemory, LimitEvent, LimitWatch, Limits, Loan,
    OverBudget,
};
pub use source::{
    DeviceMemory, ManagedMemory, PinnedConfig, PinnedMemory, Ranges, VirtualCalls, VirtualConfig,
    VirtualMemory,
};
#[cfg(unix)]
pub use source::{ImportError, ImportedBlock, SharedLayout};
pub use stream::allocator::{BlockInfo, Live, StreamAllocator};
pub use stream::memory::StreamMemory;
pub use stream::pool::StreamStats;
pub use tensorflow::driver_pool::{DriverPool, DriverPoolStats};
pub use tensorflow::runtime::{Runtime, RuntimeConfig};
pub use tensorflow::tensor_pool::{DeviceTensorPool, TensorPoolConfig, TensorStep};
pub use typed::block_pool::{BlockMove, BlockPool};
pub use typed::buffer::dlpack;
pub use typed::buffer::{
    AdoptError, BufferSlice, BufferView, BufferViewMut, DeviceBuffer, Launch, RawDeviceBuffer,
};
pub use typed::growing::GrowingBuffer;
pub use typed::pinned::{PinnedAllocator, PinnedBuffer};
pub use typed::reserved::ReservedBuffer;
pub use typed::synced::SyncedMemory;
pub use typed::vmem::{HostSide, Migrated, Movable, VmemAllocator, VmemBuffer, VmemConfig};

/// The guide's samples, compiled with the tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/guide/src/caches.md")]
    struct Caches;
    #[doc = include_str!("../../docs/guide/src/gpu.md")]
    struct Gpu;
    #[cfg(feature = "job")]
    #[doc = include_str!("../../docs/guide/src/jobs.md")]
    struct Jobs;
    #[doc = include_str!("../../docs/guide/src/stand-in.md")]
    struct StandIn;
    #[doc = include_str!("../../docs/guide/src/steps.md")]
    struct Steps;
}
