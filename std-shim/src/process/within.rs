//! Idle memory where the process may have so much only, as in a container: what the heap keeps idle goes back before it
//! grows into the last part of it, however late the heap's thread comes. The kernel ends a process that touches more.
//!
//! What lies idle in arenas goes at once. Small blocks that were freed, and lie in spans that count as used, go by a tick,
//! which the calls make that take memory meanwhile: most of the last part is there for that. From when the last part is
//! reached until there is as much again the heap is *under pressure*: sets keep no lists and no span without a used block,
//! a tick scans all spans, and a call waits while another thread gives back. There are no huge pages in that part, and
//! those of which a part goes back are split, since the system has all of one in memory until then.
//!
//! Whoever takes memory from the arenas counts it, and who fills holes. Each time a part of the limit was taken, the bytes
//! that are used or may have been written are counted ([`Look`]) and compared with the limit, and as many go back as are
//! too many, in steps of the calls that take memory (`purge/work`). The limit is read when that is due, once in
//! [`READ_MS`] at most.

use larder_core::sync::{AtomicU8, AtomicU64, Ordering};

use super::Process;
use crate::arena::Walk;
use crate::os::Os;
use crate::purge::LOOK_COST;

/// This part of the limit is kept free of idle memory, and this part of it is taken between two looks.
const FREE_PART: u64 = 8;
const LOOK_PART: u64 = 64;
/// So much is taken before the first look, and between two without a limit.
const FIRST_LOOK_BYTES: u64 = 8 << 20;
const LOOK_BYTES: u64 = 256 << 20;
/// The limit may have changed after so many milliseconds.
const READ_MS: u64 = 1000;

/// What is known of the limit. Relaxed, all of it: what two threads that look at once see twice does not matter.
pub(crate) struct Within {
    /// Bytes taken since the last look.
    taken: AtomicU64,
    /// So many may be.
    step: AtomicU64,
    /// Bytes freed under pressure since that was the least.
    freed: AtomicU64,
    /// The limit; `u64::MAX` for none.
    limit: AtomicU64,
    /// When it was read, in milliseconds of the coarse clock; 0 for never.
    read_at: AtomicU64,
    /// Whether the system had huge pages then: 1, else 0.
    has_huge_pages: AtomicU8,
    /// Bytes of spans that are holes.
    holes: AtomicU64,
    /// Whether what is used and what idles come near the limit: 1, else 0.
    pressure: AtomicU8,
}

impl Within {
    pub(super) const fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            step: AtomicU64::new(FIRST_LOOK_BYTES),
            freed: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            read_at: AtomicU64::new(0),
            has_huge_pages: AtomicU8::new(0),
            holes: AtomicU64::new(0),
            pressure: AtomicU8::new(0),
        }
    }

    /// Counts bytes that are taken from an arena.
    pub(super) fn take(&self, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes of a span that become holes.
    pub(super) fn dug(&self, bytes: usize) {
        self.holes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes of holes that are used again.
    pub(super) fn filled(&self, bytes: usize) {
        self.holes.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.take(bytes);
    }

    /// In the child of a fork there is no pressure until it has counted: what goes back would be copied.
    pub(crate) fn in_child(&self) {
        self.pressure.store(0, Ordering::Relaxed);
    }

    /// Counts bytes that go back to an arena: where they are a step, a look is of use again.
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

    /// Whether a look is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.step.load(Ordering::Relaxed)
    }

    /// Whether what is used and what idles come near the limit, so that nothing is kept at hand.
    #[inline]
    pub(crate) fn under_pressure(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) > 0
    }

    /// Told what is used and idles; returns the bytes that are too many.
    fn counted<O: Os>(&self, bytes: u64, process: &'static Process<O>) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        let most = limit - limit / FREE_PART;
        let least = match self.under_pressure() {
            true => most - limit / FREE_PART,
            false => most,
        };
        self.pressure
            .store(u8::from(bytes > least), Ordering::Relaxed);
        // Where the limit is far away huge pages are as anywhere.
        let is_near = bytes > most / 2 && self.has_huge_pages.load(Ordering::Relaxed) > 0;
        let until = is_near.then_some(most);
        process
            .arenas()
            .for_each(|arena| arena.set_huge_until(until));
        bytes.saturating_sub(most)
    }

    /// Told after too much was idle: whether any of it went back.
    pub(crate) fn looked(&self, was_of_use: bool) {
        self.pace(self.limit.load(Ordering::Relaxed), was_of_use);
    }

    /// When to look next: soon, and later where the last look was of no use.
    fn pace(&self, limit: u64, was_of_use: bool) {
        let least = least_step(limit);
        let most = (limit / (2 * FREE_PART)).max(least);
        let step = match was_of_use {
            true => least,
            false => (2 * self.step.load(Ordering::Relaxed)).clamp(least, most),
        };
        self.step.store(step, Ordering::Relaxed);
    }

    /// The limit, read anew if that is due.
    fn limit(&self, os: &impl Os) -> u64 {
        let (now, read_at) = (os.coarse_ms().max(1), self.read_at.load(Ordering::Relaxed));
        if read_at == 0 || now.saturating_sub(read_at) >= READ_MS {
            self.read(os, now);
        }
        self.limit.load(Ordering::Relaxed)
    }

    // Not part of its caller, whose stack may be short: what is read lies there.
    #[cold]
    #[inline(never)]
    fn read(&self, os: &impl Os, now: u64) {
        let limit = os.memory_limit().unwrap_or(u64::MAX);
        self.read_at.store(now, Ordering::Relaxed);
        let has_huge_pages = u8::from(limit < u64::MAX && os.has_huge_pages());
        self.has_huge_pages.store(has_huge_pages, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
        self.pace(limit, true);
    }
}

/// The least that is taken between two looks.
fn least_step(limit: u64) -> u64 {
    (limit / LOOK_PART).clamp(1, LOOK_BYTES)
}

/// Where the count of idle bytes stands that are compared with the limit.
pub(crate) struct Look {
    is_under_way: bool,
    arena: usize,
    walk: Walk,
    /// Bytes so far.
    idle: u64,
}

impl Look {
    pub(crate) const fn new() -> Self {
        Self {
            is_under_way: false,
            arena: 0,
            walk: Walk::new(),
            idle: 0,
        }
    }

    pub(crate) const fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// Begins to count if that is due and there is a limit; returns whether it did.
    pub(crate) fn begin<O: Os>(&mut self, process: &'static Process<O>) -> bool {
        let within = &process.within;
        if self.is_under_way || !within.is_due() {
            return false;
        }
        within.taken.store(0, Ordering::Relaxed);
        if within.limit(&process.os) == u64::MAX {
            within.counted(0, process);
            return false;
        }
        *self = Self {
            is_under_way: true,
            ..Self::new()
        };
        true
    }

    /// Goes on counting, for as many blocks as are left. Returns the bytes that are too many, at the end.
    pub(crate) fn count_some<O: Os>(
        &mut self,
        process: &'static Process<O>,
        left: &mut usize,
    ) -> Option<u64> {
        while *left > 0 {
            let Some(arena) = process.arenas().nth(self.arena) else {
                self.is_under_way = false;
                let holes = process.within.holes.load(Ordering::Relaxed);
                let used = process.live_bytes().saturating_sub(holes);
                return Some(process.within.counted(used + self.idle, process));
            };
            let (bytes, more) = arena.idle_some(&mut self.walk);
            self.idle += bytes;
            if !more {
                (self.arena, self.walk) = (self.arena + 1, Walk::new());
            }
            *left = left.saturating_sub(LOOK_COST);
        }
        None
    }
}
