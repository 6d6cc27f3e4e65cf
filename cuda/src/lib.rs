//! GPU memory for programs that use [cudarc](https://docs.rs/cudarc), on NVIDIA's driver or on a stand-in
//! that needs no GPU. It has run on one GPU, an H200, for a quarter of an hour.
//!
//! ```no_run
//! use larder_cuda::{Context, DeviceAllocator};
//!
//! let memory = DeviceAllocator::new(&Context::new(0)?)?; // the first device
//! let stream = memory.context().cudarc().new_stream()?;
//! for batch in 0..100_u8 {
//!     let _step = memory.step(&stream)?; // what repeats is planned
//!     let input = memory.upload(&stream, &[batch; 1000])?;
//!     let output = memory.zeros::<f32>(&stream, 1000)?;
//!     // kernels, and any function of cudarc, take the buffers
//!     # drop((input, output));
//! } // freed in the order of the stream
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | type | memory | serves |
//! |---|---|---|
//! | [`DeviceAllocator`] | a device's, in the order of streams | programs |
//! | [`StreamAllocator`] | any of those in the order of streams, chosen when the program runs | programs with a choice |
//! | [`StreamMemory`] | one of them for one stream, as the core's trait; [`CheckedMemory`] guards it | decorators, a search for a bug |
//! | [`DeviceTensorPool`] | a device's, planned from a program's steps, for one stream | programs |
//! | [`DeviceBuffer`] | a device's, typed and freed when dropped | cudarc's functions, kernels |
//! | [`SyncedMemory`] | both, copied when the other side wants it | programs that use both in turn |
//! | [`VmemAllocator`], [`VmemBuffer`] | a device's, and the host's where that is full | programs that must not fail |
//! | [`DeviceMemory`] | a device's, whole regions | `Shared` |
//! | [`VirtualMemory`] | a device's, mapped by pages that can move | `Shared`, `Shared` |
//! | [`PinnedBuffer`] | the host's, pinned, typed, from a [`PinnedAllocator`] | copies beside other work |
//! | [`PinnedMemory`] | the host's, pinned | `Shared` |
//! | [`ManagedMemory`] | the host's and the device's | `Shared` |
//! | [`DriverPool`] | a device's, by the driver's own allocator | itself |
//! | `ExportedBlock`, `ImportedBlock` | a block that several processes use (Unix) | programs, communication libraries |
//!
//! Several programs on one GPU, each with its control file: `job::Job`, with the feature `job`. Limits for a
//! process, its tenants and their pools, changed while they run: [`Limits`].
//!
//! The example `train` is a whole program: a network trained with kernels of its own, on typed memory in
//! planned steps.
//!
//! # Which driver
//! The real one, unless [`driver::load`] or the variable `LARDER_CUDA_DRIVER` (`real`, `stand-in`, `auto`)
//! chooses another before the first context is made. The process has one driver, shared with cudarc.
//!
//! # Versions of CUDA
//! cudarc is compiled for exactly one version of CUDA's interface. A program, or a library in it, names one
//! by a feature of cudarc (`cudarc/cuda-12040`); this crate names none. If nobody does, cudarc takes the
//! version of `nvcc`, or without it the newest version it knows. With two versions named cudarc does not
//! compile ("the name `CUDA_VERSION` is defined multiple times"). The version determines what cudarc may
//! call. It need not be the driver's: this crate looks its functions up at run time.
//!
//! # Threads and contexts
//! Everything here may be used from any thread. A call makes its [`Context`] current for its duration and
//! restores the previous one. A context lives as long as anything in it.
//!
//! # Errors
//! A [`DriverError`] names the function and the driver's answer. A sub-allocator answers the core only yes or
//! no; its `last_error` has the reason. A free that the driver refuses is never forgotten: it stays with the
//! caller, or with the context, which retries it.

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
    Budget, BudgetName, ForeignCharge, ForeignMemory, LimitEvent, LimitWatch, Limits, OverBudget,
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
pub use typed::buffer::dlpack;
pub use typed::buffer::{
    AdoptError, BufferSlice, BufferView, BufferViewMut, DeviceBuffer, Launch, RawDeviceBuffer,
};
pub use typed::pinned::{PinnedAllocator, PinnedBuffer};
pub use typed::synced::SyncedMemory;
pub use typed::vmem::{HostSide, Migrated, Movable, VmemAllocator, VmemBuffer, VmemConfig};

/// The guide's samples, compiled with the tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../README.md")]
    struct Readme;
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
