//! Memory pools and stream-ordered memory: `cuMemAllocAsync`, `cuMemFreeAsync`.
//!
//! A call chooses the address; the memory is alive between the moments when the queued allocation
//! and the queued free *run*. A use outside that time is an illegal address. A use that is not
//! ordered after the allocation and before the free is a race, since both count as writes of the
//! whole block.
//!
//! A pool keeps whole freed blocks and reuses one for a request of at least half its size. It
//! neither splits nor joins them, and its granularity is 512 bytes, while a real driver's is
//! megabytes. A request counts as used from the call that allocates to the call that frees. Unused
//! memory above the release threshold is released when the host waits for a stream, an event or a
//! context.
//!
//! `run` does the work of the queued operations.
//!
//! MEMPOOL1 a block of a pool is in `Space::blocks`, and counts as reserved, from its creation
//! until the pool releases it, whether or not the program holds it.

mod run;

use std::collections::{BTreeMap, BTreeSet};

use larder_cuda_abi::Code;

use crate::clock::Moment;
use crate::driver::{Session, SimDriver};
use crate::queue::{OpId, Work};
use crate::space::{BlockKind, MemoryBlock};
use crate::table::ObjectTable;

/// Unit to which sizes are rounded up, in bytes.
const GRANULE: u64 = 512;

/// All pools.
#[derive(Debug)]
pub(crate) struct PoolSet {
    pub(crate) table: ObjectTable<SimPool>,
    /// Default pool of each device, created when first needed.
    default: BTreeMap<usize, usize>,
    /// Pool of each device from which `cuMemAllocAsync` allocates, if it was set.
    pub(crate) current: BTreeMap<usize, usize>,
}

/// A number of bytes and its high-water mark.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Level {
    pub(crate) now: u64,
    pub(crate) high: u64,
}

/// Rules for reusing freed memory in another stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reuse {
    /// Allows memory whose free is ordered before the request by events.
    pub(crate) follow_events: bool,
    /// Allows memory whose free has already run.
    pub(crate) opportunistic: bool,
    /// Allows any freed memory if there is no other; the request then waits for the free.
    pub(crate) internal: bool,
}

/// One pool.
#[derive(Debug)]
pub(crate) struct SimPool {
    pub(crate) device: usize,
    pub(crate) is_default: bool,
    /// Whether the program destroyed the pool; it is removed with its last block.
    pub(crate) destroyed: bool,
    /// Maximum bytes that the pool reserves, or 0 for no limit.
    max_bytes: u64,
    pub(crate) threshold: u64,
    pub(crate) reuse: Reuse,
    pub(crate) reserved: Level,
    pub(crate) used: Level,
    /// The access of other devices.
    pub(crate) access: BTreeMap<usize, u32>,
    /// Freed blocks, sorted by room; among equal ones, the longest unused first.
    free: BTreeMap<(u64, u64), FreedBlock>,
    /// The number of frees so far.
    frees: u64,
}

/// A freed block that the pool keeps.
#[derive(Clone, Copy, Debug)]
struct FreedBlock {
    at: u64,
    room: u64,
    /// The operations that begin and end its life; they may not have run yet.
    made: OpId,
    op: OpId,
    moment: Moment,
}

/// The state of a block of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pooled {
    pub(crate) pool: usize,
    /// Size of the block in bytes; the program may have requested less.
    pub(crate) room: u64,
    /// The bytes that the work running now may use; `None` while the block is not alive.
    pub(crate) live: Option<u64>,
    /// Whether the program has freed the block.
    pub(crate) freed: bool,
    /// The operation that begins its life.
    made: OpId,
}

impl Default for PoolSet {
    fn default() -> Self {
        Self {
            table: ObjectTable::new(Code::INVALID_VALUE),
            default: BTreeMap::new(),
            current: BTreeMap::new(),
        }
    }
}

impl PoolSet {
    /// Adds the streams that freed blocks refer to.
    pub(crate) fn name_streams(&self, named: &mut BTreeSet<usize>) {
        for (_, pool) in self.table.iter() {
            named.extend(pool.free.values().map(|freed| freed.moment.stream));
        }
    }
}

impl Level {
    fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.high = self.high.max(self.now);
    }

    fn sub(&mut self, bytes: u64) {
        self.now = self.now.saturating_sub(bytes);
    }
}

impl SimPool {
    pub(crate) fn new(device: usize, max_bytes: u64) -> Self {
        Self {
            device,
            is_default: false,
            destroyed: false,
            max_bytes,
            threshold: 0,
            reuse: Reuse {
                follow_events: true,
                opportunistic: true,
                internal: true,
            },
            reserved: Level::default(),
            used: Level::default(),
            access: BTreeMap::new(),
            free: BTreeMap::new(),
            frees: 0,
        }
    }

    /// Returns the smallest freed block for a request of `need` bytes for which `may` is true.
    fn best(&self, need: u64, may: impl Fn(&FreedBlock) -> bool) -> Option<(u64, u64)> {
        let fitting = self.free.range((need, 0)..);
        fitting
            .take_while(|(_, freed)| freed.room / 2 <= need)
            .find(|(_, freed)| may(freed))
            .map(|(key, _)| *key)
    }

    fn take_free(&mut self, key: (u64, u64)) -> Result<FreedBlock, Code> {
        self.free.remove(&key).ok_or(Code::UNKNOWN)
    }
}

impl SimDriver {
    /// Returns a pool that the program may use.
    pub(crate) fn pool(&mut self, handle: usize) -> Result<&mut SimPool, Code> {
        match self.pools.table.get_mut(handle) {
            Ok(pool) if !pool.destroyed => Ok(pool),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Returns the default pool of a device.
    pub(crate) fn default_pool(&mut self, device: usize) -> usize {
        if let Some(pool) = self.pools.default.get(&device) {
            return *pool;
        }
        let handle = self.handles.next();
        let mut pool = SimPool::new(device, 0);
        pool.is_default = true;
        self.pools.table.insert(handle, pool);
        self.pools.default.insert(device, handle);
        handle
    }

    /// Returns the pool that a device's requests go to.
    pub(crate) fn current_pool(&mut self, device: usize) -> usize {
        match self.pools.current.get(&device) {
            Some(pool) => *pool,
            None => self.default_pool(device),
        }
    }

    /// Destroys a pool. Blocks that the program holds stay valid.
    pub(crate) fn destroy_pool(&mut self, handle: usize) -> Result<(), Code> {
        let pool = self.pool(handle)?;
        if pool.is_default {
            return Err(Code::INVALID_VALUE);
        }
        pool.destroyed = true;
        self.pools.current.retain(|_, current| *current != handle);
        self.settle_pools();
        Ok(())
    }

    /// Allocates memory in the order of a stream.
    pub(crate) fn alloc_pooled(
        &mut self,
        handle: usize,
        bytes: u64,
        stream: usize,
    ) -> Result<u64, Code> {
        let need = bytes
            .checked_next_multiple_of(GRANULE)
            .filter(|need| *need > 0)
            .ok_or(match bytes {
                0 => Code::INVALID_VALUE,
                _ => Code::OUT_OF_MEMORY,
            })?;
        self.pool(handle)?;
        if self.is_capturing(stream) {
            return Err(Code::NOT_SUPPORTED);
        }
        self.spoil_implicit(stream)?;
        let (at, after) = self.find_pooled(handle, need, stream)?;
        let op = self.submit_after(stream, Work::PoolAlloc { at, bytes }, after)?;
        let id = self.space.next_id();
        let block = self.space.blocks.get_mut(&at).ok_or(Code::UNKNOWN)?;
        block.bytes = bytes;
        block.id = id;
        if let BlockKind::Pooled(pooled) = &mut block.kind {
            pooled.freed = false;
            pooled.made = op;
        }
        self.pool(handle)?.used.add(need);
        Ok(at)
    }

    /// Returns a block for a request: freed memory whose free is ordered before the request; if
    /// there is none, new memory; if that is refused, freed memory for whose free the request must
    /// wait.
    fn find_pooled(
        &mut self,
        handle: usize,
        need: u64,
        stream: usize,
    ) -> Result<(u64, Vec<OpId>), Code> {
        let clock = self.clock_of_next(stream)?;
        let pool = self.pools.table.get(handle)?;
        let reuse = pool.reuse;
        let at_once = |freed: &FreedBlock| {
            freed.moment.stream == stream
                || (reuse.follow_events && clock.knows(freed.moment))
                || (reuse.opportunistic && self.is_over(freed))
        };
        if let Some(index) = pool.best(need, at_once) {
            let freed = self.pool(handle)?.take_free(index)?;
            return Ok((freed.at, Vec::new()));
        }
        let mut made = self.grow_pool(handle, need);
        if made.is_err() {
            self.release_pooled(handle, 0);
            made = self.grow_pool(handle, need);
        }
        let Err(code) = made else {
            return made.map(|at| (at, Vec::new()));
        };
        let pool = self.pool(handle)?;
        match pool.best(need, |_| reuse.internal) {
            Some(index) => {
                let freed = pool.take_free(index)?;
                Ok((freed.at, vec![freed.op]))
            }
            None => Err(code),
        }
    }

    /// Creates a new block.
    fn grow_pool(&mut self, handle: usize, room: u64) -> Result<u64, Code> {
        let pool = self.pool(handle)?;
        let device = pool.device;
        let after = pool.reserved.now.checked_add(room);
        if pool.max_bytes > 0 && after.is_none_or(|after| after > pool.max_bytes) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let kind = BlockKind::Pooled(Pooled {
            pool: handle,
            room,
            live: None,
            freed: true,
            made: 0,
        });
        let at = self.space.alloc_plain(device, None, room, kind)?;
        self.pool(handle)?.reserved.add(room);
        Ok(at)
    }

    /// Releases unused blocks until no more than `keep` bytes are reserved.
    pub(crate) fn release_pooled(&mut self, handle: usize, keep: u64) {
        let Ok(pool) = self.pools.table.get(handle) else {
            return;
        };
        if pool.reserved.now <= keep {
            return;
        }
        let over = pool.free.iter().filter(|(_, freed)| self.is_over(freed));
        let mut over: Vec<(u64, u64)> = over.map(|(key, _)| *key).collect();
        over.sort_unstable_by_key(|(_, age)| *age);
        for key in over {
            let Ok(pool) = self.pools.table.get_mut(handle) else {
                return;
            };
            if pool.reserved.now <= keep {
                return;
            }
            let Ok(freed) = pool.take_free(key) else {
                return;
            };
            pool.reserved.sub(freed.room);
            if let Some(block) = self.space.blocks.get_mut(&freed.at) {
                block.bytes = freed.room;
            }
            let _ = self.space.free_plain(freed.at);
        }
    }

    /// Releases the unused memory of each pool above its threshold, because the host has waited.
    pub(crate) fn settle_pools(&mut self) {
        let pools: Vec<(usize, u64)> = self
            .pools
            .table
            .iter()
            .map(|(handle, pool)| match pool.destroyed {
                true => (handle, 0),
                false => (handle, pool.threshold),
            })
            .collect();
        for (handle, keep) in pools {
            self.release_pooled(handle, keep);
            let over = |pool: &SimPool| pool.destroyed && pool.reserved.now == 0;
            if self.pools.table.get(handle).is_ok_and(over) {
                let _ = self.pools.table.remove(handle);
            }
        }
    }

    /// Returns the pool's block that starts at `at`, if the program holds it.
    fn owned_pooled(&self, at: u64) -> Result<(&MemoryBlock, &Pooled), Code> {
        let block = self.space.blocks.get(&at).ok_or(Code::INVALID_VALUE)?;
        match &block.kind {
            BlockKind::Pooled(pooled) if !pooled.freed => Ok((block, pooled)),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Returns whether a block of a pool starts at `at`.
    pub(crate) fn is_pooled(&self, at: u64) -> bool {
        let block = self.space.blocks.get(&at);
        block.is_some_and(|block| matches!(block.kind, BlockKind::Pooled(_)))
    }

    /// Implements `cuMemFreeAsync`, which may also free memory of `cuMemAlloc`.
    pub(crate) fn free_async(&mut self, at: u64, stream: usize) -> Result<(), Code> {
        let is_plain = |block: &MemoryBlock| block.kind == BlockKind::Device;
        if self.space.blocks.get(&at).is_some_and(is_plain) {
            let queued = self.space.dying.get(&at);
            if queued.is_some_and(|op| !self.queue.done(*op)) {
                return Err(Code::INVALID_VALUE);
            }
            let op = self.submit(stream, Work::PlainFree { at })?;
            self.space.dying.insert(at, op);
            return Ok(());
        }
        let (_, pooled) = self.owned_pooled(at)?;
        let made = pooled.made;
        let op = self.submit(stream, Work::PoolFree { at, made })?;
        let moment = self.queue.ops.get(&op).ok_or(Code::UNKNOWN)?.moment;
        self.give_pooled(at, op, moment)
    }

    /// Marks a block as freed and keeps it in its pool.
    fn give_pooled(&mut self, at: u64, op: OpId, moment: Moment) -> Result<(), Code> {
        let block = self.space.blocks.get_mut(&at).ok_or(Code::UNKNOWN)?;
        let used = block.bytes.next_multiple_of(GRANULE);
        let BlockKind::Pooled(pooled) = &mut block.kind else {
            return Err(Code::UNKNOWN);
        };
        pooled.freed = true;
        let (handle, room, made) = (pooled.pool, pooled.room, pooled.made);
        let pool = self.pools.table.get_mut(handle)?;
        pool.used.sub(used);
        pool.frees += 1;
        let freed = FreedBlock {
            at,
            room,
            made,
            op,
            moment,
        };
        pool.free.insert((room, pool.frees), freed);
        Ok(())
    }

    /// Returns whether no queued operation allocates or frees the block any more. The allocation
    /// may run after the free if the program did not order them.
    fn is_over(&self, freed: &FreedBlock) -> bool {
        self.queue.done(freed.op) && self.queue.done(freed.made)
    }
}

impl Session {
    /// Implements `cuMemFree` of a pool's block. Waits only for the allocation. The program must
    /// have waited for the block's uses.
    pub(crate) fn free_pooled_now(&mut self, at: u64) -> Result<(), Code> {
        let (_, pooled) = self.owned_pooled(at)?;
        let made = pooled.made;
        self.run_until(|driver| driver.queue.done(made));
        // Another thread may have freed the block during the wait.
        self.owned_pooled(at)?;
        let mut clock = self.host.clone();
        // The host is not a stream, so its moments use the number 0, which no stream has.
        let moment = clock.tick(0);
        self.host.join(&clock);
        self.note_all(&clock, moment, "a free by the host", at);
        self.end_pooled(at);
        self.give_pooled(at, 0, moment)?;
        Ok(())
    }
}
