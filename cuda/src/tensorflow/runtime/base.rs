//! [`Base`]: blocks directly from the program's global allocator.
//!
//! * BASE1 a block in the tables was allocated by the global allocator with the layout in its entry, and has
//!   not been freed; only the thread that removes it from the tables frees it.
//!
//! The tables hold the blocks by address, so that foreign blocks are refused and a block's size is known.
//! Each table has its own lock, which is held only for accesses to it; the tables themselves use the global
//! allocator too. A program for which this is too slow can use the global allocator directly.

use std::alloc::Layout;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::{
    Addr, AddrRange, AllocError, AllocatorId, Block, BlockAllocator, Cause, ChunkHandle, FreeError,
    Grant, OutOfMemory, Rejected, Request, Stats, StreamPoint,
};

use super::host::HostBlocks;
use crate::account::Account;
use crate::driver::locked;

/// Number of tables, so that threads seldom contend.
const SHARDS: usize = 16;

/// Minimum alignment of a block, a cache line on most machines.
const ALIGN_BYTES: u64 = 64;

/// A block in use.
#[derive(Clone, Copy)]
struct HeapBlock {
    layout: Layout,
    bytes: u64,
    id: u64,
}

impl HeapBlock {
    /// Returns whether the block is this one, and not another allocator's at the same address.
    fn gave(&self, block: &Block) -> bool {
        block.is_of(AllocatorId::OUTSIDE) && block.bytes() == self.bytes
    }
}

/// Blocks from the global allocator, one call each, without a limit.
pub(super) struct Base {
    shards: [Mutex<HashMap<u64, HeapBlock>>; SHARDS],
    /// Number of ids assigned.
    ids: AtomicU64,
    account: Account,
}

impl Base {
    pub(super) fn new() -> Self {
        Self {
            shards: Default::default(),
            ids: AtomicU64::new(0),
            account: Account::new(u64::MAX),
        }
    }

    fn shard(&self, address: u64) -> &Mutex<HashMap<u64, HeapBlock>> {
        // Adjacent blocks of a size class lie in different shards. The index is always in bounds.
        let index = (address / ALIGN_BYTES) as usize % SHARDS;
        self.shards.get(index).unwrap_or(&self.shards[0])
    }

    fn find(&self, block: &Block) -> Option<HeapBlock> {
        let address = block.addr().get();
        let live = locked(self.shard(address)).get(&address).copied();
        live.filter(|live| live.gave(block))
    }

    /// Removes a block from its table.
    fn take(&self, block: &Block) -> Option<HeapBlock> {
        let address = block.addr().get();
        let live = match locked(self.shard(address)).entry(address) {
            Entry::Occupied(entry) if entry.get().gave(block) => entry.remove(),
            _ => return None,
        };
        self.account.freed(live.bytes);
        Some(live)
    }

    fn out_of_memory(&self, bytes: u64) -> AllocError {
        let mut out = OutOfMemory::of(Cause::SubAllocator, bytes);
        out.live_bytes = self.account.live().bytes;
        out.reserved_bytes = out.live_bytes;
        out.limit_bytes = u64::MAX;
        AllocError::OutOfMemory(out)
    }
}

impl BlockAllocator for Base {
    /// Makes one call of the global allocator.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        let bytes = request.bytes;
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let too_large = AllocError::TooLarge {
            requested_bytes: bytes,
        };
        let size = usize::try_from(bytes).map_err(|_| too_large)?;
        let align =
            usize::try_from(request.align.bytes().max(ALIGN_BYTES)).map_err(|_| too_large)?;
        let layout = Layout::from_size_align(size, align).map_err(|_| too_large)?;
        self.account.take(bytes).map_err(AllocError::OutOfMemory)?;
        // SAFETY: the layout's size is not 0.
        let start = unsafe { std::alloc::alloc(layout) };
        if start.is_null() {
            self.account.refused(bytes);
            return Err(self.out_of_memory(bytes));
        }
        let address = start.expose_provenance() as u64;
        let id = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
        let handle = ChunkHandle::new(1);
        let (Some(range), Some(handle)) = (AddrRange::new(Addr::new(address), bytes), handle)
        else {
            // SAFETY: allocated above with this layout, and not handed out.
            unsafe { std::alloc::dealloc(start, layout) };
            self.account.refused(bytes);
            return Err(too_large);
        };
        locked(self.shard(address)).insert(address, HeapBlock { layout, bytes, id });
        self.account.gave(bytes);
        Ok(Grant {
            block: Block::outside(range, handle),
            wait: None,
        })
    }

    /// A free with a stream point is always refused, since the global allocator has no streams and would
    /// reuse the block while work still uses it. Wait for the stream, then free the block without a point.
    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        if point.is_some() && self.find(&block).is_some() {
            return Err(Rejected::new(block, FreeError::NoStreams));
        }
        let Some(live) = self.take(&block) else {
            return Err(Rejected::new(block, FreeError::Unknown));
        };
        let start = core::ptr::with_exposed_provenance_mut::<u8>(block.addr().get() as usize);
        // SAFETY: BASE1: the block was in a table with this layout, and no longer is.
        unsafe { std::alloc::dealloc(start, live.layout) };
        Ok(())
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        Some(self.find(block)?.bytes)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        Some(self.find(block)?.id)
    }

    fn stats(&self) -> Stats {
        self.account.stats()
    }

    fn clear_stats(&self) {
        self.account.clear();
    }
}

/// Trims nothing, since the global allocator has a policy of its own.
impl HostBlocks for Base {
    fn blocks(&self) -> &dyn BlockAllocator {
        self
    }

    fn live_blocks(&self) -> u64 {
        self.account.live().blocks
    }
}
