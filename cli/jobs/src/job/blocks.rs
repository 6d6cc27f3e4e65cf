//! The blocks of a job: bytes at both ends of each block are written when the block is allocated,
//! and compared when it is freed.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use larder_core::ByteCount;
use larder_core::vmem::Placement;
use larder_cuda::job::{Job, LaunchPacer};
use larder_cuda::{CudaStream, Movable, VmemAllocator, VmemBuffer};

use super::play::Figures;

/// Number of bytes written at each end.
const END: usize = 16;

/// Initial value and factor of 64-bit FNV-1a.
const DIGEST_START: u64 = 0xcbf2_9ce4_8422_2325;
const DIGEST_FACTOR: u64 = 0x0100_0000_01b3;

/// The memory, live blocks and figures of a job.
pub(super) struct JobBlocks<'j> {
    memory: &'j VmemAllocator,
    stream: &'j Arc<CudaStream>,
    pacer: LaunchPacer,
    live: HashMap<u32, StampedBlock>,
    /// The number of the pass; each pass writes different bytes.
    pass: u64,
    digest: u64,
    /// The limit at the end of the previous run.
    limit_bytes: u64,
    pub(super) figures: Figures,
}

/// A block, and the key of the bytes written to its ends.
struct StampedBlock {
    buffer: VmemBuffer<u8>,
    key: u64,
}

impl<'j> JobBlocks<'j> {
    pub(super) fn new(
        memory: &'j VmemAllocator,
        stream: &'j Arc<CudaStream>,
        pacer: LaunchPacer,
    ) -> Self {
        Self {
            memory,
            stream,
            pacer,
            live: HashMap::new(),
            pass: 0,
            digest: DIGEST_START,
            limit_bytes: memory.device().limit_bytes(),
            figures: Figures::default(),
        }
    }

    pub(super) fn begin_pass(&mut self, pass: u64) {
        self.pass = pass;
    }

    /// Waits until the limit allows this many bytes, and checks a hundred times a second. Returns
    /// true if the job is to end.
    pub(super) fn wait_for(&self, bytes: u64, job: &Job, ended: &Receiver<()>) -> bool {
        while self.memory.device().limit_bytes() < bytes {
            if ended.recv_timeout(Duration::from_millis(10)).is_ok() {
                return true;
            }
            job.poll();
        }
        false
    }

    /// Allocates a block of the trace and writes its ends.
    pub(super) fn alloc(&mut self, id: u32, bytes: u64) -> Result<(), Box<dyn Error>> {
        let size = ByteCount(bytes);
        let too_large = |_| format!("a block of {size:#} is too large; scale the trace down");
        let len = usize::try_from(bytes).map_err(too_large)?;
        // SAFETY: only the bytes at the buffer's ends are read, and they are written below.
        let buffer = unsafe { self.memory.buffer::<u8>(self.stream, len) };
        let mut buffer = buffer.map_err(|error| format!("{size:#} were refused: {error}"))?;
        self.figures.allocations += 1;
        match buffer.placement() {
            Placement::Host => self.figures.on_host += 1,
            Placement::Device => self.figures.on_device += 1,
        }
        let key = mix(self.pass << 32 | u64::from(id));
        for (start, end) in ends(len) {
            self.pacer.launch();
            let content = content(key, start);
            let mut all = buffer.as_view_mut();
            let mut part = all.slice_mut(start..end);
            self.stream
                .memcpy_htod(&content[..end - start], &mut part)?;
        }
        self.live.insert(id, StampedBlock { buffer, key });
        Ok(())
    }

    /// Compares a block's ends and frees it.
    pub(super) fn free(&mut self, id: u32) -> Result<(), Box<dyn Error>> {
        let Some(held) = self.live.remove(&id) else {
            return Ok(());
        };
        for (start, end) in ends(held.buffer.len()) {
            let mut found = [0; END];
            let found = &mut found[..end - start];
            self.pacer.launch();
            let part = held.buffer.as_view().slice(start..end);
            self.stream.memcpy_dtoh(&part, found)?;
            self.stream.synchronize()?;
            let content = content(held.key, start);
            let wrong = found.iter().zip(&content).filter(|(a, b)| a != b);
            self.figures.wrong_bytes += wrong.count() as u64;
            for byte in found {
                self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(DIGEST_FACTOR);
            }
        }
        Ok(())
    }

    /// Frees the live blocks, in the order of their allocation.
    pub(super) fn free_all(&mut self) -> Result<(), Box<dyn Error>> {
        let mut ids: Vec<u32> = self.live.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().try_for_each(|id| self.free(id))
    }

    /// Moves blocks from the host to the device as room allows, and updates the figures.
    pub(super) fn end_run(&mut self) {
        let mut on_host: Vec<_> = self
            .live
            .iter_mut()
            .filter(|(_, held)| held.buffer.placement() == Placement::Host)
            .collect();
        // The order must not depend on that of the table.
        on_host.sort_unstable_by_key(|(id, _)| **id);
        let buffers = on_host
            .into_iter()
            .map(|(_, held)| &mut held.buffer as &mut dyn Movable);
        let figures = &mut self.figures;
        figures.moved_bytes += self.memory.migrate(buffers).moved_bytes;
        let device = self.memory.device();
        let (held, limit) = (device.stats().reserved_bytes, device.limit_bytes());
        figures.runs += 1;
        figures.limit_changes += u64::from(self.limit_bytes != limit);
        figures.peak_held_bytes = held.max(figures.peak_held_bytes);
        figures.peak_limit_bytes = limit.max(figures.peak_limit_bytes);
        figures.deferred_runs += u64::from(held > limit);
        self.limit_bytes = limit;
    }

    pub(super) fn into_figures(self) -> Figures {
        Figures {
            digest: format!("{:016x}", self.digest),
            ..self.figures
        }
    }
}

/// Returns the ranges of a block's ends. The last one is omitted if it would overlap the first.
fn ends(len: usize) -> impl Iterator<Item = (usize, usize)> {
    let first = (len > 0).then_some((0, len.min(END)));
    let last = (len >= 2 * END).then(|| (len - END, len));
    first.into_iter().chain(last)
}

/// Returns the bytes that belong at an offset of a block.
fn content(key: u64, start: usize) -> [u8; END] {
    let (a, b) = (
        mix(key ^ start as u64),
        mix(key.wrapping_add(start as u64 + 1)),
    );
    let mut content = [0; END];
    content[..8].copy_from_slice(&a.to_le_bytes());
    content[8..].copy_from_slice(&b.to_le_bytes());
    content
}

/// Spreads a number over 64 bits (SplitMix64).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_written_where_they_do_not_overlap() {
        assert_eq!(ends(0).count(), 0);
        assert_eq!(ends(1).collect::<Vec<_>>(), [(0, 1)]);
        assert_eq!(ends(31).collect::<Vec<_>>(), [(0, 16)]);
        assert_eq!(ends(32).collect::<Vec<_>>(), [(0, 16), (16, 32)]);
        assert_eq!(ends(1000).collect::<Vec<_>>(), [(0, 16), (984, 1000)]);
    }

    #[test]
    fn ends_differ_between_blocks_passes_and_places() {
        assert_ne!(content(mix(1), 0), content(mix(2), 0));
        assert_ne!(content(mix(1 << 32 | 1), 0), content(mix(1), 0));
        assert_ne!(content(mix(1), 0), content(mix(1), 16));
    }
}
