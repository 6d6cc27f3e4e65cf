//! TensorFlow 1.15's best fit with coalescing, with the adjuster that AntMan added: slow, exact, obvious.
//!
//! It produces the same addresses, counters and sub-allocator calls as the original (`bfc_allocator`), so it shows what
//! [`larder_core::RegionPool`] keeps and what it changes. It follows docs/CONFORMANCE.md, s8 and s7_2. It has one
//! counter of frees in place of streams, always aligns to 256 bytes, and gives no reason for a failure.
//!
//! Three defects of the original are left out. The back-off after a refusal ends even below ten granules, where nine
//! tenths are rounded up to the whole. When a limit of 0 is raised, 0 is not doubled without end. After a shrink that
//! leaves more bytes than the new limit, the next region has 1 MiB; in the original, a subtraction wraps. Where the
//! original depends on the order of a queue, the order is fixed: chunks are merged by force in the order of their
//! frees, and a merged chunk has another turn when its most recently freed part would have had one.

mod chunks;

use larder_core::{Addr, AddrRange, Align, GrowRequest, PoolStats, Stats, SubAllocator};

use chunks::Chunks;
pub use chunks::{Chunk, Used};

/// The unit of sizes and addresses.
const GRANULE_BYTES: u64 = 256;

/// A chunk that exceeds the request by at least this is always split.
const WASTE_BYTES: u64 = 128 << 20;

/// The size of the first region if growth is allowed, and the largest size from which growth restarts after a shrink.
const FIRST_REGION_BYTES: u64 = 1 << 20;

/// The model of upstream's allocator.
#[derive(Clone, Debug)]
pub struct Bfc {
    collect_regions: bool,
    next_region_bytes: u64,
    backed_off: bool,
    safe_frontier: u64,
    last_id: u64,
    stats: Stats,
    chunks: Chunks,
}

impl Bfc {
    /// Creates an allocator whose first region has 1 MiB, which grows up to the limit, and which does not collect
    /// regions.
    pub fn new(limit_bytes: u64) -> Self {
        let bfc = Self {
            collect_regions: false,
            next_region_bytes: 0,
            backed_off: false,
            safe_frontier: 0,
            last_id: 0,
            stats: Stats {
                limit_bytes,
                ..Stats::default()
            },
            chunks: Chunks::default(),
        };
        bfc.with_first_region(FIRST_REGION_BYTES)
    }

    /// Sets the size of the first region. If it is at least the limit, the first region takes all the memory.
    #[must_use]
    pub fn with_first_region(self, bytes: u64) -> Self {
        Self {
            next_region_bytes: round(bytes.min(self.stats.limit_bytes).max(1)),
            ..self
        }
    }

    /// Lets the allocator release free regions to make room before it fails.
    #[must_use]
    pub fn collecting(self) -> Self {
        Self {
            collect_regions: true,
            ..self
        }
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Sets the number of allocations and the largest size to 0, and the peak to the bytes in use.
    pub fn clear_stats(&mut self) {
        self.stats.clear();
    }

    /// Returns the regions in address order.
    pub fn regions(&self) -> impl Iterator<Item = AddrRange> + '_ {
        self.chunks
            .regions
            .iter()
            .map(|(start, bytes)| range(*start, *bytes))
    }

    /// Returns the chunks in address order.
    pub fn chunks(&self) -> impl Iterator<Item = (Addr, Chunk)> + '_ {
        let chunks = self.chunks.by_start.iter();
        chunks.map(|(start, chunk)| (Addr::new(*start), *chunk))
    }

    /// Returns the block that starts at an address, if there is one.
    pub fn block(&self, addr: Addr) -> Option<(AddrRange, Used)> {
        let chunk = self.chunks.by_start.get(&addr.get())?;
        Some((range(addr.get(), chunk.bytes), chunk.used?))
    }

    /// Allocates a block of at least `bytes` bytes. Returns its whole chunk, or `None` where upstream returns null.
    pub fn alloc(&mut self, source: &impl SubAllocator, bytes: u64) -> Option<AddrRange> {
        self.alloc_freed_by(source, bytes, 0)
    }

    /// Allocates a block in memory that was freed at `count` or earlier; 0 allows any memory.
    pub fn alloc_freed_by(
        &mut self,
        source: &impl SubAllocator,
        bytes: u64,
        count: u64,
    ) -> Option<AddrRange> {
        if bytes == 0 {
            return None;
        }
        let rounded = bytes.checked_next_multiple_of(GRANULE_BYTES)?;
        self.chunks.merge_safe(self.safe_frontier);
        let mut found = self.chunks.find(rounded, count);
        if found.is_none() && self.extend(source, rounded) {
            found = self.chunks.find(rounded, count);
        }
        if found.is_none() && count == 0 && self.chunks.force_merge(rounded) {
            found = self.chunks.find(rounded, count);
        }
        if found.is_none() && self.collect(source, rounded) && self.extend(source, rounded) {
            found = self.chunks.find(rounded, count);
        }
        Some(self.take(found?, rounded, bytes))
    }

    /// Frees the block at an address.
    ///
    /// # Panics
    /// If there is no block.
    pub fn free(&mut self, addr: Addr) {
        self.free_at(addr, 0);
    }

    /// Frees the block at an address. `count` is the next value of the shared counter.
    ///
    /// # Panics
    /// If there is no block.
    pub fn free_at(&mut self, addr: Addr, count: u64) {
        let start = addr.get();
        let chunk = self.chunks.by_start[&start];
        let used = chunk.used.expect("a block in use");
        self.stats.live_bytes -= chunk.bytes;
        self.stats.requested_bytes -= used.requested_bytes;
        let freed = Chunk {
            used: None,
            freed_at: count,
            ..chunk
        };
        self.chunks.put(start, freed);
        if count == 0 {
            self.chunks.coalesce(start);
        }
    }

    /// Allows memory that was freed below `count` to be joined from now on.
    pub fn set_safe_frontier(&mut self, count: u64) {
        self.safe_frontier = self.safe_frontier.max(count);
    }

    /// Sets the limit. If more bytes are held, free regions are released in address order. Returns the limit in force,
    /// which is at least the bytes still held.
    pub fn adjust(&mut self, source: &impl SubAllocator, limit_bytes: u64) -> u64 {
        if limit_bytes >= self.stats.reserved_bytes {
            self.stats.limit_bytes = limit_bytes;
            return limit_bytes;
        }
        for start in self.chunks.free_regions() {
            if self.stats.reserved_bytes > limit_bytes {
                self.release(source, start);
            }
        }
        let held = self.stats.reserved_bytes;
        self.stats.limit_bytes = limit_bytes.max(held);
        self.next_region_bytes = match limit_bytes.checked_sub(held) {
            Some(room) => round(room.clamp(1, FIRST_REGION_BYTES)),
            None => FIRST_REGION_BYTES,
        };
        self.stats.limit_bytes
    }

    /// Returns the bytes held, and the bytes of the regions that cannot be released.
    pub fn pool_stats(&self) -> PoolStats {
        let free = self.chunks.free_regions();
        let stable = self
            .chunks
            .regions
            .iter()
            .filter(|region| !free.contains(region.0));
        PoolStats {
            pool_bytes: self.stats.reserved_bytes,
            stable_bytes: stable.map(|(_, bytes)| bytes).sum(),
        }
    }

    /// Releases every wholly free region. Returns the bytes released.
    pub fn release_free_regions(&mut self, source: &impl SubAllocator) -> u64 {
        let before = self.stats.reserved_bytes;
        for start in self.chunks.free_regions() {
            self.release(source, start);
        }
        before - self.stats.reserved_bytes
    }

    /// Adds a region.
    pub fn add_region(&mut self, region: AddrRange) {
        let (start, bytes) = (region.start().get(), region.bytes());
        self.chunks.regions.insert(start, bytes);
        let stats = &mut self.stats;
        stats.reserved_bytes += bytes;
        stats.peak_reserved_bytes = stats.peak_reserved_bytes.max(stats.reserved_bytes);
        let chunk = Chunk {
            bytes,
            used: None,
            freed_at: 0,
        };
        self.chunks.put(start, chunk);
    }

    /// Uses the front of a free chunk, which is split if enough would be left.
    fn take(&mut self, start: u64, rounded: u64, requested_bytes: u64) -> AddrRange {
        let whole = self.chunks.remove(start);
        let rest = whole.bytes - rounded;
        let mut bytes = whole.bytes;
        if rest >= rounded || rest >= WASTE_BYTES {
            bytes = rounded;
            let rest = Chunk {
                bytes: rest,
                ..whole
            };
            self.chunks.put(start + rounded, rest);
        }
        self.last_id += 1;
        let used = Used {
            requested_bytes,
            id: self.last_id,
        };
        let chunk = Chunk {
            bytes,
            used: Some(used),
            freed_at: 0,
        };
        self.chunks.put(start, chunk);
        let stats = &mut self.stats;
        stats.allocations += 1;
        stats.requested_bytes += requested_bytes;
        stats.live_bytes += bytes;
        stats.peak_live_bytes = stats.peak_live_bytes.max(stats.live_bytes);
        stats.largest_bytes = stats.largest_bytes.max(bytes);
        range(start, bytes)
    }

    /// Adds a region that is large enough for the request. After the allocator's first refusal, tries smaller and
    /// smaller regions.
    fn extend(&mut self, source: &impl SubAllocator, rounded: u64) -> bool {
        let room = self
            .stats
            .limit_bytes
            .saturating_sub(self.stats.reserved_bytes);
        let room = room / GRANULE_BYTES * GRANULE_BYTES;
        if rounded > room {
            return false;
        }
        let mut doubled = false;
        while self.next_region_bytes < rounded {
            self.next_region_bytes = self.next_region_bytes.saturating_mul(2);
            doubled = true;
        }
        let mut bytes = self.next_region_bytes.min(room);
        let mut given = ask(source, bytes);
        if given.is_none() && !self.backed_off {
            self.backed_off = true;
            while given.is_none() {
                let nine_tenths = round(bytes - bytes / 10);
                bytes = nine_tenths.min(bytes - GRANULE_BYTES);
                if bytes < rounded {
                    break;
                }
                given = ask(source, bytes);
            }
        }
        let Some(given) = given else {
            return false;
        };
        if !doubled {
            self.next_region_bytes = self.next_region_bytes.saturating_mul(2);
        }
        self.add_region(given);
        true
    }

    /// Releases all free regions if that is allowed and the request then fits below the limit.
    fn collect(&mut self, source: &impl SubAllocator, rounded: u64) -> bool {
        let free = self.chunks.free_regions();
        let sum: u64 = free.iter().map(|start| self.chunks.regions[start]).sum();
        let stats = &self.stats;
        let fits = rounded + stats.reserved_bytes <= stats.limit_bytes.saturating_add(sum);
        if !self.collect_regions || sum == 0 || !fits {
            return false;
        }
        self.release_free_regions(source);
        true
    }

    /// Releases a region. The original's sub-allocator cannot refuse, so the answer is ignored.
    fn release(&mut self, source: &impl SubAllocator, start: u64) {
        let bytes = self.chunks.remove(start).bytes;
        self.chunks.regions.remove(&start);
        self.stats.reserved_bytes -= bytes;
        let _ = source.release(range(start, bytes));
    }
}

fn ask(source: &impl SubAllocator, bytes: u64) -> Option<AddrRange> {
    let request = GrowRequest {
        bytes,
        align: Align::new(GRANULE_BYTES).expect("a power of two"),
        at: None,
    };
    source.grow(request).ok()
}

fn range(start: u64, bytes: u64) -> AddrRange {
    AddrRange::new(Addr::new(start), bytes).expect("a range")
}

fn round(bytes: u64) -> u64 {
    bytes.next_multiple_of(GRANULE_BYTES)
}
