//! [`Guarded`]: checked memory for each stream that allocates, over one allocator.
//!
//! * H1 a place in the list names one stream's checked memory for as long as the list lives: none goes before all do.
//! * H2 a block goes back at the place that it came from, behind the work of the stream that frees it.
//!
//! There are at most as many as the allocator has streams, 256: one more stream is refused by the allocator.

#![expect(
    clippy::result_large_err,
    reason = "an error has the numbers of both sides"
)]

use core::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

use larder_core::decorate::{CheckError, FindingCounts};
use larder_core::{AccessError, Addr, AllocError, Block, BlockAllocator, FreeError, Request};

use super::gpu::GpuAllocError;
use super::gpu_memory::{ALIGN, Freed, GpuPlace};
use crate::driver::locked;
use crate::{
    CheckedConfig, CheckedError, CheckedMemory, CudaStream, DeviceAllocError, DeviceAllocator,
    DeviceFreeError, checked,
};

/// A device's allocator, and what is checked of it.
pub(super) struct Guarded {
    /// Dropped by [`let_go`](Self::let_go) alone.
    memory: ManuallyDrop<DeviceAllocator>,
    config: CheckedConfig,
    /// H1. Held for a look, and while a stream's tables are made; never during a check, an allocation or a free.
    streams: Mutex<Vec<Arc<CheckedMemory>>>,
}

/// A refusal, with what the driver said if that is known: an [`AllocError`] has the numbers only.
fn refusal(checked: &CheckedMemory, reason: AllocError) -> GpuAllocError {
    let below = checked.memory().last_error();
    if let Some(error) = below.filter(|error| error.in_cores_words() == reason) {
        return error.into();
    }
    // The newest refusal of a fill; another thread's would have the same code.
    let driver = match reason {
        AllocError::Access(AccessError::Refused { code }) => {
            let error = checked.last_error();
            error.filter(|error| error.code().is_some_and(|known| known.0 == code))
        }
        _ => None,
    };
    match driver {
        Some(error) => DeviceAllocError::Driver(error).into(),
        None => GpuAllocError::reason(reason),
    }
}

impl Guarded {
    /// Nothing is made for a stream yet.
    pub(super) const fn new(memory: DeviceAllocator, config: CheckedConfig) -> Self {
        Self {
            memory: ManuallyDrop::new(memory),
            config,
            streams: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn memory(&self) -> &DeviceAllocator {
        &self.memory
    }

    /// The checked memory of a stream, made at its first request, and its place.
    fn of(&self, stream: &Arc<CudaStream>) -> Result<(usize, Arc<CheckedMemory>), GpuAllocError> {
        let mut streams = locked(&self.streams);
        let same = |one: &Arc<CheckedMemory>| **one.memory().stream() == **stream;
        let place = streams.iter().position(same);
        if let Some(place) = place
            && let Some(checked) = streams.get(place)
        {
            return Ok((place, checked.clone()));
        }
        let made = checked(&self.memory, stream, self.config).map_err(|error| match error {
            CheckedError::Stream(error) => GpuAllocError::Device(error),
            error @ CheckedError::Config(_) => GpuAllocError::Checked(error),
        })?;
        let made = Arc::new(made);
        streams.push(made.clone());
        Ok((streams.len() - 1, made))
    }

    /// The checked memory of a stream, if it allocated.
    pub(super) fn known(&self, stream: &Arc<CudaStream>) -> Option<Arc<CheckedMemory>> {
        let streams = locked(&self.streams);
        let same = |one: &&Arc<CheckedMemory>| **one.memory().stream() == **stream;
        streams.iter().find(same).cloned()
    }

    fn at(&self, place: usize) -> Option<Arc<CheckedMemory>> {
        locked(&self.streams).get(place).cloned()
    }

    fn all(&self) -> Vec<Arc<CheckedMemory>> {
        locked(&self.streams).clone()
    }

    /// Aligned as the other kinds are, where the guards keep alignments.
    pub(super) fn alloc(
        &self,
        stream: &Arc<CudaStream>,
        bytes: u64,
    ) -> Result<(Addr, GpuPlace), GpuAllocError> {
        let (place, checked) = self.of(stream)?;
        let grant = checked.alloc(&Request::new(bytes).aligned(ALIGN));
        let block = grant.map_err(|reason| refusal(&checked, reason))?.block;
        Ok((block.addr(), GpuPlace::Checked(place, block)))
    }

    /// Takes a block back at the place that it came from (H2). A free on another stream costs an event and a wait of
    /// the device more.
    pub(super) fn free(&self, stream: &Arc<CudaStream>, place: usize, block: Block) -> Freed {
        let Some(checked) = self.at(place) else {
            let error = DeviceFreeError::Block(FreeError::Unknown);
            return Err((GpuPlace::Checked(place, block), error));
        };
        let origin = checked.memory().stream();
        if **origin != **stream {
            let ordered = self.memory.order_after(origin, stream);
            let ordered = ordered.or_else(|_| self.memory.context().wait_for(stream));
            if let Err(error) = ordered {
                return Err((
                    GpuPlace::Checked(place, block),
                    DeviceFreeError::Driver(error),
                ));
            }
        }
        checked.free(block).map_err(|rejected| {
            let error = DeviceFreeError::Block(rejected.error);
            (GpuPlace::Checked(place, rejected.block), error)
        })
    }

    pub(super) fn check(&self, place: usize, block: &Block) -> Result<(), CheckError> {
        self.at(place).ok_or(CheckError::Unknown)?.check(block)
    }

    pub(super) fn check_all(&self, mut found: impl FnMut(CheckError)) -> u64 {
        let all = self.all();
        all.iter()
            .map(|checked| checked.check_all(&mut found))
            .sum()
    }

    /// The oldest find, of the stream that allocated first among those with one.
    pub(super) fn take_finding(&self) -> Option<CheckError> {
        self.all().iter().find_map(|checked| checked.take_finding())
    }

    pub(super) fn finding_counts(&self) -> FindingCounts {
        let mut sum = FindingCounts::default();
        for checked in self.all() {
            for counts in [checked.guard_counts(), checked.freed_counts()] {
                sum.damaged += counts.damaged;
                sum.unreachable += counts.unreachable;
                sum.unlisted += counts.unlisted;
                sum.kept_blocks += counts.kept_blocks;
                sum.kept_bytes += counts.kept_bytes;
            }
        }
        sum
    }

    /// Blocks that are live below and nobody's: they wait, or were kept for their damage.
    pub(super) fn nobodys(&self) -> u64 {
        let all = self.all();
        let waits = all
            .iter()
            .map(|checked| checked.quarantine_stats().waiting_blocks);
        waits.sum::<u64>() + self.finding_counts().kept_blocks
    }

    /// Drops all, in order: each stream's memory compares what waits and gives it back to the allocator.
    ///
    /// # Safety
    /// Once, and the value is not used again.
    pub(super) unsafe fn let_go(&mut self) {
        locked(&self.streams).clear();
        // SAFETY: the caller drops once, and does not use the value again.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }

    /// Leaves all of it alone for as long as the process lives.
    pub(super) fn leave(&self) {
        let streams = core::mem::take(&mut *locked(&self.streams));
        streams.into_iter().for_each(core::mem::forget);
    }
}
