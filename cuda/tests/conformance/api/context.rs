//! Contexts.

use larder_cuda_abi::ContextHandle;

bindings! {
    fn retain_primary(device: i32) -> ContextHandle { |at| cuDevicePrimaryCtxRetain(at, device) }
    fn release_primary(device: i32) { cuDevicePrimaryCtxRelease_v2(device) }
    fn reset_primary(device: i32) { cuDevicePrimaryCtxReset_v2(device) }
    fn primary_state(device: i32) -> (u32, i32) {
        |flags, active| cuDevicePrimaryCtxGetState(device, flags, active)
    }
    /// Creates another context, which becomes current in this thread.
    fn create(flags: u32, device: i32) -> ContextHandle { |at| cuCtxCreate_v2(at, flags, device) }
    fn device() -> i32 { |at| cuCtxGetDevice(at) }
    fn destroy(context: ContextHandle) { cuCtxDestroy_v2(context) }
    fn push(context: ContextHandle) { cuCtxPushCurrent_v2(context) }
    fn pop() -> ContextHandle { |at| cuCtxPopCurrent_v2(at) }
    fn set(context: ContextHandle) { cuCtxSetCurrent(context) }
    fn current() -> ContextHandle { |at| cuCtxGetCurrent(at) }
    fn synchronize() { cuCtxSynchronize() }
    fn priorities() -> (i32, i32) {
        |least, greatest| cuCtxGetStreamPriorityRange(least, greatest)
    }
}
