//! [`MultiStreamFrees`]: blocks that several streams used, free once each stream has reached its point.
//!
//! A chunk of the core carries one stream point. A block with several points is kept here, as a block in use,
//! until all streams but the first have reached their points. Then it is freed in the order of the first
//! stream. No stream waits for another because of such a block.

use std::sync::Mutex;

use larder_core::sync::{AtomicU64, AtomicUsize, Ordering};
use larder_core::{Block, StreamPoint};

use crate::driver::locked;

/// A block, and the points that must be reached before its free.
struct MultiStreamFree {
    block: Block,
    freed_on: StreamPoint,
    others: Vec<StreamPoint>,
}

/// The waiting multi-stream frees of an allocator.
#[derive(Default)]
pub(crate) struct MultiStreamFrees {
    waiting: Mutex<Vec<MultiStreamFree>>,
    /// Number of blocks, so that an empty list is seen without the lock.
    count: AtomicUsize,
    /// Bytes of all blocks.
    bytes: AtomicU64,
}

impl MultiStreamFrees {
    /// Defers the free of a block until `others` are reached; it is then freed at the point `freed_on`.
    pub(crate) fn defer(&self, block: Block, freed_on: StreamPoint, others: Vec<StreamPoint>) {
        let mut waiting = locked(&self.waiting);
        self.bytes.fetch_add(block.bytes(), Ordering::Relaxed);
        waiting.push(MultiStreamFree {
            block,
            freed_on,
            others,
        });
        self.count.store(waiting.len(), Ordering::Relaxed);
    }

    /// Returns the bytes that the program has freed and that still count as live.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Frees each block whose other points are reached, at the point of its first stream. The lock is held
    /// throughout, so another thread that is short of memory finds each block either here or free.
    pub(crate) fn free_passed(
        &self,
        is_done: impl Fn(StreamPoint) -> bool,
        mut free: impl FnMut(Block, StreamPoint),
    ) {
        if self.is_empty() {
            return;
        }
        let mut waiting = locked(&self.waiting);
        let has_passed =
            |waiting: &mut MultiStreamFree| waiting.others.iter().all(|point| is_done(*point));
        waiting.extract_if(.., has_passed).for_each(|passed| {
            self.bytes
                .fetch_sub(passed.block.bytes(), Ordering::Relaxed);
            free(passed.block, passed.freed_on);
        });
        self.count.store(waiting.len(), Ordering::Relaxed);
    }
}
