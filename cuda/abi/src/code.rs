//! The result codes of driver calls.

use core::fmt;

/// The result of a driver call: any number, with names for those this crate knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Code(pub u32);

impl Code {
    /// No error.
    pub const SUCCESS: Self = Self(0);
    /// An argument is out of range or null.
    pub const INVALID_VALUE: Self = Self(1);
    /// Not enough memory for the call.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// The driver was not initialised in this process.
    pub const NOT_INITIALIZED: Self = Self(3);
    /// The driver is shutting down.
    pub const DEINITIALIZED: Self = Self(4);
    /// Profiling is off for this run.
    pub const PROFILER_DISABLED: Self = Self(5);
    /// The library is a stub for linking, not a driver.
    pub const STUB_LIBRARY: Self = Self(34);
    /// There is no device that can be used.
    pub const NO_DEVICE: Self = Self(100);
    /// No device has this number.
    pub const INVALID_DEVICE: Self = Self(101);
    /// The device has no licence.
    pub const DEVICE_NOT_LICENSED: Self = Self(102);
    /// The module's image is not valid.
    pub const INVALID_IMAGE: Self = Self(200);
    /// No context is current, or it is not valid.
    pub const INVALID_CONTEXT: Self = Self(201);
    /// Mapping failed.
    pub const MAP_FAILED: Self = Self(205);
    /// Unmapping failed.
    pub const UNMAP_FAILED: Self = Self(206);
    /// The array is mapped.
    pub const ARRAY_IS_MAPPED: Self = Self(207);
    /// The resource is mapped already.
    pub const ALREADY_MAPPED: Self = Self(208);
    /// The image has no code for this device.
    pub const NO_BINARY_FOR_GPU: Self = Self(209);
    /// The resource is taken already.
    pub const ALREADY_ACQUIRED: Self = Self(210);
    /// The resource is not mapped.
    pub const NOT_MAPPED: Self = Self(211);
    /// An uncorrectable memory error happened.
    pub const ECC_UNCORRECTABLE: Self = Self(214);
    /// The device does not know this limit.
    pub const UNSUPPORTED_LIMIT: Self = Self(215);
    /// The context is current in another thread.
    pub const CONTEXT_ALREADY_IN_USE: Self = Self(216);
    /// The two devices cannot reach each other's memory.
    pub const PEER_ACCESS_UNSUPPORTED: Self = Self(217);
    /// The PTX could not be compiled.
    pub const INVALID_PTX: Self = Self(218);
    /// A link between devices failed.
    pub const NVLINK_UNCORRECTABLE: Self = Self(220);
    /// The PTX is of a version this driver does not know.
    pub const UNSUPPORTED_PTX_VERSION: Self = Self(222);
    /// The device contained an error; the process can do no more.
    pub const CONTAINED: Self = Self(226);
    /// The device code is not valid.
    pub const INVALID_SOURCE: Self = Self(300);
    /// The file was not found.
    pub const FILE_NOT_FOUND: Self = Self(301);
    /// A shared object lacks a symbol.
    pub const SHARED_OBJECT_SYMBOL_NOT_FOUND: Self = Self(302);
    /// A shared object could not be initialised.
    pub const SHARED_OBJECT_INIT_FAILED: Self = Self(303);
    /// A call of the operating system failed.
    pub const OPERATING_SYSTEM: Self = Self(304);
    /// The handle names nothing that exists.
    pub const INVALID_HANDLE: Self = Self(400);
    /// The resource is not in a state that allows the call.
    pub const ILLEGAL_STATE: Self = Self(401);
    /// No such name.
    pub const NOT_FOUND: Self = Self(500);
    /// The work asked about is not done yet.
    pub const NOT_READY: Self = Self(600);
    /// Device work touched memory that is not there; the context can do no more.
    pub const ILLEGAL_ADDRESS: Self = Self(700);
    /// The launch wants more registers, threads or shared memory than there are.
    pub const LAUNCH_OUT_OF_RESOURCES: Self = Self(701);
    /// The kernel ran too long.
    pub const LAUNCH_TIMEOUT: Self = Self(702);
    /// Peer access is on already.
    pub const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    /// Peer access is not on.
    pub const PEER_ACCESS_NOT_ENABLED: Self = Self(705);
    /// The primary context was initialised already.
    pub const PRIMARY_CONTEXT_ACTIVE: Self = Self(708);
    /// The context was destroyed.
    pub const CONTEXT_IS_DESTROYED: Self = Self(709);
    /// An assertion failed on the device.
    pub const ASSERT: Self = Self(710);
    /// The host memory is registered already.
    pub const HOST_MEMORY_ALREADY_REGISTERED: Self = Self(712);
    /// The host memory is not registered.
    pub const HOST_MEMORY_NOT_REGISTERED: Self = Self(713);
    /// The device met an error in its stack, or one of its hardware.
    pub const HARDWARE_STACK_ERROR: Self = Self(714);
    /// The device met an illegal instruction.
    pub const ILLEGAL_INSTRUCTION: Self = Self(715);
    /// Device work used a misaligned address.
    pub const MISALIGNED_ADDRESS: Self = Self(716);
    /// An address is of the wrong space.
    pub const INVALID_ADDRESS_SPACE: Self = Self(717);
    /// A kernel's program counter left its address space.
    pub const INVALID_PC: Self = Self(718);
    /// A kernel failed.
    pub const LAUNCH_FAILED: Self = Self(719);
    /// More blocks than can be resident at once.
    pub const COOPERATIVE_LAUNCH_TOO_LARGE: Self = Self(720);
    /// A kernel ended and kept tensor memory.
    pub const TENSOR_MEMORY_LEAK: Self = Self(721);
    /// The call is not permitted here.
    pub const NOT_PERMITTED: Self = Self(800);
    /// This system or device does not support the call.
    pub const NOT_SUPPORTED: Self = Self(801);
    /// The system is not ready for CUDA.
    pub const SYSTEM_NOT_READY: Self = Self(802);
    /// Driver versions do not match.
    pub const SYSTEM_DRIVER_MISMATCH: Self = Self(803);
    /// Forward compatibility is not supported on the device.
    pub const COMPAT_NOT_SUPPORTED_ON_DEVICE: Self = Self(804);
    /// The server that shares the device ended this process's part.
    pub const MPS_CLIENT_TERMINATED: Self = Self(810);
    /// The call is not allowed while the stream captures.
    pub const STREAM_CAPTURE_UNSUPPORTED: Self = Self(900);
    /// An earlier error spoilt the capture.
    pub const STREAM_CAPTURE_INVALIDATED: Self = Self(901);
    /// The call would join two captures.
    pub const STREAM_CAPTURE_MERGE: Self = Self(902);
    /// The capture did not begin on this stream.
    pub const STREAM_CAPTURE_UNMATCHED: Self = Self(903);
    /// A stream of the capture was not joined to its first one.
    pub const STREAM_CAPTURE_UNJOINED: Self = Self(904);
    /// A dependency would cross the capture's border.
    pub const STREAM_CAPTURE_ISOLATION: Self = Self(905);
    /// The legacy stream cannot wait for a capture.
    pub const STREAM_CAPTURE_IMPLICIT: Self = Self(906);
    /// The event was recorded in a capture.
    pub const CAPTURED_EVENT: Self = Self(907);
    /// The capture began in another thread.
    pub const STREAM_CAPTURE_WRONG_THREAD: Self = Self(908);
    /// The wait ran out of time.
    pub const TIMEOUT: Self = Self(909);
    /// The graph's update is not allowed.
    pub const GRAPH_EXEC_UPDATE_FAILURE: Self = Self(910);
    /// Something outside of the driver failed while work waited for it.
    pub const EXTERNAL_DEVICE: Self = Self(911);
    /// Unknown error.
    pub const UNKNOWN: Self = Self(999);

    /// Every code with a name, ascending.
    pub fn all() -> impl Iterator<Item = Self> {
        known().map(|(number, _)| Self(number))
    }

    /// The driver's name for it, like `CUDA_ERROR_OUT_OF_MEMORY`; `None` for a number that this
    /// crate does not know. Searches a short text.
    pub fn name(self) -> Option<&'static str> {
        self.words().map(|(name, _)| name)
    }

    /// What it means, in a few words.
    pub fn meaning(self) -> Option<&'static str> {
        self.words().map(|(_, meaning)| meaning)
    }

    /// Whether device work or the device itself failed so that every later call of this process answers the
    /// same: nothing that is freed, waited for or tried again helps, and the process must start anew. Memory
    /// that the process holds goes back when it ends.
    pub const fn is_fatal(self) -> bool {
        matches!(
            self,
            Self::ECC_UNCORRECTABLE
                | Self::NVLINK_UNCORRECTABLE
                | Self::CONTAINED
                | Self::ILLEGAL_ADDRESS
                | Self::LAUNCH_TIMEOUT
                | Self::ASSERT
                | Self::HARDWARE_STACK_ERROR
                | Self::ILLEGAL_INSTRUCTION
                | Self::MISALIGNED_ADDRESS
                | Self::INVALID_ADDRESS_SPACE
                | Self::INVALID_PC
                | Self::LAUNCH_FAILED
                | Self::TENSOR_MEMORY_LEAK
                | Self::MPS_CLIENT_TERMINATED
                | Self::EXTERNAL_DEVICE
        )
    }

    /// `Ok` for success.
    ///
    /// # Errors
    /// The code itself, for any other.
    pub const fn check(self) -> Result<(), Self> {
        match self {
            Self::SUCCESS => Ok(()),
            other => Err(other),
        }
    }

    fn words(self) -> Option<(&'static str, &'static str)> {
        let (_, words) = known().find(|(number, _)| *number == self.0)?;
        words.split_once(' ')
    }
}

/// Number, name and meaning of every known code, a line each, ascending.
const KNOWN: &str = "\
0 CUDA_SUCCESS no error
1 CUDA_ERROR_INVALID_VALUE an argument is out of range or null
2 CUDA_ERROR_OUT_OF_MEMORY not enough memory for the call
3 CUDA_ERROR_NOT_INITIALIZED the driver was not initialised in this process
4 CUDA_ERROR_DEINITIALIZED the driver is shutting down
5 CUDA_ERROR_PROFILER_DISABLED profiling is off for this run
34 CUDA_ERROR_STUB_LIBRARY the library is a stub for linking, not a driver
100 CUDA_ERROR_NO_DEVICE there is no device that can be used
101 CUDA_ERROR_INVALID_DEVICE no device has this number
102 CUDA_ERROR_DEVICE_NOT_LICENSED the device has no licence
200 CUDA_ERROR_INVALID_IMAGE the module's image is not valid
201 CUDA_ERROR_INVALID_CONTEXT no context is current, or it is not valid
205 CUDA_ERROR_MAP_FAILED mapping failed
206 CUDA_ERROR_UNMAP_FAILED unmapping failed
207 CUDA_ERROR_ARRAY_IS_MAPPED the array is mapped
208 CUDA_ERROR_ALREADY_MAPPED the resource is mapped already
209 CUDA_ERROR_NO_BINARY_FOR_GPU the image has no code for this device
210 CUDA_ERROR_ALREADY_ACQUIRED the resource is taken already
211 CUDA_ERROR_NOT_MAPPED the resource is not mapped
214 CUDA_ERROR_ECC_UNCORRECTABLE an uncorrectable memory error happened
215 CUDA_ERROR_UNSUPPORTED_LIMIT the device does not know this limit
216 CUDA_ERROR_CONTEXT_ALREADY_IN_USE the context is current in another thread
217 CUDA_ERROR_PEER_ACCESS_UNSUPPORTED the two devices cannot reach each other's memory
218 CUDA_ERROR_INVALID_PTX the PTX could not be compiled
220 CUDA_ERROR_NVLINK_UNCORRECTABLE a link between devices failed
222 CUDA_ERROR_UNSUPPORTED_PTX_VERSION the PTX is of a version this driver does not know
226 CUDA_ERROR_CONTAINED the device contained an error; the process can do no more
300 CUDA_ERROR_INVALID_SOURCE the device code is not valid
301 CUDA_ERROR_FILE_NOT_FOUND the file was not found
302 CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND a shared object lacks a symbol
303 CUDA_ERROR_SHARED_OBJECT_INIT_FAILED a shared object could not be initialised
304 CUDA_ERROR_OPERATING_SYSTEM a call of the operating system failed
400 CUDA_ERROR_INVALID_HANDLE the handle names nothing that exists
401 CUDA_ERROR_ILLEGAL_STATE the resource is not in a state that allows the call
500 CUDA_ERROR_NOT_FOUND no such name
600 CUDA_ERROR_NOT_READY the work asked about is not done yet
700 CUDA_ERROR_ILLEGAL_ADDRESS device work touched memory that is not there; the context can do no more
701 CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES the launch wants more registers, threads or shared memory than there are
702 CUDA_ERROR_LAUNCH_TIMEOUT the kernel ran too long
704 CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED peer access is on already
705 CUDA_ERROR_PEER_ACCESS_NOT_ENABLED peer access is not on
708 CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE the primary context was initialised already
709 CUDA_ERROR_CONTEXT_IS_DESTROYED the context was destroyed
710 CUDA_ERROR_ASSERT an assertion failed on the device
712 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED the host memory is registered already
713 CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED the host memory is not registered
714 CUDA_ERROR_HARDWARE_STACK_ERROR the device met an error in its stack, or one of its hardware
715 CUDA_ERROR_ILLEGAL_INSTRUCTION the device met an illegal instruction
716 CUDA_ERROR_MISALIGNED_ADDRESS device work used a misaligned address
717 CUDA_ERROR_INVALID_ADDRESS_SPACE an address is of the wrong space
718 CUDA_ERROR_INVALID_PC a kernel's program counter left its address space
719 CUDA_ERROR_LAUNCH_FAILED a kernel failed
720 CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE more blocks than can be resident at once
721 CUDA_ERROR_TENSOR_MEMORY_LEAK a kernel ended and kept tensor memory
800 CUDA_ERROR_NOT_PERMITTED the call is not permitted here
801 CUDA_ERROR_NOT_SUPPORTED this system or device does not support the call
802 CUDA_ERROR_SYSTEM_NOT_READY the system is not ready for CUDA
803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH driver versions do not match
804 CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE forward compatibility is not supported on the device
810 CUDA_ERROR_MPS_CLIENT_TERMINATED the server that shares the device ended this process's part
900 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED the call is not allowed while the stream captures
901 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED an earlier error spoilt the capture
902 CUDA_ERROR_STREAM_CAPTURE_MERGE the call would join two captures
903 CUDA_ERROR_STREAM_CAPTURE_UNMATCHED the capture did not begin on this stream
904 CUDA_ERROR_STREAM_CAPTURE_UNJOINED a stream of the capture was not joined to its first one
905 CUDA_ERROR_STREAM_CAPTURE_ISOLATION a dependency would cross the capture's border
906 CUDA_ERROR_STREAM_CAPTURE_IMPLICIT the legacy stream cannot wait for a capture
907 CUDA_ERROR_CAPTURED_EVENT the event was recorded in a capture
908 CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD the capture began in another thread
909 CUDA_ERROR_TIMEOUT the wait ran out of time
910 CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE the graph's update is not allowed
911 CUDA_ERROR_EXTERNAL_DEVICE something outside of the driver failed while work waited for it
999 CUDA_ERROR_UNKNOWN unknown error";

/// Number and words of every known code.
fn known() -> impl Iterator<Item = (u32, &'static str)> {
    KNOWN.lines().filter_map(|line| {
        let (number, words) = line.split_once(' ')?;
        Some((number.parse().ok()?, words))
    })
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some((name, meaning)) => write!(f, "{name} ({}): {meaning}", self.0),
            None => write!(f, "result code {} of a newer driver", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Code({})", self.0),
        }
    }
}
