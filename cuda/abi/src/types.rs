//! Handles and structures in C's layout. A handle is an opaque pointer or number of the driver. Here it is a
//! word that is never dereferenced.

use core::ffi::c_void;

/// An address of device memory, `CUdeviceptr`.
pub type DevicePtr = u64;

/// Physical memory of the virtual memory calls, `CUmemGenericAllocationHandle`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct MemoryHandle(pub u64);

/// A context, `CUcontext`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct ContextHandle(pub usize);

impl ContextHandle {
    /// The null handle.
    pub const NULL: Self = Self(0);
}

/// A stream, `CUstream`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct StreamHandle(pub usize);

impl StreamHandle {
    /// The null handle: the legacy default stream.
    pub const NULL: Self = Self(0);
    /// The legacy default stream, with an explicit handle.
    pub const LEGACY: Self = Self(1);
    /// The default stream of the calling thread.
    pub const PER_THREAD: Self = Self(2);
}

/// An event, `CUevent`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct EventHandle(pub usize);

impl EventHandle {
    /// The null handle.
    pub const NULL: Self = Self(0);
}

/// A memory pool, `CUmemoryPool`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct PoolHandle(pub usize);

impl PoolHandle {
    /// The null handle.
    pub const NULL: Self = Self(0);
}

/// A loaded module, `CUmodule`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct ModuleHandle(pub usize);

/// A kernel of a module, `CUfunction`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct FunctionHandle(pub usize);

/// A graph, `CUgraph`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct GraphHandle(pub usize);

impl GraphHandle {
    /// The null handle.
    pub const NULL: Self = Self(0);
}

/// A node of a graph, `CUgraphNode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct GraphNodeHandle(pub usize);

impl GraphNodeHandle {
    /// The null handle.
    pub const NULL: Self = Self(0);
}

/// A graph ready to be launched, `CUgraphExec`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct GraphExecHandle(pub usize);

/// A host function that a stream calls with its data, `CUhostFn`.
pub type HostFunction = Option<unsafe extern "C" fn(data: *mut c_void)>;

/// Returns the bytes of dynamic shared memory for a block of `threads` threads, `CUoccupancyB2DSize`.
pub type SharedMemoryOf = Option<unsafe extern "C" fn(threads: i32) -> usize>;

/// Place or user of memory, `CUmemLocation`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct Location {
    /// One of the `MEM_LOCATION_…` constants.
    pub kind: u32,
    /// The device's ordinal, for a device.
    pub id: i32,
}

/// The last part of [`AllocationProp`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct AllocFlags {
    /// Whether the memory is compressible.
    pub compression: u8,
    /// Whether network cards can access the memory.
    pub rdma_capable: u8,
    /// Use of the memory: bits of `CU_MEM_CREATE_USAGE_…`.
    pub usage: u16,
    /// Reserved by CUDA; zero.
    pub reserved: [u8; 4],
}

/// Properties of physical memory, `CUmemAllocationProp`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct AllocationProp {
    /// One of the `MEM_ALLOCATION_TYPE_…` constants.
    pub kind: u32,
    /// Bits of `MEM_HANDLE_TYPE_…`: how the handle may be exported.
    pub handle_types: u32,
    /// Place of the memory.
    pub location: Location,
    /// Used on Windows only; null.
    pub win32_meta_data: *mut c_void,
    /// Further flags.
    pub flags: AllocFlags,
}

/// Access of a device or the host to a mapped range, `CUmemAccessDesc`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct AccessDesc {
    /// The device or host that gets the access.
    pub location: Location,
    /// One of the `MEM_ACCESS_…` constants.
    pub flags: u32,
}

/// Properties of a memory pool, `CUmemPoolProps`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct PoolProps {
    /// One of the `MEM_ALLOCATION_TYPE_…` constants.
    pub kind: u32,
    /// Bits of `MEM_HANDLE_TYPE_…`: how the pool may be exported.
    pub handle_types: u32,
    /// Place of the pool's memory.
    pub location: Location,
    /// Used on Windows only; null.
    pub win32_security_attributes: *mut c_void,
    /// Maximum number of bytes that the pool holds; 0 for the system's limit. Reserved before 12.2.
    pub max_bytes: usize,
    /// The pool's use. Reserved before 12.3.
    pub usage: u16,
    /// Reserved by CUDA; zero.
    pub reserved: [u8; 54],
}

/// Configuration of a launch, `CUlaunchConfig`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct LaunchConfig {
    /// The grid's blocks in x, y and z.
    pub grid: [u32; 3],
    /// The threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// The stream on which the launch is queued.
    pub stream: StreamHandle,
    /// Further attributes.
    pub attributes: *mut c_void,
    /// The number of further attributes.
    pub attribute_count: u32,
}

/// A device's identity, `CUuuid`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct DeviceUuid {
    /// Sixteen bytes.
    pub bytes: [u8; 16],
}
