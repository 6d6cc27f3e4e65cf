//! TensorFlow 1.15's BFC with AntMan's adjuster, the slow obvious way, from CONFORMANCE 7.2 and 8 alone.
//!
//! Predicts the exact answer: address, statistics, chunks and calls to the sub-allocator. What the
//! specification leaves open is decided as [`larder_core::Bfc`] documents it: forced merging goes
//! oldest first, and a chunk it made may be joined again at the turn of its youngest part.

use std::collections::BTreeMap;

use larder_core::{Addr, Align, GrowRequest, SubAllocator};

use super::{MIB, Source, Tuple, range};

const WASTE: u64 = 128 * MIB;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpstreamChunk {
    pub bytes: u64,
    pub used: bool,
    /// Count at which it was freed; 0 for none.
    pub freed_at: u64,
}

/// The original, in words made maps.
pub struct Upstream {
    pub limit: u64,
    collect: bool,
    next_region: u64,
    backed_off: bool,
    completed: u64,
    /// Address to bytes.
    regions: BTreeMap<u64, u64>,
    pub chunks: BTreeMap<u64, UpstreamChunk>,
    tuple: Tuple,
}

pub fn round256(bytes: u64) -> u64 {
    bytes.next_multiple_of(256)
}

impl Upstream {
    pub fn new(limit: u64, first_region: u64, collect: bool) -> Self {
        Self {
            limit,
            collect,
            next_region: round256(limit.min(first_region)),
            backed_off: false,
            completed: 0,
            regions: BTreeMap::new(),
            chunks: BTreeMap::new(),
            tuple: (0, 0, 0, 0),
        }
    }

    pub fn tuple(&self) -> Tuple {
        self.tuple
    }

    pub fn total(&self) -> u64 {
        self.regions.values().sum()
    }

    pub fn region_bytes(&self) -> Vec<u64> {
        self.regions.values().copied().collect()
    }

    /// 8.3. `freed_before` 0 is no demand.
    pub fn alloc(&mut self, bytes: u64, freed_before: u64, source: &Source) -> Option<u64> {
        if bytes == 0 {
            return None;
        }
        let r = round256(bytes);
        self.merge_safe();
        if let Some(addr) = self.find(r, freed_before) {
            return Some(addr);
        }
        if self.extend(r, source)
            && let Some(addr) = self.find(r, freed_before)
        {
            return Some(addr);
        }
        if freed_before == 0
            && self.force_merge(r)
            && let Some(addr) = self.find(r, freed_before)
        {
            return Some(addr);
        }
        if self.release_free_regions(r, source) && self.extend(r, source) {
            return self.find(r, freed_before);
        }
        None
    }

    /// 8.5; `count` 0 without a shared counter.
    pub fn free(&mut self, addr: u64, count: u64) {
        let chunk = self.chunks.get_mut(&addr).expect("a chunk");
        assert!(chunk.used);
        chunk.used = false;
        chunk.freed_at = count;
        self.tuple.1 -= chunk.bytes;
        if count == 0 {
            self.coalesce(addr);
        }
    }

    pub fn set_safe_frontier(&mut self, count: u64) {
        self.completed = self.completed.max(count);
    }

    /// 7.2.
    pub fn adjust(&mut self, new_limit: u64, source: &Source) -> u64 {
        if new_limit >= self.total() {
            self.limit = new_limit;
            return new_limit;
        }
        for (base, bytes) in self.regions.clone() {
            if self.total() <= new_limit {
                break;
            }
            let first = self.chunks[&base];
            if first.bytes == bytes && !first.used {
                self.release(base, source);
            }
        }
        let total = self.total();
        self.limit = new_limit.max(total);
        self.next_region = match new_limit.checked_sub(total) {
            Some(room) => round256(room.clamp(1, MIB)),
            None => MIB,
        };
        self.limit
    }

    /// 7.2: pool and stable bytes.
    pub fn pool_stats(&self) -> (u64, u64) {
        let in_use = |base: u64, bytes: u64| {
            self.chunks
                .range(base..base + bytes)
                .any(|(_, chunk)| chunk.used)
        };
        let stable = self
            .regions
            .iter()
            .filter(|(base, bytes)| in_use(**base, **bytes));
        (self.total(), stable.map(|(_, bytes)| bytes).sum())
    }

    fn region_of(&self, addr: u64) -> u64 {
        *self.regions.range(..=addr).next_back().expect("a region").0
    }

    fn find(&mut self, r: u64, freed_before: u64) -> Option<u64> {
        let (_, addr) = self
            .chunks
            .iter()
            .filter(|(_, c)| !c.used && c.bytes >= r)
            .filter(|(_, c)| freed_before == 0 || c.freed_at <= freed_before)
            .map(|(addr, c)| (c.bytes, *addr))
            .min()?;
        let chunk = self.chunks.get_mut(&addr).expect("just seen");
        let whole = *chunk;
        if whole.bytes >= 2 * r || whole.bytes - r >= WASTE {
            chunk.bytes = r;
            let rest = UpstreamChunk {
                bytes: whole.bytes - r,
                ..whole
            };
            self.chunks.insert(addr + r, rest);
        }
        let chunk = self.chunks.get_mut(&addr).expect("just seen");
        chunk.used = true;
        chunk.freed_at = 0;
        let tuple = &mut self.tuple;
        tuple.0 += 1;
        tuple.1 += chunk.bytes;
        tuple.2 = tuple.2.max(tuple.1);
        tuple.3 = tuple.3.max(chunk.bytes);
        Some(addr)
    }

    /// 8.4.
    fn extend(&mut self, r: u64, source: &Source) -> bool {
        let available = self.limit.saturating_sub(self.total()) / 256 * 256;
        if r > available {
            return false;
        }
        let mut doubled = false;
        while self.next_region < r {
            self.next_region *= 2;
            doubled = true;
        }
        let ask = |bytes: u64| {
            let align = Align::new(256).expect("a power of two");
            let request = GrowRequest {
                bytes,
                align,
                at: None,
            };
            source.grow(request).ok()
        };
        let mut bytes = self.next_region.min(available);
        let mut given = ask(bytes);
        if given.is_none() && !self.backed_off {
            self.backed_off = true;
            while given.is_none() {
                // Nine tenths; the corrected loop goes on where rounding up would stand still.
                let less = round256((bytes * 9).div_ceil(10)).min(bytes - 256);
                if less < r {
                    break;
                }
                bytes = less;
                given = ask(bytes);
            }
        }
        let Some(given) = given else {
            return false;
        };
        if !doubled {
            self.next_region *= 2;
        }
        let base = given.start().get();
        self.regions.insert(base, bytes);
        let chunk = UpstreamChunk {
            bytes,
            used: false,
            freed_at: 0,
        };
        self.chunks.insert(base, chunk);
        true
    }

    /// 8.6.
    fn release_free_regions(&mut self, r: u64, source: &Source) -> bool {
        let is_free = |base: u64, bytes: u64| {
            self.chunks
                .range(base..base + bytes)
                .all(|(_, chunk)| !chunk.used && chunk.freed_at == 0)
        };
        let free: Vec<(u64, u64)> = self
            .regions
            .iter()
            .filter(|(base, bytes)| is_free(**base, **bytes))
            .map(|(base, bytes)| (*base, *bytes))
            .collect();
        let sum: u64 = free.iter().map(|(_, bytes)| bytes).sum();
        if !self.collect || sum == 0 || r + self.total() > self.limit.saturating_add(sum) {
            return false;
        }
        for (base, _) in free {
            self.release(base, source);
        }
        true
    }

    fn release(&mut self, base: u64, source: &Source) {
        let bytes = self.regions.remove(&base).expect("a region");
        assert_eq!(self.chunks.remove(&base).map(|c| c.bytes), Some(bytes));
        source
            .release(range(base, bytes))
            .expect("the fake takes it");
    }

    /// Merges with the next, then with the previous chunk, if free and not held back by a count.
    fn coalesce(&mut self, addr: u64) -> u64 {
        let mut addr = addr;
        for other in [self.next_of(addr), self.previous_of(addr)]
            .into_iter()
            .flatten()
        {
            let chunk = self.chunks[&other];
            if !chunk.used && chunk.freed_at == 0 && self.chunks[&addr].freed_at == 0 {
                addr = self.join(addr, other);
            }
        }
        addr
    }

    /// The joined chunk carries the later count.
    fn join(&mut self, a: u64, b: u64) -> u64 {
        let (low, high) = (a.min(b), a.max(b));
        let behind = self.chunks.remove(&high).expect("a chunk");
        let chunk = self.chunks.get_mut(&low).expect("a chunk");
        chunk.bytes += behind.bytes;
        chunk.freed_at = chunk.freed_at.max(behind.freed_at);
        low
    }

    fn next_of(&self, addr: u64) -> Option<u64> {
        let behind = addr + self.chunks[&addr].bytes;
        let same =
            self.chunks.contains_key(&behind) && self.region_of(behind) == self.region_of(addr);
        same.then_some(behind)
    }

    fn previous_of(&self, addr: u64) -> Option<u64> {
        let before = *self.chunks.range(..addr).next_back()?.0;
        (self.region_of(before) == self.region_of(addr)).then_some(before)
    }

    fn free_chunks(&self) -> Vec<u64> {
        self.chunks
            .iter()
            .filter(|(_, c)| !c.used)
            .map(|(addr, _)| *addr)
            .collect()
    }

    fn merge_safe(&mut self) {
        for addr in self.free_chunks() {
            let chunk = self.chunks.get_mut(&addr).expect("just seen");
            if chunk.freed_at < self.completed {
                chunk.freed_at = 0;
            }
        }
        for addr in self.free_chunks() {
            if self.chunks.get(&addr).is_some_and(|c| c.freed_at == 0) {
                self.coalesce(addr);
            }
        }
    }

    fn force_merge(&mut self, r: u64) -> bool {
        let mut done = (0, 0);
        loop {
            let turns = self
                .chunks
                .iter()
                .filter(|(_, c)| !c.used && c.freed_at > 0);
            let later = turns
                .map(|(addr, c)| (c.freed_at, *addr))
                .filter(|turn| *turn > done);
            let Some(turn) = later.min() else {
                return false;
            };
            done = turn;
            let mut addr = turn.1;
            if let Some(next) = self.next_of(addr).filter(|next| !self.chunks[next].used) {
                self.join(addr, next);
            }
            let before = self
                .chunks
                .range(..addr)
                .next_back()
                .map(|(before, _)| *before);
            let free =
                |before: &u64| !self.chunks[before].used && self.next_of(*before) == Some(addr);
            if let Some(before) = before.filter(free) {
                self.join(before, addr);
                addr = before;
            }
            if self.chunks[&addr].bytes >= r {
                return true;
            }
        }
    }

    /// Every chunk as `(address, bytes, used)`.
    pub fn picture(&self) -> Vec<(Addr, u64, bool)> {
        let one = |(addr, c): (&u64, &UpstreamChunk)| (Addr::new(*addr), c.bytes, c.used);
        self.chunks.iter().map(one).collect()
    }
}
