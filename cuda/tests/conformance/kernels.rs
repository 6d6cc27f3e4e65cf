//! Two kernels: as PTX for a device, as host functions for the stand-in.

use std::ffi::{CStr, c_void};

use larder_cuda_abi::{DevicePtr, stand_in::KernelCall};

/// `fill_u32(out, count, value)` writes `value` into `count` words; `add_u32(out, left, right,
/// count)` adds word by word, wrapping.
pub(crate) const PTX: &CStr = c"
.version 7.0
.target sm_50
.address_size 64

.visible .entry fill_u32(
    .param .u64 fill_u32_param_0,
    .param .u32 fill_u32_param_1,
    .param .u32 fill_u32_param_2
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;

    ld.param.u64 %rd1, [fill_u32_param_0];
    ld.param.u32 %r1, [fill_u32_param_1];
    ld.param.u32 %r2, [fill_u32_param_2];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra FILL_END;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r6, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r2;
FILL_END:
    ret;
}

.visible .entry add_u32(
    .param .u64 add_u32_param_0,
    .param .u64 add_u32_param_1,
    .param .u64 add_u32_param_2,
    .param .u32 add_u32_param_3
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<11>;

    ld.param.u64 %rd1, [add_u32_param_0];
    ld.param.u64 %rd2, [add_u32_param_1];
    ld.param.u64 %rd3, [add_u32_param_2];
    ld.param.u32 %r1, [add_u32_param_3];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra ADD_END;
    cvta.to.global.u64 %rd4, %rd1;
    cvta.to.global.u64 %rd5, %rd2;
    cvta.to.global.u64 %rd6, %rd3;
    mul.wide.u32 %rd7, %r5, 4;
    add.s64 %rd8, %rd4, %rd7;
    add.s64 %rd9, %rd5, %rd7;
    add.s64 %rd10, %rd6, %rd7;
    ld.global.u32 %r6, [%rd9];
    ld.global.u32 %r7, [%rd10];
    add.s32 %r8, %r6, %r7;
    st.global.u32 [%rd8], %r8;
ADD_END:
    ret;
}
";

/// A parameter, as wide as its type.
///
/// # Safety
/// The launch has that parameter, of that type.
unsafe fn parameter<T: Copy>(call: &KernelCall, index: usize) -> T {
    // SAFETY: the caller promises that there are so many.
    let place = unsafe { *call.parameters.wrapping_add(index) };
    // SAFETY: the caller promises the type.
    unsafe { place.cast::<T>().read_unaligned() }
}

/// Host memory behind a device's, or nothing if the kernel may not use it.
fn memory(call: &KernelCall, at: DevicePtr, bytes: u64, write: u32) -> Option<*mut c_void> {
    // SAFETY: the function is the call's own.
    let memory = unsafe { (call.access)(call, at, bytes, write) };
    (!memory.is_null()).then_some(memory)
}

/// `fill_u32` for the whole grid.
///
/// # Safety
/// Called by the stand-in with a launch of that kernel.
pub(crate) unsafe extern "C" fn fill_body(call: *const KernelCall) {
    // SAFETY: the stand-in lends it for the call.
    let call = unsafe { &*call };
    // SAFETY: the first parameter of the PTX.
    let out = unsafe { parameter::<u64>(call, 0) };
    // SAFETY: the second parameter of the PTX.
    let count = unsafe { parameter::<u32>(call, 1) };
    // SAFETY: the third parameter of the PTX.
    let value = unsafe { parameter::<u32>(call, 2) };
    let count = count.min(call.grid[0] * call.block[0]);
    let Some(out) = memory(call, out, u64::from(count) * 4, 1) else {
        return;
    };
    for index in 0..count as usize {
        // SAFETY: the stand-in gave access to `count` words.
        unsafe { out.cast::<u32>().wrapping_add(index).write_unaligned(value) }
    }
}

/// `add_u32` for the whole grid.
///
/// # Safety
/// Called by the stand-in with a launch of that kernel.
pub(crate) unsafe extern "C" fn add_body(call: *const KernelCall) {
    // SAFETY: the stand-in lends it for the call.
    let call = unsafe { &*call };
    // SAFETY: the first parameter of the PTX.
    let out = unsafe { parameter::<u64>(call, 0) };
    // SAFETY: the second parameter of the PTX.
    let left = unsafe { parameter::<u64>(call, 1) };
    // SAFETY: the third parameter of the PTX.
    let right = unsafe { parameter::<u64>(call, 2) };
    // SAFETY: the fourth parameter of the PTX.
    let count = unsafe { parameter::<u32>(call, 3) };
    let count = count.min(call.grid[0] * call.block[0]);
    let bytes = u64::from(count) * 4;
    let (Some(left), Some(right)) = (memory(call, left, bytes, 0), memory(call, right, bytes, 0))
    else {
        return;
    };
    let Some(out) = memory(call, out, bytes, 1) else {
        return;
    };
    for index in 0..count as usize {
        // SAFETY: the stand-in gave access to `count` words of each.
        let left = unsafe { left.cast::<u32>().wrapping_add(index).read_unaligned() };
        // SAFETY: the stand-in gave access to `count` words of each.
        let right = unsafe { right.cast::<u32>().wrapping_add(index).read_unaligned() };
        let sum = left.wrapping_add(right);
        // SAFETY: the stand-in gave access to `count` words of each.
        unsafe { out.cast::<u32>().wrapping_add(index).write_unaligned(sum) }
    }
}
