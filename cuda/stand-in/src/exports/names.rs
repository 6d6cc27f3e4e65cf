//! The names of all functions of the driver that are exported. A test compares them with the sources, and
//! `cuda/nvidia.py` the versions with NVIDIA's header.

/// The names of the exported functions, sorted, each with the version of CUDA that brought it.
const NAMES: &str = "
    cuCtxCreate_v2 3020 cuCtxCreate_v3 11040 cuCtxCreate_v4 12050 cuCtxDestroy 2000
    cuCtxDestroy_v2 4000
    cuCtxGetCacheConfig 3020 cuCtxGetCurrent 4000 cuCtxGetDevice 2000 cuCtxGetLimit 3010
    cuCtxGetStreamPriorityRange 5050 cuCtxPopCurrent_v2 4000 cuCtxPushCurrent_v2 4000
    cuCtxSetCacheConfig 3020 cuCtxSetCurrent 4000 cuCtxSetFlags 12010 cuCtxSetLimit 3010
    cuCtxSynchronize 2000 cuDeviceCanAccessPeer 4000 cuDeviceGet 2000 cuDeviceGetAttribute 2000
    cuDeviceGetCount 2000 cuDeviceGetDefaultMemPool 11020 cuDeviceGetMemPool 11020
    cuDeviceGetName 2000 cuDeviceGetPCIBusId 4010 cuDeviceGetUuid 9020 cuDeviceGetUuid_v2 11040
    cuDevicePrimaryCtxGetState 7000 cuDevicePrimaryCtxRelease_v2 11000
    cuDevicePrimaryCtxReset_v2 11000 cuDevicePrimaryCtxRetain 7000 cuDeviceSetMemPool 11020
    cuDeviceTotalMem_v2 3020 cuDriverGetVersion 2020 cuEventCreate 2000 cuEventDestroy_v2 4000
    cuEventElapsedTime 2000 cuEventElapsedTime_v2 12080 cuEventQuery 2000 cuEventRecord 2000
    cuEventSynchronize 2000 cuFuncGetAttribute 2020 cuFuncSetAttribute 9000
    cuFuncSetCacheConfig 3000 cuGetErrorName 6000 cuGetErrorString 6000 cuGetProcAddress 11030
    cuGetProcAddress_v2 12000 cuGraphDestroy 10000 cuGraphExecDestroy 10000 cuGraphGetNodes 10000
    cuGraphInstantiateWithFlags 11040 cuGraphLaunch 10000 cuGraphUpload 11010 cuInit 2000
    cuLaunchCooperativeKernel 9000 cuLaunchHostFunc 10000 cuLaunchKernel 4000 cuLaunchKernelEx 11060
    cuMemAddressFree 10020 cuMemAddressReserve 10020 cuMemAdvise_v2 12020 cuMemAllocAsync 11020
    cuMemAllocFromPoolAsync 11020 cuMemAllocManaged 6000 cuMemAllocPitch_v2 3020 cuMemAlloc_v2 3020
    cuMemCreate 10020 cuMemExportToShareableHandle 10020 cuMemFreeAsync 11020 cuMemFreeHost 2000
    cuMemFree_v2 3020 cuMemGetAccess 10020 cuMemGetAllocationGranularity 10020 cuMemGetInfo_v2 3020
    cuMemHostAlloc 2020 cuMemHostGetDevicePointer_v2 3020 cuMemHostRegister_v2 6050
    cuMemHostUnregister 4000 cuMemImportFromShareableHandle 10020 cuMemMap 10020
    cuMemPoolCreate 11020 cuMemPoolDestroy 11020 cuMemPoolGetAccess 11020
    cuMemPoolGetAttribute 11020 cuMemPoolSetAccess 11020 cuMemPoolSetAttribute 11020
    cuMemPoolTrimTo 11020 cuMemPrefetchAsync_v2 12020 cuMemRelease 10020
    cuMemRetainAllocationHandle 11000 cuMemSetAccess 10020 cuMemUnmap 10020 cuMemcpyAsync 4000
    cuMemcpyDtoDAsync_v2 3020 cuMemcpyDtoD_v2 3020 cuMemcpyDtoHAsync_v2 3020 cuMemcpyDtoH_v2 3020
    cuMemcpyHtoDAsync_v2 3020 cuMemcpyHtoD_v2 3020 cuMemcpyPeerAsync 4000 cuMemsetD16Async 3020
    cuMemsetD32Async 3020 cuMemsetD8Async 3020 cuMemsetD8_v2 3020 cuModuleGetFunction 2000
    cuModuleGetGlobal_v2 3020 cuModuleLoad 2000 cuModuleLoadData 2000 cuModuleUnload 2000
    cuOccupancyAvailableDynamicSMemPerBlock 10020 cuOccupancyMaxActiveBlocksPerMultiprocessor 6050
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags 7000 cuOccupancyMaxActiveClusters 11070
    cuOccupancyMaxPotentialBlockSize 6050 cuOccupancyMaxPotentialBlockSizeWithFlags 7000
    cuOccupancyMaxPotentialClusterSize 11070 cuPointerGetAttribute 4000 cuProfilerStart 4000
    cuProfilerStop 4000 cuStreamAttachMemAsync 6000 cuStreamBeginCapture_v2 10010
    cuStreamCreate 2000 cuStreamCreateWithPriority 5050 cuStreamDestroy 2000
    cuStreamDestroy_v2 4000
    cuStreamEndCapture 10000 cuStreamGetCaptureInfo_v2 11030 cuStreamGetCtx 9020 cuStreamGetId 12000
    cuStreamIsCapturing 10000 cuStreamQuery 2000 cuStreamSynchronize 2000 cuStreamWaitEvent 3020
    cuThreadExchangeStreamCaptureMode 10010
";

/// Whether the driver exports a function of this name.
pub(crate) fn is_exported(name: &str) -> bool {
    all().any(|(known, _)| known == name)
}

/// Names and versions.
fn all() -> impl Iterator<Item = (&'static str, u32)> {
    let mut words = NAMES.split_whitespace();
    core::iter::from_fn(move || Some((words.next()?, words.next()?.parse().ok()?)))
}

/// The newest function of a name without its `_v…`, of those that a version of CUDA has; whether there is such
/// a name at all.
pub(super) fn newest(base: &str, version: u32) -> (Option<&'static str>, bool) {
    let is_it = |name: &str| match name.strip_prefix(base) {
        Some(ending) => ending.is_empty() || is_version(ending),
        None => false,
    };
    let (mut newest, mut is_known) = (None, false);
    if is_version_of_another(base) {
        return (None, false);
    }
    for (name, since) in all().filter(|(name, _)| is_it(name)) {
        is_known = true;
        if since <= version && newest.is_none_or(|(_, newest)| newest < since) {
            newest = Some((name, since));
        }
    }
    (newest.map(|(name, _)| name), is_known)
}

/// `_v2`, `_v3`.
fn is_version(ending: &str) -> bool {
    let number = ending.strip_prefix("_v");
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Whether a name is no base name, since it ends in a version.
fn is_version_of_another(name: &str) -> bool {
    name.rfind("_v").is_some_and(|at| is_version(&name[at..]))
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
        let listed: BTreeSet<String> = super::all().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(listed, exported);
    }

    #[test]
    fn the_newest_of_a_name_is_found_by_its_version() {
        let newest = super::newest;
        assert_eq!(newest("cuMemAlloc", 12_080), (Some("cuMemAlloc_v2"), true));
        assert_eq!(newest("cuMemAlloc", 3_010), (None, true));
        assert_eq!(
            newest("cuCtxCreate", 11_030),
            (Some("cuCtxCreate_v2"), true)
        );
        assert_eq!(
            newest("cuCtxCreate", 11_040),
            (Some("cuCtxCreate_v3"), true)
        );
        assert_eq!(newest("cuMemAllocAsync", 11_020).0, Some("cuMemAllocAsync"));
        assert_eq!(newest("cuMemAlloc_v2", 12_080), (None, false));
        assert_eq!(newest("cuMem", 12_080), (None, false));
    }
}
