//! Errors of allocations and frees, for every [`StreamAllocator`](crate::StreamAllocator).

use core::fmt;

use cudarc::driver::CudaStream;
use larder_core::limits::BudgetError;
use larder_core::{
    AccessError, AllocError, Block, ByteCount, Cause, ConfigError, FreeError, OutOfMemory,
    Rejected, StreamId,
};
use larder_cuda_abi::Code;
use thiserror::Error;

use crate::limits::OverBudget;
use crate::{Context, DriverError};

/// An error of an allocation, of making an allocator, of a kernel launch or of a copy between host and device.
/// Blocks stay unchanged.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceAllocError {
    /// There is no memory. Contains the counters, and the driver's newest refusal if there was one.
    #[error("{reason}{}", LastRefusal(*driver))]
    Memory {
        /// The core's error.
        reason: AllocError,
        /// The driver's newest refusal.
        driver: Option<DriverError>,
    },
    /// The driver refused a call that the memory needed before its first use, or for a copy.
    #[error("{0}")]
    Driver(DriverError),
    /// The process heap has no room for values in host memory.
    #[error("the process heap has no room for {:#}: free some memory", ByteCount(*bytes as u64))]
    Pageable {
        /// Bytes requested.
        bytes: usize,
    },
    /// The stream belongs to another context, or is the per-thread default stream.
    #[error(
        "the stream belongs to another context, or is the per-thread default stream: make one in the allocator's \
         context"
    )]
    Stream,
    /// More streams have memory or work in the allocator than it can distinguish.
    #[error(
        "{} streams have memory or work here: drop some, or use a second allocator",
        StreamId::COUNT
    )]
    Streams,
    /// The stream cannot be removed, because something other than the allocators still holds it.
    #[error("the stream is in use: drop its buffers, steps, windows and other clones of it first")]
    StreamHeld,
    /// A part of the range is not committed, or the block is not in use.
    #[error(
        "a part of the range is not committed, or out of bounds, or the block is not in use: decommit what was committed"
    )]
    NotCommitted,
    /// All blocks of a pool are in use.
    #[error("all {max} blocks are in use: free some, or make the pool for more")]
    Full {
        /// Number of blocks.
        max: usize,
    },
    /// Another request waits for [lent](crate::Loan) memory, so nothing more is lent.
    #[error(
        "{:#} of lent memory are recalled for another request: decommit what is recalled from the buffer, and try again",
        ByteCount(*bytes)
    )]
    Recalled {
        /// Bytes recalled from the buffer and not decommitted yet, or for which another request waits.
        bytes: u64,
    },
    /// The stream is being captured, and no window was primed for it.
    #[error(
        "the stream is being captured: prime a window before a capture, or allocate before it and free after it"
    )]
    Capturing,
    /// The allocator sleeps. It does not wake by itself, since another job may have its memory now.
    #[error("the memory sleeps: wake it first (DeviceAllocator::wake)")]
    Asleep,
    /// The capture's window has no room.
    #[error("the window of the capture is too small, prime a larger one: {reason}")]
    Window {
        /// The core's error, with the window's numbers.
        reason: AllocError,
    },
    /// A budget above the allocator has no room, or exceeds its lowered limit.
    #[error("{0}")]
    Budget(OverBudget),
    /// The allocator could not be made a pool of the budget.
    #[error("{0}")]
    Budgets(BudgetError),
    /// The configuration is invalid.
    #[error("{0}")]
    Config(ConfigError),
    /// The device has no memory, and the host may not serve the request, because both together have had more
    /// bytes in use than planned.
    #[error(
        "the device has no memory ({device}), and {:#} were in use at once where {:#} are planned: plan for more, or \
         free blocks and clear the counters",
        ByteCount(*peak_bytes),
        ByteCount(*planned_bytes)
    )]
    Planned {
        /// The device's error.
        device: Box<Self>,
        /// Maximum bytes in use on device and host together so far.
        peak_bytes: u64,
        /// Maximum bytes planned to be in use.
        planned_bytes: u64,
    },
    /// Neither the device nor the host has memory.
    #[error("neither side has memory; device: {device}; host: {host}")]
    Both {
        /// The device's error.
        device: Box<Self>,
        /// The host's error.
        host: Box<Self>,
    },
}

impl DeviceAllocError {
    /// Makes a refusal without a driver error.
    pub(crate) const fn reason(reason: AllocError) -> Self {
        Self::Memory {
            reason,
            driver: None,
        }
    }

    /// Converts to the core's error, with the counters or the driver's code.
    pub(crate) fn to_core_error(&self) -> AllocError {
        let code = match self {
            Self::Memory { reason, .. } | Self::Window { reason } => return *reason,
            Self::Planned { device, .. } | Self::Both { device, .. } => {
                return device.to_core_error();
            }
            Self::Stream | Self::Streams | Self::StreamHeld => return AllocError::OtherStream,
            Self::Driver(error) => error.code().unwrap_or(Code::UNKNOWN),
            Self::Capturing => Code::STREAM_CAPTURE_UNSUPPORTED,
            Self::Budget(over) => {
                let mut out = OutOfMemory::of(Cause::Limit, over.wanted_bytes);
                out.limit_bytes = over.limit_bytes;
                out.reserved_bytes = over.used_bytes;
                return AllocError::OutOfMemory(out);
            }
            Self::Pageable { .. } => Code::OUT_OF_MEMORY,
            Self::Asleep => Code::NOT_PERMITTED,
            // Only reserved buffers and pools of blocks return these.
            Self::NotCommitted | Self::Full { .. } => Code::INVALID_VALUE,
            Self::Recalled { .. } => Code::OUT_OF_MEMORY,
            // Only constructors of allocators return these.
            Self::Budgets(_) | Self::Config(_) => Code::UNKNOWN,
        };
        AllocError::Access(AccessError::Refused { code: code.0 })
    }

    /// Returns whether the device, the host, a budget, a window or a loan was out of memory. Freeing memory, or
    /// requesting less, may help.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Memory { reason, .. } | Self::Window { reason } => {
                matches!(reason, AllocError::OutOfMemory(_))
            }
            Self::Driver(error) => error.is_out_of_memory(),
            Self::Budget(_)
            | Self::Planned { .. }
            | Self::Both { .. }
            | Self::Pageable { .. }
            | Self::Recalled { .. } => true,
            _ => false,
        }
    }

    /// Returns whether there was no memory, for any reason, so that other memory may serve the request.
    pub(crate) fn is_want_of_memory(&self) -> bool {
        match self {
            Self::Memory { reason, .. } => *reason != AllocError::ZeroSize,
            Self::Budget(_) | Self::Planned { .. } | Self::Both { .. } => true,
            _ => false,
        }
    }
}

/// Appends the driver's refusal, if there was one.
struct LastRefusal(Option<DriverError>);

impl fmt::Display for LastRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(driver) => write!(f, "; the driver's last refusal: {driver}"),
            None => Ok(()),
        }
    }
}

impl From<DriverError> for DeviceAllocError {
    fn from(error: DriverError) -> Self {
        match error {
            DriverError::Asleep => Self::Asleep,
            error => Self::Driver(error),
        }
    }
}

/// Prints the `Display` text, since a `main` that returns an error prints it with `Debug`.
impl fmt::Debug for DeviceAllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An error from a free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum DeviceFreeError {
    /// The block is not one of the allocator's.
    #[error("{0}")]
    Block(FreeError),
    /// The driver refused to wait for a stream of another context, or for a stream beyond the maximum number, so
    /// the last use of the block is unknown.
    #[error(
        "the allocator does not know the stream, and waiting for it was refused: {0}; free the block on the stream \
         that allocated it"
    )]
    Driver(DriverError),
}

/// An error, together with a value: the argument of the call, or the result of the run.
#[derive(Debug, Error)]
#[error("{error}")]
#[must_use = "it contains the value"]
pub struct Returned<T, E> {
    /// The argument of the call, or the result of the run.
    pub value: T,
    /// The error.
    #[source]
    pub error: E,
}

impl Context {
    /// Waits for the work queued on a stream, so that a block that the work uses can be freed.
    pub(crate) fn wait_before_free(
        &self,
        stream: &CudaStream,
        block: Block,
    ) -> Result<Block, Rejected<DeviceFreeError>> {
        match self.wait_for(stream) {
            Ok(()) => Ok(block),
            Err(error) => Err(DeviceFreeError::driver(block, error)),
        }
    }
}

impl DeviceFreeError {
    /// Refuses a block that is not one of the allocator's.
    pub(crate) const fn unknown(block: Block) -> Rejected<Self> {
        Rejected::new(block, Self::Block(FreeError::Unknown))
    }

    /// Refuses a block with the driver's error.
    pub(crate) const fn driver(block: Block, error: DriverError) -> Rejected<Self> {
        Rejected::new(block, Self::Driver(error))
    }

    /// Refuses a block with the core's error.
    pub(crate) const fn from_core(rejected: Rejected<FreeError>) -> Rejected<Self> {
        Rejected {
            error: Self::Block(rejected.error),
            value: rejected.value,
        }
    }
}
