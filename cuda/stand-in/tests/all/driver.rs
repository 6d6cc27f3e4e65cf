//! The functions that the stand-in exports, as its tests call them: handles and addresses of the
//! host are numbers. They are declared safe, because a test passes memory that outlives its use, or
//! an address that is refused.

use std::ffi::{c_char, c_void};

use larder_cuda_abi::stand_in::KernelBody;
use larder_cuda_abi::{
    AccessDesc, AllocationProp, Code, ContextHandle, DevicePtr, DeviceUuid, EventHandle,
    FunctionHandle, GraphExecHandle, GraphHandle, GraphNodeHandle, HostFunction, LaunchConfig,
    Location, MemoryHandle, ModuleHandle, PoolHandle, PoolProps, SharedMemoryOf, StreamHandle,
    for_each_control_function, for_each_function,
};

// Links the driver into this test.
use larder_cuda_stand_in as _;

/// A parameter's type, and the type that the tests use for it.
pub(crate) trait Written {
    type As;
}

macro_rules! written {
    ($($kind:ty as $written:ty;)*) => {
        $(impl Written for $kind {
            type As = $written;
        })*
    };
}

written! {
    // C's `char` is one of the first two.
    i8 as i8; u8 as u8; u16 as u16; u32 as u32; i32 as i32; u64 as u64; usize as usize;
    f32 as f32; *mut c_void as usize; *const c_void as usize;
    ContextHandle as usize; StreamHandle as usize; EventHandle as usize; PoolHandle as usize;
    ModuleHandle as usize; FunctionHandle as usize; GraphHandle as usize;
    GraphNodeHandle as usize; GraphExecHandle as usize; MemoryHandle as u64;
    AccessDesc as AccessDesc; AllocationProp as AllocationProp; Code as Code;
    DeviceUuid as DeviceUuid; LaunchConfig as LaunchConfig; Location as Location;
    PoolProps as PoolProps; HostFunction as HostFunction; SharedMemoryOf as SharedMemoryOf;
    Option<KernelBody> as Option<KernelBody>;
}

impl<T: Written> Written for *mut T {
    type As = *mut T::As;
}

impl<T: Written> Written for *const T {
    type As = *const T::As;
}

macro_rules! declare {
    ($(fn $name:ident($($parameter:ident: $kind:ty),*) since $version:literal;)*) => {
        declare! { $(fn $name($($parameter: $kind),*) -> Code;)* }
    };
    ($(fn $name:ident($($parameter:ident: $kind:ty),*) $(-> $answer:ty)?;)*) => {
        #[allow(dead_code, reason = "the tables have more than these tests call")]
        unsafe extern "C" {
            $(pub(crate) safe fn $name(
                $($parameter: <$kind as Written>::As),*
            ) $(-> $answer)?;)*
        }
    };
}

for_each_function!(declare);
for_each_control_function!(declare);
