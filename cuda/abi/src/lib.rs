//! The part of the CUDA driver's C interface that `larder-cuda` calls and the stand-in driver implements:
//! result codes, handles, structures, constants, and the functions' prototypes. Plain data and a table, no
//! library.
//!
//! ```
//! use larder_cuda_abi::Code;
//!
//! assert_eq!(Code::OUT_OF_MEMORY.name(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
//! ```
//!
//! A binding's types would not do: a result here is a number with names for the known ones ([`Code`]), so an
//! answer of a newer driver is never undefined; and the same structures serve every version of the interface
//! from 11.4 on, whose layouts have not changed. A test of `larder-cuda` compares each layout and value with
//! cudarc's.
#![no_std]
#![forbid(unsafe_code)]

mod code;
pub mod constants;
pub mod functions;
pub mod stand_in;
mod types;

pub use code::Code;
pub use types::{
    AccessDesc, AllocFlags, AllocationProp, ContextHandle, DevicePtr, DeviceUuid, EventHandle,
    FunctionHandle, GraphExecHandle, GraphHandle, GraphNodeHandle, HostFunction, LaunchConfig,
    Location, MemoryHandle, ModuleHandle, PoolHandle, PoolProps, SharedMemoryOf, StreamHandle,
};
