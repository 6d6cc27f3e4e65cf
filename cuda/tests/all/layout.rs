//! The interface as we write it down, beside cudarc's bindings: every layout, number and name.

use std::mem::{offset_of, size_of};

use cudarc::driver::sys;
use larder_cuda_abi::{
    AccessDesc, AllocFlags, AllocationProp, Code, ContextHandle, DevicePtr, DeviceUuid,
    EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, GraphNodeHandle, Location,
    MemoryHandle, ModuleHandle, PoolHandle, PoolProps, StreamHandle,
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

#[test]
fn virtual_memory_structures_lie_as_in_the_bindings() {
    type TheirLocation = sys::CUmemLocation_st;
    assert_eq!(size_of::<Location>(), size_of::<TheirLocation>());
    assert_eq!(offset_of!(Location, kind), offset_of!(TheirLocation, type_));
    assert_eq!(offset_of!(Location, id), 4);

    type TheirProp = sys::CUmemAllocationProp_st;
    assert_eq!(size_of::<AllocationProp>(), size_of::<TheirProp>());
    let pairs = [
        (
            offset_of!(AllocationProp, kind),
            offset_of!(TheirProp, type_),
        ),
        (
            offset_of!(AllocationProp, handle_types),
            offset_of!(TheirProp, requestedHandleTypes),
        ),
        (
            offset_of!(AllocationProp, location),
            offset_of!(TheirProp, location),
        ),
        (
            offset_of!(AllocationProp, win32_meta_data),
            offset_of!(TheirProp, win32HandleMetaData),
        ),
        (
            offset_of!(AllocationProp, flags),
            offset_of!(TheirProp, allocFlags),
        ),
    ];
    assert_same(&pairs);

    type TheirFlags = sys::CUmemAllocationProp_st__bindgen_ty_1;
    assert_eq!(size_of::<AllocFlags>(), size_of::<TheirFlags>());
    let pairs = [
        (
            offset_of!(AllocFlags, compression),
            offset_of!(TheirFlags, compressionType),
        ),
        (
            offset_of!(AllocFlags, rdma_capable),
            offset_of!(TheirFlags, gpuDirectRDMACapable),
        ),
        (offset_of!(AllocFlags, usage), offset_of!(TheirFlags, usage)),
        (
            offset_of!(AllocFlags, reserved),
            offset_of!(TheirFlags, reserved),
        ),
    ];
    assert_same(&pairs);

    type TheirAccess = sys::CUmemAccessDesc_st;
    assert_eq!(size_of::<AccessDesc>(), size_of::<TheirAccess>());
    let pairs = [
        (
            offset_of!(AccessDesc, location),
            offset_of!(TheirAccess, location),
        ),
        (
            offset_of!(AccessDesc, flags),
            offset_of!(TheirAccess, flags),
        ),
    ];
    assert_same(&pairs);
}

#[test]
fn pool_properties_lie_as_in_the_bindings() {
    type Theirs = sys::CUmemPoolProps_st;
    assert_eq!(size_of::<PoolProps>(), size_of::<Theirs>());
    let pairs = [
        (offset_of!(PoolProps, kind), offset_of!(Theirs, allocType)),
        (
            offset_of!(PoolProps, handle_types),
            offset_of!(Theirs, handleTypes),
        ),
        (
            offset_of!(PoolProps, location),
            offset_of!(Theirs, location),
        ),
        (
            offset_of!(PoolProps, win32_security_attributes),
            offset_of!(Theirs, win32SecurityAttributes),
        ),
    ];
    assert_same(&pairs);
    // Later versions cut these from what was reserved.
    assert_eq!(offset_of!(PoolProps, max_bytes), 24);
    assert_eq!(offset_of!(PoolProps, usage), 32);
}

#[test]
fn a_launch_lies_as_in_the_bindings() {
    use larder_cuda_abi::LaunchConfig;
    type Theirs = sys::CUlaunchConfig_st;
    assert_eq!(size_of::<LaunchConfig>(), size_of::<Theirs>());
    let pairs = [
        (offset_of!(LaunchConfig, grid), offset_of!(Theirs, gridDimX)),
        (
            offset_of!(LaunchConfig, block),
            offset_of!(Theirs, blockDimX),
        ),
        (
            offset_of!(LaunchConfig, shared_bytes),
            offset_of!(Theirs, sharedMemBytes),
        ),
        (
            offset_of!(LaunchConfig, stream),
            offset_of!(Theirs, hStream),
        ),
        (
            offset_of!(LaunchConfig, attributes),
            offset_of!(Theirs, attrs),
        ),
        (
            offset_of!(LaunchConfig, attribute_count),
            offset_of!(Theirs, numAttrs),
        ),
    ];
    assert_same(&pairs);
}

fn assert_same(pairs: &[(usize, usize)]) {
    for (index, (ours, theirs)) in pairs.iter().enumerate() {
        assert_eq!(ours, theirs, "field {index}");
    }
}

/// The numbers and names of version 12.8, which has all that we know.
mod numbers {
    use super::*;
    use larder_cuda_abi::constants;
    use sys::CUresult as Result;

    const CODES: &[(Code, Result)] = &[
        (Code::SUCCESS, Result::CUDA_SUCCESS),
        (Code::INVALID_VALUE, Result::CUDA_ERROR_INVALID_VALUE),
        (Code::OUT_OF_MEMORY, Result::CUDA_ERROR_OUT_OF_MEMORY),
        (Code::NOT_INITIALIZED, Result::CUDA_ERROR_NOT_INITIALIZED),
        (Code::DEINITIALIZED, Result::CUDA_ERROR_DEINITIALIZED),
        (
            Code::PROFILER_DISABLED,
            Result::CUDA_ERROR_PROFILER_DISABLED,
        ),
        (Code::STUB_LIBRARY, Result::CUDA_ERROR_STUB_LIBRARY),
        (Code::NO_DEVICE, Result::CUDA_ERROR_NO_DEVICE),
        (Code::INVALID_DEVICE, Result::CUDA_ERROR_INVALID_DEVICE),
        (
            Code::DEVICE_NOT_LICENSED,
            Result::CUDA_ERROR_DEVICE_NOT_LICENSED,
        ),
        (Code::INVALID_IMAGE, Result::CUDA_ERROR_INVALID_IMAGE),
        (Code::INVALID_CONTEXT, Result::CUDA_ERROR_INVALID_CONTEXT),
        (Code::MAP_FAILED, Result::CUDA_ERROR_MAP_FAILED),
        (Code::UNMAP_FAILED, Result::CUDA_ERROR_UNMAP_FAILED),
        (Code::ARRAY_IS_MAPPED, Result::CUDA_ERROR_ARRAY_IS_MAPPED),
        (Code::ALREADY_MAPPED, Result::CUDA_ERROR_ALREADY_MAPPED),
        (
            Code::NO_BINARY_FOR_GPU,
            Result::CUDA_ERROR_NO_BINARY_FOR_GPU,
        ),
        (Code::ALREADY_ACQUIRED, Result::CUDA_ERROR_ALREADY_ACQUIRED),
        (Code::NOT_MAPPED, Result::CUDA_ERROR_NOT_MAPPED),
        (
            Code::ECC_UNCORRECTABLE,
            Result::CUDA_ERROR_ECC_UNCORRECTABLE,
        ),
        (
            Code::UNSUPPORTED_LIMIT,
            Result::CUDA_ERROR_UNSUPPORTED_LIMIT,
        ),
        (
            Code::CONTEXT_ALREADY_IN_USE,
            Result::CUDA_ERROR_CONTEXT_ALREADY_IN_USE,
        ),
        (
            Code::PEER_ACCESS_UNSUPPORTED,
            Result::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        ),
        (Code::INVALID_PTX, Result::CUDA_ERROR_INVALID_PTX),
        (
            Code::NVLINK_UNCORRECTABLE,
            Result::CUDA_ERROR_NVLINK_UNCORRECTABLE,
        ),
        (
            Code::UNSUPPORTED_PTX_VERSION,
            Result::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        ),
        (Code::CONTAINED, Result::CUDA_ERROR_CONTAINED),
        (Code::INVALID_SOURCE, Result::CUDA_ERROR_INVALID_SOURCE),
        (Code::FILE_NOT_FOUND, Result::CUDA_ERROR_FILE_NOT_FOUND),
        (
            Code::SHARED_OBJECT_SYMBOL_NOT_FOUND,
            Result::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND,
        ),
        (
            Code::SHARED_OBJECT_INIT_FAILED,
            Result::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
        ),
        (Code::OPERATING_SYSTEM, Result::CUDA_ERROR_OPERATING_SYSTEM),
        (Code::INVALID_HANDLE, Result::CUDA_ERROR_INVALID_HANDLE),
        (Code::ILLEGAL_STATE, Result::CUDA_ERROR_ILLEGAL_STATE),
        (Code::NOT_FOUND, Result::CUDA_ERROR_NOT_FOUND),
        (Code::NOT_READY, Result::CUDA_ERROR_NOT_READY),
        (Code::ILLEGAL_ADDRESS, Result::CUDA_ERROR_ILLEGAL_ADDRESS),
        (
            Code::LAUNCH_OUT_OF_RESOURCES,
            Result::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        ),
        (Code::LAUNCH_TIMEOUT, Result::CUDA_ERROR_LAUNCH_TIMEOUT),
        (
            Code::PEER_ACCESS_ALREADY_ENABLED,
            Result::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        ),
        (
            Code::PEER_ACCESS_NOT_ENABLED,
            Result::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
        ),
        (
            Code::PRIMARY_CONTEXT_ACTIVE,
            Result::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
        ),
        (
            Code::CONTEXT_IS_DESTROYED,
            Result::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        ),
        (Code::ASSERT, Result::CUDA_ERROR_ASSERT),
        (
            Code::HOST_MEMORY_ALREADY_REGISTERED,
            Result::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        ),
        (
            Code::HOST_MEMORY_NOT_REGISTERED,
            Result::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        ),
        (
            Code::HARDWARE_STACK_ERROR,
            Result::CUDA_ERROR_HARDWARE_STACK_ERROR,
        ),
        (
            Code::ILLEGAL_INSTRUCTION,
            Result::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        ),
        (
            Code::MISALIGNED_ADDRESS,
            Result::CUDA_ERROR_MISALIGNED_ADDRESS,
        ),
        (
            Code::INVALID_ADDRESS_SPACE,
            Result::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        ),
        (Code::INVALID_PC, Result::CUDA_ERROR_INVALID_PC),
        (Code::LAUNCH_FAILED, Result::CUDA_ERROR_LAUNCH_FAILED),
        (
            Code::COOPERATIVE_LAUNCH_TOO_LARGE,
            Result::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        ),
        (
            Code::TENSOR_MEMORY_LEAK,
            Result::CUDA_ERROR_TENSOR_MEMORY_LEAK,
        ),
        (Code::NOT_PERMITTED, Result::CUDA_ERROR_NOT_PERMITTED),
        (Code::NOT_SUPPORTED, Result::CUDA_ERROR_NOT_SUPPORTED),
        (Code::SYSTEM_NOT_READY, Result::CUDA_ERROR_SYSTEM_NOT_READY),
        (
            Code::SYSTEM_DRIVER_MISMATCH,
            Result::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        ),
        (
            Code::COMPAT_NOT_SUPPORTED_ON_DEVICE,
            Result::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        ),
        (
            Code::MPS_CLIENT_TERMINATED,
            Result::CUDA_ERROR_MPS_CLIENT_TERMINATED,
        ),
        (
            Code::STREAM_CAPTURE_UNSUPPORTED,
            Result::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        ),
        (
            Code::STREAM_CAPTURE_INVALIDATED,
            Result::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        ),
        (
            Code::STREAM_CAPTURE_MERGE,
            Result::CUDA_ERROR_STREAM_CAPTURE_MERGE,
        ),
        (
            Code::STREAM_CAPTURE_UNMATCHED,
            Result::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        ),
        (
            Code::STREAM_CAPTURE_UNJOINED,
            Result::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
        ),
        (
            Code::STREAM_CAPTURE_ISOLATION,
            Result::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        ),
        (
            Code::STREAM_CAPTURE_IMPLICIT,
            Result::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        ),
        (Code::CAPTURED_EVENT, Result::CUDA_ERROR_CAPTURED_EVENT),
        (
            Code::STREAM_CAPTURE_WRONG_THREAD,
            Result::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        ),
        (Code::TIMEOUT, Result::CUDA_ERROR_TIMEOUT),
        (
            Code::GRAPH_EXEC_UPDATE_FAILURE,
            Result::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
        ),
        (Code::EXTERNAL_DEVICE, Result::CUDA_ERROR_EXTERNAL_DEVICE),
        (Code::UNKNOWN, Result::CUDA_ERROR_UNKNOWN),
    ];

    #[test]
    fn every_code_has_the_number_and_the_name_of_the_bindings() {
        for (ours, theirs) in CODES {
            assert_eq!(ours.0, *theirs as u32, "{ours:?}");
            assert_eq!(ours.name(), Some(format!("{theirs:?}").as_str()));
        }
        let listed: Vec<Code> = CODES.iter().map(|(ours, _)| *ours).collect();
        assert!(Code::all().eq(listed), "each code is compared");
    }

    const CONSTANTS: &[(u32, u32)] = &[
        (constants::STREAM_NON_BLOCKING, sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32),
        (constants::EVENT_BLOCKING_SYNC, sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32),
        (constants::EVENT_DISABLE_TIMING, sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32),
        (constants::EVENT_INTERPROCESS, sys::CUevent_flags_enum::CU_EVENT_INTERPROCESS as u32),
        (constants::CTX_SCHED_MASK, sys::CUctx_flags_enum::CU_CTX_SCHED_MASK as u32),
        (constants::HOST_ALLOC_PORTABLE, sys::CU_MEMHOSTALLOC_PORTABLE),
        (constants::HOST_ALLOC_DEVICEMAP, sys::CU_MEMHOSTALLOC_DEVICEMAP),
        (constants::HOST_ALLOC_WRITECOMBINED, sys::CU_MEMHOSTALLOC_WRITECOMBINED),
        (constants::HOST_REGISTER_PORTABLE, sys::CU_MEMHOSTREGISTER_PORTABLE),
        (constants::HOST_REGISTER_DEVICEMAP, sys::CU_MEMHOSTREGISTER_DEVICEMAP),
        (constants::HOST_REGISTER_IOMEMORY, sys::CU_MEMHOSTREGISTER_IOMEMORY),
        (constants::HOST_REGISTER_READ_ONLY, sys::CU_MEMHOSTREGISTER_READ_ONLY),
        (constants::MEM_ATTACH_GLOBAL, sys::CUmemAttach_flags_enum::CU_MEM_ATTACH_GLOBAL as u32),
        (constants::MEM_ATTACH_HOST, sys::CUmemAttach_flags_enum::CU_MEM_ATTACH_HOST as u32),
        (constants::MEM_ATTACH_SINGLE, sys::CUmemAttach_flags_enum::CU_MEM_ATTACH_SINGLE as u32),
        (constants::MEM_ALLOCATION_TYPE_PINNED, sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED as u32),
        (constants::MEM_LOCATION_DEVICE, sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE as u32),
        (constants::MEM_LOCATION_HOST, sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_HOST as u32),
        (constants::MEM_LOCATION_HOST_NUMA, sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_HOST_NUMA as u32),
        (constants::MEM_ACCESS_NONE, sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_NONE as u32),
        (constants::MEM_ACCESS_READ, sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READ as u32),
        (constants::MEM_ACCESS_READ_WRITE, sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32),
        (constants::MEM_GRANULARITY_MINIMUM, sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM as u32),
        (constants::MEM_GRANULARITY_RECOMMENDED, sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED as u32),
        (constants::POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES, sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES as u32),
        (constants::POOL_REUSE_ALLOW_OPPORTUNISTIC, sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC as u32),
        (constants::POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES, sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES as u32),
        (constants::POOL_RELEASE_THRESHOLD, sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as u32),
        (constants::POOL_RESERVED_CURRENT, sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as u32),
        (constants::POOL_RESERVED_HIGH, sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as u32),
        (constants::POOL_USED_CURRENT, sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_USED_MEM_CURRENT as u32),
        (constants::POOL_USED_HIGH, sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_USED_MEM_HIGH as u32),
        (constants::POINTER_CONTEXT, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_CONTEXT as u32),
        (constants::POINTER_MEMORY_TYPE, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as u32),
        (constants::POINTER_DEVICE_POINTER, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_DEVICE_POINTER as u32),
        (constants::POINTER_HOST_POINTER, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_HOST_POINTER as u32),
        (constants::POINTER_SYNC_MEMOPS, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as u32),
        (constants::POINTER_BUFFER_ID, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_BUFFER_ID as u32),
        (constants::POINTER_IS_MANAGED, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_IS_MANAGED as u32),
        (constants::POINTER_DEVICE_ORDINAL, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as u32),
        (constants::POINTER_RANGE_START, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as u32),
        (constants::POINTER_RANGE_BYTES, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_RANGE_SIZE as u32),
        (constants::POINTER_MAPPED, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MAPPED as u32),
        (constants::POINTER_ACCESS_FLAGS, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS as u32),
        (constants::POINTER_POOL, sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as u32),
        (constants::MEMORY_TYPE_HOST, sys::CUmemorytype_enum::CU_MEMORYTYPE_HOST as u32),
        (constants::MEMORY_TYPE_DEVICE, sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32),
        (constants::MEMORY_TYPE_UNIFIED, sys::CUmemorytype_enum::CU_MEMORYTYPE_UNIFIED as u32),
        (constants::CAPTURE_MODE_GLOBAL, sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_GLOBAL as u32),
        (constants::CAPTURE_MODE_THREAD_LOCAL, sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32),
        (constants::CAPTURE_MODE_RELAXED, sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED as u32),
        (constants::CAPTURE_STATUS_NONE, sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE as u32),
        (constants::CAPTURE_STATUS_ACTIVE, sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_ACTIVE as u32),
        (constants::CAPTURE_STATUS_INVALIDATED, sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_INVALIDATED as u32),
        (constants::DEVICE_MAX_THREADS_PER_BLOCK, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK as u32),
        (constants::DEVICE_MAX_BLOCK_DIM_X, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X as u32),
        (constants::DEVICE_MAX_BLOCK_DIM_Y, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y as u32),
        (constants::DEVICE_MAX_BLOCK_DIM_Z, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z as u32),
        (constants::DEVICE_MAX_GRID_DIM_X, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X as u32),
        (constants::DEVICE_MAX_GRID_DIM_Y, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y as u32),
        (constants::DEVICE_MAX_GRID_DIM_Z, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z as u32),
        (constants::DEVICE_MAX_SHARED_MEMORY_PER_BLOCK, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK as u32),
        (constants::DEVICE_TOTAL_CONSTANT_MEMORY, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY as u32),
        (constants::DEVICE_WARP_SIZE, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_WARP_SIZE as u32),
        (constants::DEVICE_MAX_REGISTERS_PER_BLOCK, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK as u32),
        (constants::DEVICE_CLOCK_RATE, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_CLOCK_RATE as u32),
        (constants::DEVICE_TEXTURE_ALIGNMENT, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT as u32),
        (constants::DEVICE_GPU_OVERLAP, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP as u32),
        (constants::DEVICE_MULTIPROCESSOR_COUNT, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as u32),
        (constants::DEVICE_KERNEL_EXEC_TIMEOUT, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT as u32),
        (constants::DEVICE_INTEGRATED, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_INTEGRATED as u32),
        (constants::DEVICE_CAN_MAP_HOST_MEMORY, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY as u32),
        (constants::DEVICE_COMPUTE_MODE, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE as u32),
        (constants::DEVICE_CONCURRENT_KERNELS, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS as u32),
        (constants::DEVICE_ECC_ENABLED, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_ECC_ENABLED as u32),
        (constants::DEVICE_PCI_BUS_ID, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID as u32),
        (constants::DEVICE_PCI_DEVICE_ID, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID as u32),
        (constants::DEVICE_MEMORY_CLOCK_RATE, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE as u32),
        (constants::DEVICE_GLOBAL_MEMORY_BUS_WIDTH, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH as u32),
        (constants::DEVICE_L2_CACHE_SIZE, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE as u32),
        (constants::DEVICE_MAX_THREADS_PER_MULTIPROCESSOR, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR as u32),
        (constants::DEVICE_ASYNC_ENGINE_COUNT, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT as u32),
        (constants::DEVICE_UNIFIED_ADDRESSING, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING as u32),
        (constants::DEVICE_PCI_DOMAIN_ID, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID as u32),
        (constants::DEVICE_COMPUTE_CAPABILITY_MAJOR, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as u32),
        (constants::DEVICE_COMPUTE_CAPABILITY_MINOR, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as u32),
        (constants::DEVICE_STREAM_PRIORITIES_SUPPORTED, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED as u32),
        (constants::DEVICE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR as u32),
        (constants::DEVICE_MAX_REGISTERS_PER_MULTIPROCESSOR, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR as u32),
        (constants::DEVICE_MANAGED_MEMORY, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY as u32),
        (constants::DEVICE_PAGEABLE_MEMORY_ACCESS, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS as u32),
        (constants::DEVICE_CONCURRENT_MANAGED_ACCESS, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as u32),
        (constants::DEVICE_COMPUTE_PREEMPTION_SUPPORTED, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED as u32),
        (constants::DEVICE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM as u32),
        (constants::DEVICE_COOPERATIVE_LAUNCH, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH as u32),
        (constants::DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as u32),
        (constants::DEVICE_HOST_REGISTER_SUPPORTED, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED as u32),
        (constants::DEVICE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as u32),
        (constants::DEVICE_RDMA_WITH_VIRTUAL_MEMORY_SUPPORTED, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED as u32),
        (constants::DEVICE_MEMORY_POOLS_SUPPORTED, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as u32),
        (constants::DEVICE_MEMPOOL_SUPPORTED_HANDLE_TYPES, sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES as u32),
        (
            constants::MEM_HANDLE_TYPE_NONE,
            sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_NONE.0,
        ),
        (
            constants::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0,
        ),
        (
            constants::DEVICE_VIRTUAL_MEMORY_SUPPORTED,
            sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as u32,
        ),
    ];

    #[test]
    fn every_constant_has_the_number_of_the_bindings() {
        for (index, (ours, theirs)) in CONSTANTS.iter().enumerate() {
            assert_eq!(ours, theirs, "row {index}");
        }
        let written = include_str!("../../abi/src/constants.rs");
        let count = written.matches("pub const ").count();
        assert_eq!(CONSTANTS.len(), count, "each constant is compared");
    }
}
