//! Two kernels: as PTX for a device, as host functions for the stand-in.

use std::ffi::CStr;

use larder_cuda::driver::HostLaunch;
use larder_cuda_abi::stand_in::KernelCall;

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

/// `fill_u32` for the whole grid.
///
/// # Safety
/// Called by the stand-in with a launch of that kernel.
pub(crate) unsafe extern "C" fn fill_body(call: *const KernelCall) {
    // SAFETY: the caller promises a launch with the parameters of the PTX.
    let launch = unsafe { HostLaunch::of(call) };
    let count = launch.count(1).min(launch.threads());
    if let Some(out) = launch.write::<u32>(0, count) {
        out.fill(launch.parameter(2));
    }
}

/// `add_u32` for the whole grid.
///
/// # Safety
/// Called by the stand-in with a launch of that kernel.
pub(crate) unsafe extern "C" fn add_body(call: *const KernelCall) {
    // SAFETY: the caller promises a launch with the parameters of the PTX; all is read before it is written.
    let launch = unsafe { HostLaunch::of(call) };
    let count = launch.count(3).min(launch.threads());
    let words = |index| launch.read::<u32>(index, count).map(<[u32]>::to_vec);
    let (Some(left), Some(right)) = (words(1), words(2)) else {
        return;
    };
    if let Some(out) = launch.write::<u32>(0, count) {
        for (out, (left, right)) in out.iter_mut().zip(left.iter().zip(&right)) {
            *out = left.wrapping_add(*right);
        }
    }
}
