//! The names of all functions of the driver that are exported. A test compares them with the sources.

/// The names of the exported functions, sorted.
const NAMES: &str = "
    cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy_v2 cuCtxGetCacheConfig
    cuCtxGetCurrent cuCtxGetLimit cuCtxGetStreamPriorityRange cuCtxPopCurrent_v2
    cuCtxPushCurrent_v2 cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetFlags cuCtxSetLimit
    cuCtxSynchronize cuDeviceCanAccessPeer cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount
    cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuDeviceGetName cuDeviceGetPCIBusId
    cuDeviceGetUuid cuDeviceGetUuid_v2 cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRelease_v2
    cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRetain cuDeviceSetMemPool cuDeviceTotalMem_v2
    cuDriverGetVersion cuEventCreate cuEventDestroy_v2 cuEventElapsedTime cuEventElapsedTime_v2
    cuEventQuery cuEventRecord cuEventSynchronize cuFuncGetAttribute cuFuncSetAttribute
    cuFuncSetCacheConfig cuGetErrorName cuGetErrorString cuGraphDestroy cuGraphExecDestroy
    cuGraphGetNodes cuGraphInstantiateWithFlags cuGraphLaunch cuGraphUpload cuInit
    cuLaunchCooperativeKernel cuLaunchHostFunc cuLaunchKernel cuMemAddressFree
    cuMemAddressReserve cuMemAdvise_v2 cuMemAllocAsync cuMemAllocFromPoolAsync cuMemAllocManaged
    cuMemAlloc_v2 cuMemCreate cuMemExportToShareableHandle cuMemFreeAsync cuMemFreeHost
    cuMemFree_v2 cuMemGetAccess cuMemGetAllocationGranularity cuMemGetInfo_v2 cuMemHostAlloc
    cuMemHostGetDevicePointer_v2 cuMemHostRegister_v2 cuMemHostUnregister
    cuMemImportFromShareableHandle cuMemMap cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAccess
    cuMemPoolGetAttribute cuMemPoolSetAccess cuMemPoolSetAttribute cuMemPoolTrimTo
    cuMemPrefetchAsync_v2 cuMemRelease cuMemSetAccess cuMemUnmap cuMemcpyAsync
    cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2
    cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2 cuMemcpyPeerAsync cuMemsetD16Async cuMemsetD32Async
    cuMemsetD8Async cuMemsetD8_v2 cuModuleGetFunction cuModuleGetGlobal_v2 cuModuleLoad
    cuModuleLoadData cuModuleUnload cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
    cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
    cuOccupancyMaxPotentialClusterSize cuPointerGetAttribute cuProfilerStart cuProfilerStop
    cuStreamAttachMemAsync cuStreamBeginCapture_v2 cuStreamCreate cuStreamCreateWithPriority
    cuStreamDestroy_v2 cuStreamEndCapture cuStreamGetCaptureInfo_v2 cuStreamGetId
    cuStreamIsCapturing cuStreamQuery cuStreamSynchronize cuStreamWaitEvent
    cuThreadExchangeStreamCaptureMode
";

/// Whether the driver exports a function of this name.
pub(crate) fn is_exported(name: &str) -> bool {
    NAMES.split_whitespace().any(|known| known == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_list_names_what_is_exported() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/exports");
        let mut exported = BTreeSet::new();
        for file in fs::read_dir(folder).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            let functions = text.split("extern \"C\" fn ").skip(1);
            let names = functions.filter_map(|rest| rest.split('(').next());
            exported.extend(
                names
                    .filter(|name| name.starts_with("cu"))
                    .map(str::to_owned),
            );
        }
        let listed: BTreeSet<String> = super::NAMES.split_whitespace().map(str::to_owned).collect();
        assert_eq!(listed, exported);
    }
}
