//! Idle memory when the process has a memory limit, as in a container. The heap returns idle memory
//! before it grows into the last part of the limit, even if the heap's own thread runs late. The
//! kernel ends a process that touches more than its limit.
//!
//! Idle memory of arenas returns immediately. Freed small blocks in spans that count as used return
//! with a tick, which is made by the calls that allocate in the meantime: most of the last part is
//! reserved for those calls. The heap is *under pressure* from the moment when the last part is
//! reached until as much again is free: sets keep no lists and no span without a used block, a tick
//! scans all spans, and a call waits while another thread returns memory. There are no huge pages
//! in that part. Huge pages that return in part are split, since the system keeps a whole huge page
//! in memory until it is split.
//!
//! Bytes allocated from the arenas are counted, and so are refilled holes. Each time a certain part
//! of the limit has been allocated, the bytes that are used or may have been written are counted
//! ([`MemoryCheck`]) and compared with the limit, and the excess is returned. The calls that
//! allocate do this in steps (`purge/work`). The system's limit is read at such a check, at most
//! once in [`READ_MS`]. A lower limit of the program's own takes its place.

use larder_core::sync::{AtomicU8, AtomicU64, Ordering};

use super::Process;
use crate::arena::ArenaWalk;
use crate::os::Os;
use crate::purge::LOOK_COST;

/// The part of the limit that is kept free of idle memory, and the part allocated between two
/// checks.
const FREE_PART: u64 = 8;
const LOOK_PART: u64 = 64;
/// Bytes allocated before the first check, and between two checks if there is no limit.
const FIRST_LOOK_BYTES: u64 = 8 << 20;
const LOOK_BYTES: u64 = 256 << 20;
/// Milliseconds after which the limit is read again.
const READ_MS: u64 = 1000;

/// The state of the limit. All accesses are relaxed: double counts by two threads that check at the
/// same time do not matter.
pub(crate) struct MemoryLimit {
    /// Bytes allocated since the last check.
    taken: AtomicU64,
    /// Bytes allocated until the next check is due.
    step: AtomicU64,
    /// Bytes freed under pressure since `step` was last reset by frees.
    freed: AtomicU64,
    /// The limit; `u64::MAX` for none.
    limit: AtomicU64,
    /// The program's own limit; `u64::MAX` for none.
    own: AtomicU64,
    /// When the limit was read, in milliseconds of the coarse clock; 0 for never.
    read_at: AtomicU64,
    /// Whether the system had huge pages when the limit was read: 1, otherwise 0.
    has_huge_pages: AtomicU8,
    /// Bytes of holes in spans.
    holes: AtomicU64,
    /// Whether used and idle bytes together come near the limit: 1, otherwise 0.
    pressure: AtomicU8,
}

impl MemoryLimit {
    pub(super) const fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            step: AtomicU64::new(FIRST_LOOK_BYTES),
            freed: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            own: AtomicU64::new(u64::MAX),
            read_at: AtomicU64::new(0),
            has_huge_pages: AtomicU8::new(0),
            holes: AtomicU64::new(0),
            pressure: AtomicU8::new(0),
        }
    }

    /// Sets the program's own limit. The next slow allocation reads it and checks; if another thread
    /// reads the limit during this call, the check READ_MS later does.
    pub(crate) fn set_own(&self, bytes: u64) {
        self.own.store(bytes, Ordering::Relaxed);
        self.read_at.store(0, Ordering::Relaxed);
        self.step.store(0, Ordering::Relaxed);
    }

    /// Counts bytes allocated from an arena.
    pub(super) fn take(&self, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes of a span that become holes.
    pub(super) fn note_discarded(&self, bytes: usize) {
        self.holes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes of holes that are used again.
    pub(super) fn note_reused(&self, bytes: usize) {
        self.holes.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.take(bytes);
    }

    /// Clears the pressure in the child of a fork until the child has counted, because discarding
    /// would copy memory.
    pub(crate) fn in_child(&self) {
        self.pressure.store(0, Ordering::Relaxed);
    }

    /// Counts bytes freed to an arena. Once they add up to a step, a check is useful again.
    #[inline]
    pub(super) fn free(&self, bytes: usize) {
        if self.under_pressure() {
            let freed = self.freed.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
            let least = least_step(self.limit.load(Ordering::Relaxed));
            if freed >= least {
                self.freed.store(0, Ordering::Relaxed);
                self.step.store(least, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether a check is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.step.load(Ordering::Relaxed)
    }

    /// Returns whether used and idle bytes together come near the limit, so that nothing is cached.
    #[inline]
    pub(crate) fn under_pressure(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) > 0
    }

    /// Sets the pressure according to the used and idle bytes. Returns the excess bytes.
    fn counted<O: Os>(&self, bytes: u64, process: &'static Process<O>) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        let most = limit - limit / FREE_PART;
        let least = match self.under_pressure() {
            true => most - limit / FREE_PART,
            false => most,
        };
        self.pressure
            .store(u8::from(bytes > least), Ordering::Relaxed);
        // Far from the limit, huge pages are not bounded.
        let is_near = bytes > most / 2 && self.has_huge_pages.load(Ordering::Relaxed) > 0;
        let until = is_near.then_some(most);
        process
            .arenas()
            .for_each(|arena| arena.set_huge_until(until));
        bytes.saturating_sub(most)
    }

    /// Records whether returning the excess freed any memory.
    pub(crate) fn looked(&self, was_of_use: bool) {
        self.pace(self.limit.load(Ordering::Relaxed), was_of_use);
    }

    /// Sets when the next check is due: soon, or later if the last check freed nothing.
    fn pace(&self, limit: u64, was_of_use: bool) {
        let least = least_step(limit);
        let most = (limit / (2 * FREE_PART)).max(least);
        let step = match was_of_use {
            true => least,
            false => (2 * self.step.load(Ordering::Relaxed)).clamp(least, most),
        };
        self.step.store(step, Ordering::Relaxed);
    }

    /// Returns the limit, read again if that is due.
    fn limit(&self, os: &impl Os) -> u64 {
        let (now, read_at) = (os.coarse_ms().max(1), self.read_at.load(Ordering::Relaxed));
        if read_at == 0 || now.saturating_sub(read_at) >= READ_MS {
            self.read(os, now);
        }
        self.limit.load(Ordering::Relaxed)
    }

    // Not inlined, because its buffer would burden the caller's stack, which may be small.
    #[cold]
    #[inline(never)]
    fn read(&self, os: &impl Os, now: u64) {
        let limit = os.memory_limit().unwrap_or(u64::MAX);
        let limit = limit.min(self.own.load(Ordering::Relaxed));
        self.read_at.store(now, Ordering::Relaxed);
        let has_huge_pages = u8::from(limit < u64::MAX && os.has_huge_pages());
        self.has_huge_pages.store(has_huge_pages, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
        self.pace(limit, true);
    }
}

/// Returns the minimum bytes allocated between two checks.
fn least_step(limit: u64) -> u64 {
    (limit / LOOK_PART).clamp(1, LOOK_BYTES)
}

/// Progress of a count of idle bytes, to compare with the limit.
pub(crate) struct MemoryCheck {
    is_under_way: bool,
    arena: usize,
    walk: ArenaWalk,
    /// Idle bytes counted so far.
    idle: u64,
}

impl MemoryCheck {
    pub(crate) const fn new() -> Self {
        Self {
            is_under_way: false,
            arena: 0,
            walk: ArenaWalk::new(),
            idle: 0,
        }
    }

    pub(crate) const fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// Starts a count if one is due and there is a limit. Returns whether it started one.
    pub(crate) fn begin<O: Os>(&mut self, process: &'static Process<O>) -> bool {
        let limit = &process.memory_limit;
        if self.is_under_way || !limit.is_due() {
            return false;
        }
        limit.taken.store(0, Ordering::Relaxed);
        if limit.limit(&process.os) == u64::MAX {
            limit.counted(0, process);
            return false;
        }
        *self = Self {
            is_under_way: true,
            ..Self::new()
        };
        true
    }

    /// Continues the count while `left` is positive. Returns the excess bytes when the count is
    /// complete.
    pub(crate) fn count_some<O: Os>(
        &mut self,
        process: &'static Process<O>,
        left: &mut usize,
    ) -> Option<u64> {
        while *left > 0 {
            let Some(arena) = process.arenas().nth(self.arena) else {
                self.is_under_way = false;
                let holes = process.memory_limit.holes.load(Ordering::Relaxed);
                let used = process.live_bytes().saturating_sub(holes);
                return Some(process.memory_limit.counted(used + self.idle, process));
            };
            let (bytes, more) = arena.idle_some(&mut self.walk);
            self.idle += bytes;
            if !more {
                (self.arena, self.walk) = (self.arena + 1, ArenaWalk::new());
            }
            *left = left.saturating_sub(LOOK_COST);
        }
        None
    }
}
