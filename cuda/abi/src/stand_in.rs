//! The stand-in driver's control interface: its exports that are not CUDA functions. The stand-in's
//! documentation describes them.

use core::ffi::c_void;

use crate::DevicePtr;

/// The version of this interface, which `larder_stand_in_version` returns. A library with another version has
/// other functions or other types.
pub const VERSION: u32 = 5;

/// A kernel's body on the host. It runs once per launch, not once per thread: it does the work of the whole
/// grid.
///
/// It must not call the driver.
pub type KernelBody = unsafe extern "C" fn(call: *const KernelCall);

/// A launch as the kernel's body sees it.
#[derive(Debug)]
#[repr(C)]
pub struct KernelCall {
    /// The grid's blocks in x, y and z.
    pub grid: [u32; 3],
    /// The threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// The number of the kernel's parameters.
    pub parameter_count: u32,
    /// One pointer for each parameter, to a copy made at the launch.
    pub parameters: *const *const c_void,
    /// Returns the host memory of a device address; the last argument is 1 for writing. Returns null if the
    /// kernel may not use the address. The launch then fails, as on a device.
    pub access: unsafe extern "C" fn(
        call: *const Self,
        at: DevicePtr,
        bytes: u64,
        write: u32,
    ) -> *mut c_void,
    /// The driver's own data for this launch.
    pub driver: *mut c_void,
}

/// Calls the macro `$callback` once, with a row for each function of the control interface: `fn
/// name(parameter: type, …) -> answer;`. `larder_stand_in_version` is not among them, because it is the same
/// in every version of the interface.
#[macro_export]
macro_rules! for_each_control_function {
    ($callback:ident) => {
        $callback! {
            fn larder_stand_in_reset(devices: u32, bytes: u64);
            fn larder_stand_in_share(path: *const c_char) -> Code;
            fn larder_stand_in_set_memory(device: i32, bytes: u64) -> Code;
            fn larder_stand_in_set_driver_version(version: u32);
            fn larder_stand_in_calls(name: *const c_char) -> u64;
            fn larder_stand_in_call_table(buf: *mut u8, len: u64) -> u64;
            fn larder_stand_in_reset_calls();
            fn larder_stand_in_fail(name: *const c_char, skip: u64, times: u64, code: Code) -> Code;
            fn larder_stand_in_clear_failures();
            fn larder_stand_in_schedule(deferred: u32, seed: u64);
            fn larder_stand_in_used(device: i32) -> u64;
            fn larder_stand_in_alive(buf: *mut u8, len: u64) -> u64;
            fn larder_stand_in_findings(buf: *mut u8, len: u64) -> u64;
            fn larder_stand_in_clear_findings();
            fn larder_stand_in_poison(on: u32);
            fn larder_stand_in_mapping_waits(on: u32) -> u32;
            fn larder_stand_in_mapping_spoils(on: u32);
            fn larder_stand_in_virtual_memory(on: u32);
            fn larder_stand_in_set_addresses(bytes: u64);
            fn larder_stand_in_set_pinned(bytes: u64);
            fn larder_stand_in_managed_concurrently(on: u32);
            fn larder_stand_in_kernel(name: *const c_char, body: Option<KernelBody>) -> Code;
            fn larder_stand_in_kernel_time(name: *const c_char, ns: u64) -> Code;
            fn larder_stand_in_advance(ns: u64) -> u64;
            fn larder_stand_in_busy(device: i32) -> u64;
        }
    };
}
