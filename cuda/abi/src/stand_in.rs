//! What the stand-in driver exports beside CUDA's own functions: the types of its control
//! interface. The functions themselves are described in the stand-in's documentation.

use core::ffi::c_void;

use crate::DevicePtr;

/// The version of this interface: what `larder_stand_in_version` answers. A library of another
/// version has other functions, or other types.
pub const VERSION: u32 = 5;

/// A kernel's body on the host. It runs once for a launch, not once for a thread: it does what the whole
/// grid does.
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
    /// Gives the host memory of a device address; the last argument is 1 for writing. Null if the kernel may
    /// not use the address; the launch then fails, which is what a device does.
    pub access: unsafe extern "C" fn(
        call: *const Self,
        at: DevicePtr,
        bytes: u64,
        write: u32,
    ) -> *mut c_void,
    /// The driver's own data for this launch.
    pub driver: *mut c_void,
}
