//! What the stand-in driver exports beside CUDA's own functions: the types of its control
//! interface. The functions themselves are described in the stand-in's documentation.

use core::ffi::c_void;

use crate::DevicePtr;

/// The version of this interface: what `larder_stand_in_version` answers. A library of another
/// version has other functions, or other types.
pub const VERSION: u32 = 1;

/// A kernel's body on the host. It runs once a launch, not once a thread: it does what the whole
/// grid does.
///
/// It must not call the driver.
pub type KernelBody = unsafe extern "C" fn(call: *const KernelCall);

/// One launch, as its body sees it.
#[derive(Debug)]
#[repr(C)]
pub struct KernelCall {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// How many parameters the kernel has.
    pub parameter_count: u32,
    /// One pointer a parameter, to a copy made at the launch.
    pub parameters: *const *const c_void,
    /// Asks for the memory of a device address: null if the kernel may not use it, and then the
    /// launch fails as on a device. The last argument is 1 for writing.
    pub access: unsafe extern "C" fn(
        call: *const Self,
        at: DevicePtr,
        bytes: u64,
        write: u32,
    ) -> *mut c_void,
    /// The driver's own.
    pub driver: *mut c_void,
}
