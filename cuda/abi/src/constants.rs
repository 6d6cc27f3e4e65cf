//! Constants of the driver's interface, each named for its meaning. All are `u32`.

// Flags of streams, events and contexts.

/// A stream that does not synchronize with the legacy default stream.
pub const STREAM_NON_BLOCKING: u32 = 1;
/// Waiting threads sleep.
pub const EVENT_BLOCKING_SYNC: u32 = 1;
/// The event does not record the time.
pub const EVENT_DISABLE_TIMING: u32 = 2;
/// The event may be shared with another process. It must not record the time.
pub const EVENT_INTERPROCESS: u32 = 4;
/// The bits of a context's flags that say how threads wait.
pub const CTX_SCHED_MASK: u32 = 7;

// Host memory.

/// The memory counts as pinned in every context.
pub const HOST_ALLOC_PORTABLE: u32 = 1;
/// The pinned memory is mapped into the device's addresses.
pub const HOST_ALLOC_DEVICEMAP: u32 = 2;
/// Write-combined: fast to send, slow for the host to read.
pub const HOST_ALLOC_WRITECOMBINED: u32 = 4;
/// The memory counts as registered in every context.
pub const HOST_REGISTER_PORTABLE: u32 = 1;
/// The registered memory is mapped into the device's addresses.
pub const HOST_REGISTER_DEVICEMAP: u32 = 2;
/// The registered range is memory of another device.
pub const HOST_REGISTER_IOMEMORY: u32 = 4;
/// The device only reads the registered memory.
pub const HOST_REGISTER_READ_ONLY: u32 = 8;
/// Managed memory that any stream of any device may use.
pub const MEM_ATTACH_GLOBAL: u32 = 1;
/// Managed memory that no device may use at first.
pub const MEM_ATTACH_HOST: u32 = 2;
/// Managed memory that one stream may use.
pub const MEM_ATTACH_SINGLE: u32 = 4;

// Virtual memory.

/// Memory that is not migrated.
pub const MEM_ALLOCATION_TYPE_PINNED: u32 = 1;
/// A device, by ordinal.
pub const MEM_LOCATION_DEVICE: u32 = 1;
/// The host.
pub const MEM_LOCATION_HOST: u32 = 2;
/// A node of the host.
pub const MEM_LOCATION_HOST_NUMA: u32 = 3;
/// A handle that is not exported.
pub const MEM_HANDLE_TYPE_NONE: u32 = 0;
/// A handle that is exported as a file descriptor.
pub const MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: u32 = 1;
/// No access.
pub const MEM_ACCESS_NONE: u32 = 0;
/// Read access.
pub const MEM_ACCESS_READ: u32 = 1;
/// Read and write access.
pub const MEM_ACCESS_READ_WRITE: u32 = 3;
/// The least granularity that works.
pub const MEM_GRANULARITY_MINIMUM: u32 = 0;
/// The granularity that works best.
pub const MEM_GRANULARITY_RECOMMENDED: u32 = 1;

// Attributes of memory pools.

/// Whether freed memory may be reused on another stream once an event orders the reuse
/// after the free.
pub const POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES: u32 = 1;
/// Whether freed memory may be reused on another stream once the free is done.
pub const POOL_REUSE_ALLOW_OPPORTUNISTIC: u32 = 2;
/// Whether freed memory may be reused on another stream after a wait that the driver
/// inserts.
pub const POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES: u32 = 3;
/// Bytes that the pool keeps when it releases memory.
pub const POOL_RELEASE_THRESHOLD: u32 = 4;
/// Bytes that the pool holds.
pub const POOL_RESERVED_CURRENT: u32 = 5;
/// Maximum number of bytes that the pool has held since the mark was reset.
pub const POOL_RESERVED_HIGH: u32 = 6;
/// Bytes of the pool in use.
pub const POOL_USED_CURRENT: u32 = 7;
/// Maximum number of bytes that have been in use since the mark was reset.
pub const POOL_USED_HIGH: u32 = 8;

// Attributes of pointers.

/// Context of the address.
pub const POINTER_CONTEXT: u32 = 1;
/// One of the `MEMORY_TYPE_…` constants.
pub const POINTER_MEMORY_TYPE: u32 = 2;
/// Address for the device.
pub const POINTER_DEVICE_POINTER: u32 = 3;
/// Address for the host.
pub const POINTER_HOST_POINTER: u32 = 4;
/// Whether synchronous copies wait for the device.
pub const POINTER_SYNC_MEMOPS: u32 = 6;
/// Number that no other allocation of the process has.
pub const POINTER_BUFFER_ID: u32 = 7;
/// Whether the memory is managed.
pub const POINTER_IS_MANAGED: u32 = 8;
/// The device.
pub const POINTER_DEVICE_ORDINAL: u32 = 9;
/// Start of the allocation, as the device sees it.
pub const POINTER_RANGE_START: u32 = 11;
/// Length of the allocation.
pub const POINTER_RANGE_BYTES: u32 = 12;
/// Whether memory is mapped there.
pub const POINTER_MAPPED: u32 = 13;
/// Access that the pointer's context has.
pub const POINTER_ACCESS_FLAGS: u32 = 16;
/// Pool that the memory came from.
pub const POINTER_POOL: u32 = 17;
/// Host memory.
pub const MEMORY_TYPE_HOST: u32 = 1;
/// Device memory.
pub const MEMORY_TYPE_DEVICE: u32 = 2;
/// Managed memory.
pub const MEMORY_TYPE_UNIFIED: u32 = 4;

// Capture.

/// No thread may make a potentially unsafe call.
pub const CAPTURE_MODE_GLOBAL: u32 = 0;
/// The capturing thread must not make a potentially unsafe call.
pub const CAPTURE_MODE_THREAD_LOCAL: u32 = 1;
/// Potentially unsafe calls are allowed.
pub const CAPTURE_MODE_RELAXED: u32 = 2;
/// The stream is not being captured.
pub const CAPTURE_STATUS_NONE: u32 = 0;
/// The stream is being captured.
pub const CAPTURE_STATUS_ACTIVE: u32 = 1;
/// An error invalidated the stream's capture.
pub const CAPTURE_STATUS_INVALIDATED: u32 = 2;

// Attributes of devices.

/// Maximum number of threads of a block.
pub const DEVICE_MAX_THREADS_PER_BLOCK: u32 = 1;
/// Maximum number of threads of a block in x.
pub const DEVICE_MAX_BLOCK_DIM_X: u32 = 2;
/// Maximum number of threads of a block in y.
pub const DEVICE_MAX_BLOCK_DIM_Y: u32 = 3;
/// Maximum number of threads of a block in z.
pub const DEVICE_MAX_BLOCK_DIM_Z: u32 = 4;
/// Maximum number of blocks of a grid in x.
pub const DEVICE_MAX_GRID_DIM_X: u32 = 5;
/// Maximum number of blocks of a grid in y.
pub const DEVICE_MAX_GRID_DIM_Y: u32 = 6;
/// Maximum number of blocks of a grid in z.
pub const DEVICE_MAX_GRID_DIM_Z: u32 = 7;
/// Maximum number of bytes of shared memory of a block.
pub const DEVICE_MAX_SHARED_MEMORY_PER_BLOCK: u32 = 8;
/// Bytes of constant memory.
pub const DEVICE_TOTAL_CONSTANT_MEMORY: u32 = 9;
/// Threads of a warp.
pub const DEVICE_WARP_SIZE: u32 = 10;
/// Maximum number of registers of a block.
pub const DEVICE_MAX_REGISTERS_PER_BLOCK: u32 = 12;
/// Clock rate in kHz.
pub const DEVICE_CLOCK_RATE: u32 = 13;
/// Alignment of textures in bytes.
pub const DEVICE_TEXTURE_ALIGNMENT: u32 = 14;
/// Whether copies overlap kernels.
pub const DEVICE_GPU_OVERLAP: u32 = 15;
/// The number of multiprocessors.
pub const DEVICE_MULTIPROCESSOR_COUNT: u32 = 16;
/// Whether kernels have a time limit.
pub const DEVICE_KERNEL_EXEC_TIMEOUT: u32 = 17;
/// Whether the device shares the host's memory.
pub const DEVICE_INTEGRATED: u32 = 18;
/// Whether pinned memory can be mapped.
pub const DEVICE_CAN_MAP_HOST_MEMORY: u32 = 19;
/// Restriction on the processes that may use the device.
pub const DEVICE_COMPUTE_MODE: u32 = 20;
/// Whether kernels overlap.
pub const DEVICE_CONCURRENT_KERNELS: u32 = 31;
/// Whether memory errors are corrected.
pub const DEVICE_ECC_ENABLED: u32 = 32;
/// The number of the device's PCI bus.
pub const DEVICE_PCI_BUS_ID: u32 = 33;
/// The device's number on its PCI bus.
pub const DEVICE_PCI_DEVICE_ID: u32 = 34;
/// Clock rate of the memory in kHz.
pub const DEVICE_MEMORY_CLOCK_RATE: u32 = 36;
/// Width of the memory bus in bits.
pub const DEVICE_GLOBAL_MEMORY_BUS_WIDTH: u32 = 37;
/// Bytes of level 2 cache.
pub const DEVICE_L2_CACHE_SIZE: u32 = 38;
/// Maximum number of threads of a multiprocessor.
pub const DEVICE_MAX_THREADS_PER_MULTIPROCESSOR: u32 = 39;
/// The number of copy engines.
pub const DEVICE_ASYNC_ENGINE_COUNT: u32 = 40;
/// Whether host and devices share one address space.
pub const DEVICE_UNIFIED_ADDRESSING: u32 = 41;
/// The device's PCI domain.
pub const DEVICE_PCI_DOMAIN_ID: u32 = 50;
/// The major number of the compute capability.
pub const DEVICE_COMPUTE_CAPABILITY_MAJOR: u32 = 75;
/// The minor number of the compute capability.
pub const DEVICE_COMPUTE_CAPABILITY_MINOR: u32 = 76;
/// Whether streams have priorities.
pub const DEVICE_STREAM_PRIORITIES_SUPPORTED: u32 = 78;
/// Maximum number of bytes of shared memory of a multiprocessor.
pub const DEVICE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: u32 = 81;
/// Maximum number of registers of a multiprocessor.
pub const DEVICE_MAX_REGISTERS_PER_MULTIPROCESSOR: u32 = 82;
/// Whether managed memory is supported.
pub const DEVICE_MANAGED_MEMORY: u32 = 83;
/// Whether the device can access pageable memory.
pub const DEVICE_PAGEABLE_MEMORY_ACCESS: u32 = 88;
/// Whether host and device may use managed memory at the same time.
pub const DEVICE_CONCURRENT_MANAGED_ACCESS: u32 = 89;
/// Whether kernels can be interrupted.
pub const DEVICE_COMPUTE_PREEMPTION_SUPPORTED: u32 = 90;
/// Whether the device can use registered memory at its host address.
pub const DEVICE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: u32 = 91;
/// Whether cooperative launches are supported.
pub const DEVICE_COOPERATIVE_LAUNCH: u32 = 95;
/// Maximum number of bytes of shared memory that a block may request.
pub const DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: u32 = 97;
/// Whether host memory can be registered.
pub const DEVICE_HOST_REGISTER_SUPPORTED: u32 = 99;
/// Whether the virtual memory calls are supported.
pub const DEVICE_VIRTUAL_MEMORY_SUPPORTED: u32 = 102;
/// Whether handles can be exported as file descriptors.
pub const DEVICE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: u32 = 103;
/// Whether network cards can access memory that the virtual memory calls created for
/// them.
pub const DEVICE_RDMA_WITH_VIRTUAL_MEMORY_SUPPORTED: u32 = 110;
/// Whether memory pools are supported.
pub const DEVICE_MEMORY_POOLS_SUPPORTED: u32 = 115;
/// Bits of `MEM_HANDLE_TYPE_…`: how pools may be exported.
pub const DEVICE_MEMPOOL_SUPPORTED_HANDLE_TYPES: u32 = 119;
