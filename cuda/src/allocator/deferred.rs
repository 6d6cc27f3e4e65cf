//! Blocks that several streams used: out of use once each has passed its point.
//!
//! The core's chunks carry one point. A block with more is kept here, as a block in use, until all
//! but its home's have passed; then it is freed in the order of its home. No stream waits for another
//! because of it.

use std::sync::Mutex;

use larder_core::sync::{AtomicU64, AtomicUsize, Ordering};
use larder_core::{Block, StreamPoint};

use crate::driver::locked;

/// A block and what must pass.
struct DeferredBlock {
    block: Block,
    origin: StreamPoint,
    others: Vec<StreamPoint>,
}

/// All such blocks of an allocator.
#[derive(Default)]
pub(crate) struct DeferredBlocks {
    waiting: Mutex<Vec<DeferredBlock>>,
    /// How many there are, so that nobody locks to see that there are none.
    count: AtomicUsize,
    /// Bytes of them.
    bytes: AtomicU64,
}

impl DeferredBlocks {
    /// Keeps a block until `others` have passed.
    pub(crate) fn defer(&self, block: Block, origin: StreamPoint, others: Vec<StreamPoint>) {
        let mut waiting = locked(&self.waiting);
        self.bytes.fetch_add(block.bytes(), Ordering::Relaxed);
        waiting.push(DeferredBlock {
            block,
            origin,
            others,
        });
        self.count.store(waiting.len(), Ordering::Relaxed);
    }

    /// Bytes that the program has freed and that count as live.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Frees what has passed, with its home's point. Under the lock: so another thread that is short of
    /// memory finds each block here or free, and never on the way.
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
            |waiting: &mut DeferredBlock| waiting.others.iter().all(|point| is_done(*point));
        waiting.extract_if(.., has_passed).for_each(|passed| {
            self.bytes
                .fetch_sub(passed.block.bytes(), Ordering::Relaxed);
            free(passed.block, passed.origin);
        });
        self.count.store(waiting.len(), Ordering::Relaxed);
    }
}
