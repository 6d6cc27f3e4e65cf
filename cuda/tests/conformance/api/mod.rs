//! The driver's functions as the tests call them. Each handle has its own type, an out argument becomes the result, and
//! a code is a number with a name.
//!
//! The functions are safe to call because the driver accepts any argument: it refuses device addresses and handles that
//! it did not give. Invariant C1: host memory that an asynchronous call takes by address stays allocated until the
//! stream has been synchronised, which the owners in `own.rs` and the tests ensure. Invariant C2: if NVIDIA's
//! documentation calls anything else undefined, a handle passed here came from the driver and has not been destroyed.

use std::{ffi::c_void, mem::MaybeUninit};

use cudarc::driver::sys;
use larder_cuda_abi::{
    Code, ContextHandle, DevicePtr, DeviceUuid, EventHandle, FunctionHandle, GraphExecHandle,
    MemoryHandle, ModuleHandle, PoolHandle, StreamHandle,
};

/// The driver's function with this name, with its prototype from the table of `larder_cuda_abi`.
macro_rules! function {
    ($name:ident) => {
        $crate::api::symbol::<larder_cuda_abi::functions::$name>(stringify!($name))
    };
}

/// One call of the driver, from a row of [`bindings!`].
///
/// SAFETY of all rows: C1 and C2; out arguments are from [`out`], and the driver looks up every address and number.
macro_rules! call {
    ({ |$at:ident| $function:ident($($argument:expr),*) }) => {
        // SAFETY: see the macro.
        $crate::api::out(|$at| unsafe { function!($function)($($argument),*) })
    };
    ({ |$at:ident, $second:ident| $function:ident($($argument:expr),*) }) => {
        $crate::api::out_two(|$at, $second| {
            // SAFETY: see the macro.
            unsafe { function!($function)($($argument),*) }
        })
    };
    ({ $function:ident($($argument:expr),*) }) => {
        // SAFETY: see the macro.
        unsafe { function!($function)($($argument),*) }.check()
    };
}

/// The table of plain calls: the arguments of a test, its result, and the driver's function. Names in bars are out
/// arguments.
macro_rules! bindings {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($parameter:ident: $kind:ty),*) $(-> $answer:ty)? { $($call:tt)* }
    )*) => {$(
        $(#[$doc])*
        pub(crate) fn $name($($parameter: $kind),*) -> $crate::api::Answer$(<$answer>)? {
            call!({ $($call)* })
        }
    )*};
}

pub(crate) mod basic;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod lookup;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod stream;
pub(crate) mod virtual_memory;

pub(crate) type Answer<T = ()> = Result<T, Code>;

/// Plain data for which all zeroes is a value: numbers, handles, and structures of them.
trait Plain: Copy {}
impl Plain for ContextHandle {}
impl Plain for EventHandle {}
impl Plain for FunctionHandle {}
impl Plain for GraphExecHandle {}
impl Plain for MemoryHandle {}
impl Plain for ModuleHandle {}
impl Plain for PoolHandle {}
impl Plain for StreamHandle {}
impl Plain for *mut c_void {}
impl Plain for i32 {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for usize {}
impl Plain for f32 {}
impl Plain for DeviceUuid {}
impl Plain for *const core::ffi::c_char {}

fn out<T: Plain>(call: impl FnOnce(*mut T) -> Code) -> Answer<T> {
    let mut value = MaybeUninit::zeroed();
    call(value.as_mut_ptr()).check()?;
    // SAFETY: all zeroes is a value of plain data, and so is what the driver wrote.
    Ok(unsafe { value.assume_init() })
}

fn out_two<T: Plain, U: Plain>(call: impl FnOnce(*mut T, *mut U) -> Code) -> Answer<(T, U)> {
    let mut second = MaybeUninit::zeroed();
    let first = out(|at| call(at, second.as_mut_ptr()))?;
    // SAFETY: all zeroes is a value of plain data, and so is what the driver wrote.
    Ok((first, unsafe { second.assume_init() }))
}

/// Returns a function of the driver by its exported name. Only [`function!`] gives the function a type that can be
/// called; [`lookup::exported`] gives its address.
fn symbol<F: Copy>(name: &str) -> F {
    // SAFETY: a library is found, or cudarc panics; `F` is the type of the function with this name.
    let found = unsafe { sys::culib().get::<F>(name) };
    *found.unwrap_or_else(|error| panic!("the driver exports no {name}: {error}"))
}

fn host(address: usize) -> *mut c_void {
    address as *mut c_void
}

/// Returns the device's address of pinned, registered or managed memory.
pub(crate) const fn unified(address: usize) -> DevicePtr {
    address as DevicePtr
}
