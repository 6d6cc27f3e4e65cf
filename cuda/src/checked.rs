//! [`CheckedMemory`]: device memory that helps to find bugs.
//!
//! The core's decorators over [`StreamMemory`]: guards around each block, a quarantine for freed blocks and,
//! outermost, the resets. TensorFlow's `memory_guard` consists of guards and resets.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::decorate::{
    CheckError, FindingCounts, GuardConfig, Guarded, Poisoned, QuarantineConfig, QuarantineStats,
    Quarantined,
};
use larder_core::{
    AccessError, AllocError, Block, BlockAllocator, ConfigError, FreeError, Grant, Pattern,
    Rejected, Request, Stats, StreamPoint,
};

use crate::lock_wait::Yield;
use crate::stream::allocator::{Live, StreamAllocator};
use crate::stream::per_stream::OneStream;
use crate::{
    DeviceAccess, DeviceAllocError, DeviceAllocator, DeviceFreeError, DriverError, StreamMemory,
};

/// The checks of a [`CheckedMemory`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckedConfig {
    /// Configuration of the guards.
    pub guards: GuardConfig,
    /// Configuration of the quarantine; with a limit of 0 bytes, no freed block waits.
    pub quarantine: QuarantineConfig,
    /// Pattern written to blocks when they are allocated and when they are freed; `None` writes nothing.
    pub reset: Option<Pattern>,
    /// Maximum number of blocks, including waiting ones. Each takes about 100 bytes of host memory.
    pub blocks: usize,
    /// Maximum number of freed blocks that wait. Each takes about 50 bytes of host memory.
    pub waiting_blocks: usize,
}

impl CheckedConfig {
    /// Makes a configuration with guards that fill the slack, resets to the `f32` NaN, and at most 65536 blocks,
    /// of which up to 4096 freed ones (64 MiB) wait.
    pub const fn new() -> Self {
        Self {
            guards: GuardConfig::new(),
            quarantine: QuarantineConfig::new(64 << 20),
            reset: Some(Pattern::F32_NAN),
            blocks: 1 << 16,
            waiting_blocks: 1 << 12,
        }
    }

    /// Makes the configuration of TensorFlow's `memory_guard`, with blocks aligned as requested. This is the default
    /// of a [runtime](crate::tensorflow::runtime::RuntimeConfig::memory_guard) with guards.
    pub const fn memory_guard() -> Self {
        Self {
            guards: GuardConfig {
                keeps_alignment: true,
                ..GuardConfig::tensorflow()
            },
            ..Self::tensorflow()
        }
    }

    /// Makes the configuration of TensorFlow's `memory_guard`: its guards and its resets. No freed block waits.
    pub const fn tensorflow() -> Self {
        Self {
            guards: GuardConfig::tensorflow(),
            quarantine: QuarantineConfig::new(0),
            waiting_blocks: 0,
            ..Self::new()
        }
    }
}

impl Default for CheckedConfig {
    fn default() -> Self {
        Self::new()
    }
}

type Guards = Guarded<StreamMemory, DeviceAccess, Yield>;
type QuarantinedMemory = Quarantined<Guards, DeviceAccess, Yield>;

/// The decorators. The reset, if there is one, is outermost.
enum DecoratorStack {
    Reset(Poisoned<QuarantinedMemory, DeviceAccess>),
    Plain(QuarantinedMemory),
}

/// Device memory for one stream with guards around each block, a quarantine for freed blocks, and resets.
/// Detects writes outside of a block or after its free, and exposes reads before the first write or after the
/// free. Threads share it by reference.
///
/// It is a [`BlockAllocator`] of one stream, like [`StreamMemory`]. Damage that a free finds does not stop
/// the free; [`take_finding`](Self::take_finding) returns the damage. If freed blocks wait, as with
/// [`CheckedConfig::new`], even the guards are compared only when the block leaves the quarantine;
/// [`drain`](Self::drain) empties the quarantine. Guards are read in the order of the stream, so a check sees
/// all work queued earlier on the stream, but work of other streams only if the program ordered it earlier.
///
/// # Cost
/// In addition to the allocator's calls, an allocation and a free cost two to four fills each, and together two
/// reads of guards (and one of the block if it waited). For each read the host waits for the stream.
/// `cargo bench -p larder-benches --bench checked_pairs` counts them. [`check_all`](Self::check_all) makes two
/// reads per block.
///
/// # Drop
/// Waiting blocks are compared and freed, but the findings are lost, so call [`drain`](Self::drain) first. Blocks
/// still in use stay live in the [`DeviceAllocator`] until it is dropped.
///
/// ```no_run
/// use larder_core::{BlockAllocator, Request};
/// use larder_cuda::{CheckedConfig, Context, DeviceAllocator, checked};
///
/// let context = Context::new(0)?;
/// let memory = DeviceAllocator::new(&context)?;
/// let stream = context.cudarc().new_stream()?;
/// let memory = checked(&memory, &stream, CheckedConfig::new())?;
/// let block = memory.alloc(&Request::new(1000))?.block;
/// // kernels on `stream` use `block.addr()`
/// memory.check(&block)?;
/// memory.free(block)?;
/// memory.drain(); // freed blocks wait, and are compared when they leave
/// while let Some(find) = memory.take_finding() {
///     eprintln!("{find}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CheckedMemory {
    stack: DecoratorStack,
    access: DeviceAccess,
}

/// Makes checked device memory for one stream. No driver call.
///
/// # Errors
/// [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`], and [`DeviceAllocError::Config`] if a
/// decorator refuses its configuration.
pub fn checked(
    memory: &DeviceAllocator,
    stream: &Arc<CudaStream>,
    config: CheckedConfig,
) -> Result<CheckedMemory, DeviceAllocError> {
    let below = memory.on(stream)?;
    let access = memory.access_on(stream);
    let stack = stack(below, &access, &config).map_err(DeviceAllocError::Config)?;
    Ok(CheckedMemory { stack, access })
}

/// Builds the decorators over `below`.
fn stack(
    below: StreamMemory,
    access: &DeviceAccess,
    config: &CheckedConfig,
) -> Result<DecoratorStack, ConfigError> {
    let guards = Guards::with_wait(below, access.clone(), config.guards, config.blocks)?;
    let waiting = config.waiting_blocks;
    let held = QuarantinedMemory::with_wait(guards, access.clone(), config.quarantine, waiting)?;
    Ok(match config.reset {
        None => DecoratorStack::Plain(held),
        Some(pattern) => DecoratorStack::Reset(Poisoned::new(held, access.clone(), pattern)?),
    })
}

impl CheckedMemory {
    fn held(&self) -> &QuarantinedMemory {
        match &self.stack {
            DecoratorStack::Reset(reset) => reset.inner(),
            DecoratorStack::Plain(held) => held,
        }
    }

    fn guards(&self) -> &Guards {
        self.held().inner()
    }

    /// Returns the memory that is checked.
    pub fn memory(&self) -> &StreamMemory {
        self.guards().inner()
    }

    /// Returns the driver's newest refusal of a fill or a read; an error of the core has only the code. For
    /// refusals of the memory itself, see [`StreamMemory::last_error`].
    pub fn last_error(&self) -> Option<DriverError> {
        self.access.last_error()
    }

    /// Adds the driver's error, if it is known, to a refusal: an [`AllocError`] has only the numbers.
    fn refusal(&self, reason: AllocError) -> DeviceAllocError {
        let below = self.memory().last_error();
        if let Some(error) = below.filter(|error| error.to_core_error() == reason) {
            return error;
        }
        // Uses the newest refusal of a fill. If it is another thread's, it has the same code.
        let driver = match reason {
            AllocError::Access(AccessError::Refused { code }) => {
                let error = self.last_error();
                error.filter(|error| error.code().is_some_and(|known| known.0 == code))
            }
            _ => None,
        };
        driver.map_or(DeviceAllocError::reason(reason), DeviceAllocError::Driver)
    }

    /// Compares the guards of a block, after the work queued on its stream.
    ///
    /// # Errors
    /// [`CheckError`]; the block is unchanged.
    pub fn check(&self, block: &Block) -> Result<(), CheckError> {
        self.guards().check(block)
    }

    /// Compares the guards of all blocks, and the contents of all waiting blocks. Calls `found` for each damaged
    /// block, and returns the number of them. Makes two reads for each block, and reads all bytes of each waiting
    /// block: milliseconds for a thousand blocks.
    pub fn check_all(&self, mut found: impl FnMut(CheckError)) -> u64 {
        let guards = self.guards().check_all(&mut found);
        guards.saturating_add(self.held().check_all(found))
    }

    /// Takes the oldest finding that a free made about guards or, if there is none, the oldest about a freed
    /// block.
    pub fn take_finding(&self) -> Option<CheckError> {
        let find = self.guards().take_finding();
        find.or_else(|| self.held().take_finding())
    }

    /// Returns the counts of the damage that frees found in guards.
    pub fn guard_counts(&self) -> FindingCounts {
        self.guards().finding_counts()
    }

    /// Returns the counts of damage found in freed blocks.
    pub fn freed_counts(&self) -> FindingCounts {
        self.held().finding_counts()
    }

    /// Returns the quarantine's counters.
    pub fn quarantine_stats(&self) -> QuarantineStats {
        self.held().quarantine_stats()
    }

    /// Returns the number of frees whose block could not be reset, but was still freed.
    pub fn reset_failures(&self) -> u64 {
        match &self.stack {
            DecoratorStack::Reset(reset) => reset.failures(),
            DecoratorStack::Plain(_) => 0,
        }
    }

    /// Compares and frees all waiting blocks.
    pub fn drain(&self) {
        self.held().drain();
    }

    /// Returns the bytes that the device's allocator granted for the block, including guards and slack;
    /// `None` if the block is not from this memory.
    pub fn granted_bytes(&self, block: &Block) -> Option<u64> {
        self.guards().granted_bytes(block)
    }
}

impl OneStream for CheckedMemory {
    type Config = CheckedConfig;

    fn make(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        config: CheckedConfig,
    ) -> Result<Self, DeviceAllocError> {
        checked(memory, stream, config)
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.memory().stream()
    }

    fn alloc_as(&self, request: &Request) -> Result<Block, DeviceAllocError> {
        match self.alloc(request) {
            Ok(grant) => Ok(grant.block),
            Err(reason) => Err(self.refusal(reason)),
        }
    }

    fn free(&self, block: Block) -> Result<(), Rejected<DeviceFreeError>> {
        BlockAllocator::free(self, block).map_err(DeviceFreeError::from_core)
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        BlockAllocator::requested_bytes(self, block)
    }

    /// The bytes include guards and, while any block is in use, waiting blocks. The number of blocks does not
    /// include waiting blocks, or blocks kept because they are damaged.
    fn live(memory: &DeviceAllocator, all: &[Arc<Self>]) -> Live {
        let below = memory.live();
        let nobodys = all.iter().map(|one| {
            one.quarantine_stats().waiting_blocks
                + one.guard_counts().kept_blocks
                + one.freed_counts().kept_blocks
        });
        match below.blocks.saturating_sub(nobodys.sum()) {
            0 => Live::default(),
            blocks => Live { blocks, ..below },
        }
    }
}

impl Drop for CheckedMemory {
    fn drop(&mut self) {
        self.drain();
    }
}

impl BlockAllocator for CheckedMemory {
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        match &self.stack {
            DecoratorStack::Reset(reset) => reset.alloc(request),
            DecoratorStack::Plain(held) => held.alloc(request),
        }
    }

    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        match &self.stack {
            DecoratorStack::Reset(reset) => reset.free_at(block, point),
            DecoratorStack::Plain(held) => held.free_at(block, point),
        }
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.guards().requested_bytes(block)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.guards().allocation_id(block)
    }

    fn stats(&self) -> Stats {
        self.guards().stats()
    }

    /// Restarts the counters of the whole [`DeviceAllocator`]. Findings and their counts stay.
    fn clear_stats(&self) {
        self.guards().clear_stats();
    }
}

impl fmt::Debug for CheckedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedMemory")
            .field("memory", self.memory())
            .field("guards", &self.guard_counts())
            .field("freed", &self.freed_counts())
            .field("waiting", &self.quarantine_stats())
            .finish_non_exhaustive()
    }
}
