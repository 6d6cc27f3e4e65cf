//! The part of the CUDA driver's C interface that `larder-cuda` calls and the stand-in driver implements:
//! result codes, handles, structures, constants, and the functions' prototypes. It has only plain data and a
//! table, and links no library.
//!
//! ```
//! use larder_cuda_abi::Code;
//!
//! assert_eq!(Code::OUT_OF_MEMORY.name(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
//! ```
//!
//! The types of a binding would not do. A result here is a number, with names for the known numbers
//! ([`Code`]), so an answer of a newer driver is never undefined behaviour. And the same structures serve
//! every version of the interface since 11.4, because the layouts have not changed. A test of `larder-cuda`
//! compares each layout and value with cudarc's.
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
