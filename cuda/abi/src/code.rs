//! The result codes of driver calls.

use core::fmt;

/// The result of a driver call: any number, with names for the numbers that this crate knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Code(pub u32);

/// Declares each code except success by its name and its number, and lists the codes with their meanings.
macro_rules! codes {
    ($($name:ident = $number:literal $meaning:literal;)*) => {
        impl Code {
            $(
                #[doc = concat!("`CUDA_ERROR_", stringify!($name), "`: ", $meaning, ".")]
                pub const $name: Self = Self($number);
            )*
        }

        /// All known codes, ascending, with names and meanings.
        const KNOWN: &[(Code, &str, &str)] = &[
            (Code::SUCCESS, "CUDA_SUCCESS", "no error"),
            $((Code::$name, concat!("CUDA_ERROR_", stringify!($name)), $meaning)),*
        ];
    };
}

codes! {
    INVALID_VALUE = 1 "an argument is out of range or null";
    OUT_OF_MEMORY = 2 "not enough memory for the call";
    NOT_INITIALIZED = 3 "the driver has not been initialised in this process";
    DEINITIALIZED = 4 "the driver is shutting down";
    PROFILER_DISABLED = 5 "profiling is off for this run";
    STUB_LIBRARY = 34 "the library is a stub for linking, not a driver";
    NO_DEVICE = 100 "there is no device that can be used";
    INVALID_DEVICE = 101 "no device has this number";
    DEVICE_NOT_LICENSED = 102 "the device has no licence";
    INVALID_IMAGE = 200 "the module's image is not valid";
    INVALID_CONTEXT = 201 "no context is current, or it is not valid";
    MAP_FAILED = 205 "mapping failed";
    UNMAP_FAILED = 206 "unmapping failed";
    ARRAY_IS_MAPPED = 207 "the array is mapped";
    ALREADY_MAPPED = 208 "the resource is already mapped";
    NO_BINARY_FOR_GPU = 209 "the image has no code for this device";
    ALREADY_ACQUIRED = 210 "the resource is already acquired";
    NOT_MAPPED = 211 "the resource is not mapped";
    ECC_UNCORRECTABLE = 214 "an uncorrectable memory error happened";
    UNSUPPORTED_LIMIT = 215 "the device does not support this limit";
    CONTEXT_ALREADY_IN_USE = 216 "the context is current in another thread";
    PEER_ACCESS_UNSUPPORTED = 217 "the two devices cannot reach each other's memory";
    INVALID_PTX = 218 "the PTX could not be compiled";
    NVLINK_UNCORRECTABLE = 220 "a link between devices failed";
    UNSUPPORTED_PTX_VERSION = 222 "the PTX has a version that this driver does not know";
    CONTAINED = 226 "the device contained an error; the process can do no more work";
    INVALID_SOURCE = 300 "the device code is not valid";
    FILE_NOT_FOUND = 301 "the file was not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302 "a shared object lacks a symbol";
    SHARED_OBJECT_INIT_FAILED = 303 "a shared object could not be initialised";
    OPERATING_SYSTEM = 304 "a call of the operating system failed";
    INVALID_HANDLE = 400 "the handle refers to nothing that exists";
    ILLEGAL_STATE = 401 "the resource is not in a state that allows the call";
    NOT_FOUND = 500 "no such name";
    NOT_READY = 600 "the queried work is not done yet";
    ILLEGAL_ADDRESS = 700
        "device work accessed memory that is not mapped; the context can do no more work";
    LAUNCH_OUT_OF_RESOURCES = 701
        "the launch needs more registers, threads or shared memory than there are";
    LAUNCH_TIMEOUT = 702 "the kernel ran too long";
    PEER_ACCESS_ALREADY_ENABLED = 704 "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705 "peer access is not enabled";
    PRIMARY_CONTEXT_ACTIVE = 708 "the primary context is already initialised";
    CONTEXT_IS_DESTROYED = 709 "the context was destroyed";
    ASSERT = 710 "an assertion failed on the device";
    HOST_MEMORY_ALREADY_REGISTERED = 712 "the host memory is already registered";
    HOST_MEMORY_NOT_REGISTERED = 713 "the host memory is not registered";
    HARDWARE_STACK_ERROR = 714 "the device met an error in its call stack or its hardware";
    ILLEGAL_INSTRUCTION = 715 "the device met an illegal instruction";
    MISALIGNED_ADDRESS = 716 "device work used a misaligned address";
    INVALID_ADDRESS_SPACE = 717 "an address is in the wrong address space";
    INVALID_PC = 718 "a kernel's program counter left its address space";
    LAUNCH_FAILED = 719 "a kernel failed";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720 "more blocks than can be resident at once";
    TENSOR_MEMORY_LEAK = 721 "a kernel ended without freeing its tensor memory";
    NOT_PERMITTED = 800 "the call is not permitted here";
    NOT_SUPPORTED = 801 "this system or device does not support the call";
    SYSTEM_NOT_READY = 802 "the system is not ready for CUDA";
    SYSTEM_DRIVER_MISMATCH = 803 "driver versions do not match";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804 "forward compatibility is not supported on the device";
    MPS_CLIENT_TERMINATED = 810 "the MPS server that shares the device ended this process's part";
    STREAM_CAPTURE_UNSUPPORTED = 900 "the call is not allowed while the stream is being captured";
    STREAM_CAPTURE_INVALIDATED = 901 "an earlier error invalidated the capture";
    STREAM_CAPTURE_MERGE = 902 "the call would join two captures";
    STREAM_CAPTURE_UNMATCHED = 903 "the capture did not begin on this stream";
    STREAM_CAPTURE_UNJOINED = 904 "a stream of the capture was not joined to the capture's first stream";
    STREAM_CAPTURE_ISOLATION = 905 "a dependency would cross the boundary of the capture";
    STREAM_CAPTURE_IMPLICIT = 906 "the legacy stream cannot wait for a capture";
    CAPTURED_EVENT = 907 "the event was recorded in a capture";
    STREAM_CAPTURE_WRONG_THREAD = 908 "the capture began in another thread";
    TIMEOUT = 909 "the wait timed out";
    GRAPH_EXEC_UPDATE_FAILURE = 910 "the graph's update is not allowed";
    EXTERNAL_DEVICE = 911 "a device outside of the driver failed while work waited for it";
    UNKNOWN = 999 "unknown error";
}

impl Code {
    /// `CUDA_SUCCESS`: no error.
    pub const SUCCESS: Self = Self(0);

    /// Returns every code that has a name, in ascending order.
    pub fn all() -> impl Iterator<Item = Self> {
        KNOWN.iter().map(|(code, ..)| *code)
    }

    /// Returns the driver's name for the code, like `CUDA_ERROR_OUT_OF_MEMORY`; `None` for a number that this
    /// crate does not know. O(codes).
    pub fn name(self) -> Option<&'static str> {
        self.words().map(|(name, _)| name)
    }

    /// Returns the code's meaning, in a few words.
    pub fn meaning(self) -> Option<&'static str> {
        self.words().map(|(_, meaning)| meaning)
    }

    /// Returns whether device work or the device itself failed in such a way that every later call of this
    /// process returns the same code. Freeing, waiting and retrying are then useless, and the process must be
    /// restarted. Its memory is freed when it ends.
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

    /// Returns `Ok` for success.
    ///
    /// # Errors
    /// The code itself, for any other code.
    pub const fn check(self) -> Result<(), Self> {
        match self {
            Self::SUCCESS => Ok(()),
            other => Err(other),
        }
    }

    fn words(self) -> Option<(&'static str, &'static str)> {
        let known = KNOWN.iter().find(|(code, ..)| *code == self);
        known.map(|(_, name, meaning)| (*name, *meaning))
    }
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
