//! Compares our declarations of the driver's interface with cudarc's bindings: every layout, number and name.

use std::mem::{offset_of, size_of};

use cudarc::driver::sys;
use larder_cuda_abi::{
    AccessDesc, AllocFlags, AllocationProp, Code, ContextHandle, DevicePtr, DeviceUuid,
    EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, GraphNodeHandle, LaunchConfig,
    Location, MemoryHandle, ModuleHandle, PoolHandle, PoolProps, StreamHandle,
};

#[test]
fn handles_are_as_wide_as_the_bindings() {
    assert_eq!(size_of::<Code>(), size_of::<sys::CUresult>());
    assert_eq!(size_of::<DevicePtr>(), size_of::<sys::CUdeviceptr>());
    assert_eq!(
        size_of::<MemoryHandle>(),
        size_of::<sys::CUmemGenericAllocationHandle>()
    );
    assert_eq!(size_of::<ContextHandle>(), size_of::<sys::CUcontext>());
    assert_eq!(size_of::<StreamHandle>(), size_of::<sys::CUstream>());
    assert_eq!(size_of::<EventHandle>(), size_of::<sys::CUevent>());
    assert_eq!(size_of::<PoolHandle>(), size_of::<sys::CUmemoryPool>());
    assert_eq!(size_of::<ModuleHandle>(), size_of::<sys::CUmodule>());
    assert_eq!(size_of::<FunctionHandle>(), size_of::<sys::CUfunction>());
    assert_eq!(size_of::<GraphHandle>(), size_of::<sys::CUgraph>());
    assert_eq!(size_of::<GraphNodeHandle>(), size_of::<sys::CUgraphNode>());
    assert_eq!(size_of::<GraphExecHandle>(), size_of::<sys::CUgraphExec>());
    assert_eq!(size_of::<DeviceUuid>(), size_of::<sys::CUuuid>());
}

#[test]
fn default_streams_have_the_same_numbers() {
    assert_eq!(StreamHandle::LEGACY.0, 1, "CU_STREAM_LEGACY is a cast in C");
    assert_eq!(
        StreamHandle::PER_THREAD.0,
        2,
        "and so is CU_STREAM_PER_THREAD"
    );
}

/// Compares the size of a structure, and the offsets of the named fields.
macro_rules! lies_alike {
    ($ours:ident, $theirs:ident: $($our:ident = $their:ident)*) => {
        assert_eq!(size_of::<$ours>(), size_of::<sys::$theirs>());
        $(
            let places = (offset_of!($ours, $our), offset_of!(sys::$theirs, $their));
            assert_eq!(places.0, places.1, stringify!($our));
        )*
    };
}

#[test]
fn virtual_memory_structures_lie_as_in_the_bindings() {
    lies_alike!(Location, CUmemLocation_st: kind = type_);
    assert_eq!(offset_of!(Location, id), 4);
    lies_alike!(
        AllocationProp, CUmemAllocationProp_st:
        kind = type_
        handle_types = requestedHandleTypes
        location = location
        win32_meta_data = win32HandleMetaData
        flags = allocFlags
    );
    lies_alike!(
        AllocFlags, CUmemAllocationProp_st__bindgen_ty_1:
        compression = compressionType
        rdma_capable = gpuDirectRDMACapable
        usage = usage
        reserved = reserved
    );
    lies_alike!(AccessDesc, CUmemAccessDesc_st: location = location flags = flags);
}

#[test]
fn pool_properties_lie_as_in_the_bindings() {
    lies_alike!(
        PoolProps, CUmemPoolProps_st:
        kind = allocType
        handle_types = handleTypes
        location = location
        win32_security_attributes = win32SecurityAttributes
    );
    // Later versions of CUDA took these from the reserved bytes.
    assert_eq!(offset_of!(PoolProps, max_bytes), 24);
    assert_eq!(offset_of!(PoolProps, usage), 32);
}

#[test]
fn a_launch_lies_as_in_the_bindings() {
    lies_alike!(
        LaunchConfig, CUlaunchConfig_st:
        grid = gridDimX
        block = blockDimX
        shared_bytes = sharedMemBytes
        stream = hStream
        attributes = attrs
        attribute_count = numAttrs
    );
}

/// The numbers and names of CUDA 12.8, which has all that we declare.
mod numbers {
    use super::*;
    use larder_cuda_abi::constants;

    macro_rules! codes {
        ($($name:ident)*) => {
            &[$((sys::CUresult::$name as u32, stringify!($name))),*]
        };
    }

    const CODES: &[(u32, &str)] = codes![
        CUDA_SUCCESS CUDA_ERROR_INVALID_VALUE CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_NOT_INITIALIZED
        CUDA_ERROR_DEINITIALIZED CUDA_ERROR_PROFILER_DISABLED CUDA_ERROR_STUB_LIBRARY
        CUDA_ERROR_NO_DEVICE CUDA_ERROR_INVALID_DEVICE CUDA_ERROR_DEVICE_NOT_LICENSED
        CUDA_ERROR_INVALID_IMAGE CUDA_ERROR_INVALID_CONTEXT CUDA_ERROR_MAP_FAILED
        CUDA_ERROR_UNMAP_FAILED CUDA_ERROR_ARRAY_IS_MAPPED CUDA_ERROR_ALREADY_MAPPED
        CUDA_ERROR_NO_BINARY_FOR_GPU CUDA_ERROR_ALREADY_ACQUIRED CUDA_ERROR_NOT_MAPPED
        CUDA_ERROR_ECC_UNCORRECTABLE CUDA_ERROR_UNSUPPORTED_LIMIT
        CUDA_ERROR_CONTEXT_ALREADY_IN_USE CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
        CUDA_ERROR_INVALID_PTX CUDA_ERROR_NVLINK_UNCORRECTABLE CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        CUDA_ERROR_CONTAINED CUDA_ERROR_INVALID_SOURCE CUDA_ERROR_FILE_NOT_FOUND
        CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
        CUDA_ERROR_OPERATING_SYSTEM CUDA_ERROR_INVALID_HANDLE CUDA_ERROR_ILLEGAL_STATE
        CUDA_ERROR_NOT_FOUND CUDA_ERROR_NOT_READY CUDA_ERROR_ILLEGAL_ADDRESS
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES CUDA_ERROR_LAUNCH_TIMEOUT
        CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
        CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE CUDA_ERROR_CONTEXT_IS_DESTROYED CUDA_ERROR_ASSERT
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
        CUDA_ERROR_HARDWARE_STACK_ERROR CUDA_ERROR_ILLEGAL_INSTRUCTION
        CUDA_ERROR_MISALIGNED_ADDRESS CUDA_ERROR_INVALID_ADDRESS_SPACE CUDA_ERROR_INVALID_PC
        CUDA_ERROR_LAUNCH_FAILED CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
        CUDA_ERROR_TENSOR_MEMORY_LEAK CUDA_ERROR_NOT_PERMITTED CUDA_ERROR_NOT_SUPPORTED
        CUDA_ERROR_SYSTEM_NOT_READY CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE CUDA_ERROR_MPS_CLIENT_TERMINATED
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        CUDA_ERROR_STREAM_CAPTURE_MERGE CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT CUDA_ERROR_CAPTURED_EVENT
        CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD CUDA_ERROR_TIMEOUT
        CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE CUDA_ERROR_EXTERNAL_DEVICE CUDA_ERROR_UNKNOWN
    ];

    #[test]
    fn every_code_has_the_number_and_the_name_of_the_bindings() {
        for (number, name) in CODES {
            assert_eq!(Code(*number).name(), Some(*name));
        }
        let numbers = CODES.iter().map(|(number, _)| Code(*number));
        assert!(Code::all().eq(numbers), "each code is compared");
    }

    /// Pairs our names and values with those of the bindings.
    macro_rules! constants {
        ($($ours:ident = $theirs:expr;)*) => {{
            use sys::{
                *,
                CUctx_flags_enum::*, CUdevice_attribute_enum::*,
                CUevent_flags_enum::*, CUmemAccess_flags_enum::*,
                CUmemAllocationGranularity_flags_enum::*,
                CUmemAllocationType_enum::*, CUmemAttach_flags_enum::*,
                CUmemLocationType_enum::*, CUmemPool_attribute_enum::*,
                CUmemorytype_enum::*, CUpointer_attribute_enum::*,
                CUstreamCaptureMode_enum::*, CUstreamCaptureStatus_enum::*,
                CUstream_flags_enum::*,
            };
            &[$((stringify!($ours), constants::$ours, $theirs as u32)),*]
        }};
    }

    const CONSTANTS: &[(&str, u32, u32)] = constants! {
        STREAM_NON_BLOCKING = CU_STREAM_NON_BLOCKING;
        EVENT_BLOCKING_SYNC = CU_EVENT_BLOCKING_SYNC;
        EVENT_DISABLE_TIMING = CU_EVENT_DISABLE_TIMING;
        EVENT_INTERPROCESS = CU_EVENT_INTERPROCESS;
        CTX_SCHED_MASK = CU_CTX_SCHED_MASK;
        HOST_ALLOC_PORTABLE = CU_MEMHOSTALLOC_PORTABLE;
        HOST_ALLOC_DEVICEMAP = CU_MEMHOSTALLOC_DEVICEMAP;
        HOST_ALLOC_WRITECOMBINED = CU_MEMHOSTALLOC_WRITECOMBINED;
        HOST_REGISTER_PORTABLE = CU_MEMHOSTREGISTER_PORTABLE;
        HOST_REGISTER_DEVICEMAP = CU_MEMHOSTREGISTER_DEVICEMAP;
        HOST_REGISTER_IOMEMORY = CU_MEMHOSTREGISTER_IOMEMORY;
        HOST_REGISTER_READ_ONLY = CU_MEMHOSTREGISTER_READ_ONLY;
        MEM_ATTACH_GLOBAL = CU_MEM_ATTACH_GLOBAL;
        MEM_ATTACH_HOST = CU_MEM_ATTACH_HOST;
        MEM_ATTACH_SINGLE = CU_MEM_ATTACH_SINGLE;
        MEM_ALLOCATION_TYPE_PINNED = CU_MEM_ALLOCATION_TYPE_PINNED;
        MEM_LOCATION_DEVICE = CU_MEM_LOCATION_TYPE_DEVICE;
        MEM_LOCATION_HOST = CU_MEM_LOCATION_TYPE_HOST;
        MEM_LOCATION_HOST_NUMA = CU_MEM_LOCATION_TYPE_HOST_NUMA;
        MEM_ACCESS_NONE = CU_MEM_ACCESS_FLAGS_PROT_NONE;
        MEM_ACCESS_READ = CU_MEM_ACCESS_FLAGS_PROT_READ;
        MEM_ACCESS_READ_WRITE = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        MEM_GRANULARITY_MINIMUM = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        MEM_GRANULARITY_RECOMMENDED = CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
        POOL_REUSE_ALLOW_OPPORTUNISTIC = CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC;
        POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES = CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
        POOL_RELEASE_THRESHOLD = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        POOL_RESERVED_CURRENT = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        POOL_RESERVED_HIGH = CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        POOL_USED_CURRENT = CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        POOL_USED_HIGH = CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        POINTER_CONTEXT = CU_POINTER_ATTRIBUTE_CONTEXT;
        POINTER_MEMORY_TYPE = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        POINTER_DEVICE_POINTER = CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
        POINTER_HOST_POINTER = CU_POINTER_ATTRIBUTE_HOST_POINTER;
        POINTER_SYNC_MEMOPS = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        POINTER_BUFFER_ID = CU_POINTER_ATTRIBUTE_BUFFER_ID;
        POINTER_IS_MANAGED = CU_POINTER_ATTRIBUTE_IS_MANAGED;
        POINTER_DEVICE_ORDINAL = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        POINTER_RANGE_START = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
        POINTER_RANGE_BYTES = CU_POINTER_ATTRIBUTE_RANGE_SIZE;
        POINTER_MAPPED = CU_POINTER_ATTRIBUTE_MAPPED;
        POINTER_ACCESS_FLAGS = CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
        POINTER_POOL = CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
        MEMORY_TYPE_HOST = CU_MEMORYTYPE_HOST;
        MEMORY_TYPE_DEVICE = CU_MEMORYTYPE_DEVICE;
        MEMORY_TYPE_UNIFIED = CU_MEMORYTYPE_UNIFIED;
        CAPTURE_MODE_GLOBAL = CU_STREAM_CAPTURE_MODE_GLOBAL;
        CAPTURE_MODE_THREAD_LOCAL = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        CAPTURE_MODE_RELAXED = CU_STREAM_CAPTURE_MODE_RELAXED;
        CAPTURE_STATUS_NONE = CU_STREAM_CAPTURE_STATUS_NONE;
        CAPTURE_STATUS_ACTIVE = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        CAPTURE_STATUS_INVALIDATED = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        DEVICE_MAX_THREADS_PER_BLOCK = CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        DEVICE_MAX_BLOCK_DIM_X = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X;
        DEVICE_MAX_BLOCK_DIM_Y = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y;
        DEVICE_MAX_BLOCK_DIM_Z = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z;
        DEVICE_MAX_GRID_DIM_X = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X;
        DEVICE_MAX_GRID_DIM_Y = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y;
        DEVICE_MAX_GRID_DIM_Z = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z;
        DEVICE_MAX_SHARED_MEMORY_PER_BLOCK = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK;
        DEVICE_TOTAL_CONSTANT_MEMORY = CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY;
        DEVICE_WARP_SIZE = CU_DEVICE_ATTRIBUTE_WARP_SIZE;
        DEVICE_MAX_REGISTERS_PER_BLOCK = CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK;
        DEVICE_CLOCK_RATE = CU_DEVICE_ATTRIBUTE_CLOCK_RATE;
        DEVICE_TEXTURE_ALIGNMENT = CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT;
        DEVICE_GPU_OVERLAP = CU_DEVICE_ATTRIBUTE_GPU_OVERLAP;
        DEVICE_MULTIPROCESSOR_COUNT = CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        DEVICE_KERNEL_EXEC_TIMEOUT = CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT;
        DEVICE_INTEGRATED = CU_DEVICE_ATTRIBUTE_INTEGRATED;
        DEVICE_CAN_MAP_HOST_MEMORY = CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY;
        DEVICE_COMPUTE_MODE = CU_DEVICE_ATTRIBUTE_COMPUTE_MODE;
        DEVICE_CONCURRENT_KERNELS = CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS;
        DEVICE_ECC_ENABLED = CU_DEVICE_ATTRIBUTE_ECC_ENABLED;
        DEVICE_PCI_BUS_ID = CU_DEVICE_ATTRIBUTE_PCI_BUS_ID;
        DEVICE_PCI_DEVICE_ID = CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID;
        DEVICE_MEMORY_CLOCK_RATE = CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE;
        DEVICE_GLOBAL_MEMORY_BUS_WIDTH = CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH;
        DEVICE_L2_CACHE_SIZE = CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        DEVICE_MAX_THREADS_PER_MULTIPROCESSOR = CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR;
        DEVICE_ASYNC_ENGINE_COUNT = CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT;
        DEVICE_UNIFIED_ADDRESSING = CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
        DEVICE_PCI_DOMAIN_ID = CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID;
        DEVICE_COMPUTE_CAPABILITY_MAJOR = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        DEVICE_COMPUTE_CAPABILITY_MINOR = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        DEVICE_STREAM_PRIORITIES_SUPPORTED = CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED;
        DEVICE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR =
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
        DEVICE_MAX_REGISTERS_PER_MULTIPROCESSOR =
            CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR;
        DEVICE_MANAGED_MEMORY = CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY;
        DEVICE_PAGEABLE_MEMORY_ACCESS = CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
        DEVICE_CONCURRENT_MANAGED_ACCESS = CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        DEVICE_COMPUTE_PREEMPTION_SUPPORTED = CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED;
        DEVICE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM =
            CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        DEVICE_COOPERATIVE_LAUNCH = CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH;
        DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN =
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        DEVICE_HOST_REGISTER_SUPPORTED = CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED;
        DEVICE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED =
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        DEVICE_RDMA_WITH_VIRTUAL_MEMORY_SUPPORTED =
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        DEVICE_MEMORY_POOLS_SUPPORTED = CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        DEVICE_MEMPOOL_SUPPORTED_HANDLE_TYPES = CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES;
        DEVICE_VIRTUAL_MEMORY_SUPPORTED = CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
        MEM_HANDLE_TYPE_NONE = CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_NONE.0;
        MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR =
            CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
    };

    #[test]
    fn every_constant_has_the_number_of_the_bindings() {
        for (name, ours, theirs) in CONSTANTS {
            assert_eq!(ours, theirs, "{name}");
        }
        let written = include_str!("../../abi/src/constants.rs");
        let count = written.matches("pub const ").count();
        assert_eq!(CONSTANTS.len(), count, "each constant is compared");
    }
}
