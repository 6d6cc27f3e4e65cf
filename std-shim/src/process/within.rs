//! Idle memory where the process may have so much only, as in a container: what the heap keeps idle goes back before it
//! grows into the last part of it, however late the heap's thread comes. The kernel ends a process that touches more.
//!
//! What lies idle in arenas goes at once. Small blocks that were freed, and lie in lists and spans that count as used, need
//! two ticks, which the calls make that take memory meanwhile: most of the last part is there for that.
//!
//! Whoever takes memory from the arenas counts it. Each time a part of the limit was taken, the bytes that are used or may
//! have been written are counted ([`Look`]) and compared with the limit, and as many go back as are too many, in steps of
//! the calls that take memory (`purge/work`). The limit is read when that is due, once in [`READ_MS`] at most.

use larder_core::sync::{AtomicU64, Ordering};

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
    /// The limit; `u64::MAX` for none.
    limit: AtomicU64,
    /// When it was read, in milliseconds of the coarse clock; 0 for never.
    read_at: AtomicU64,
}

impl Within {
    pub(super) const fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            step: AtomicU64::new(FIRST_LOOK_BYTES),
            limit: AtomicU64::new(u64::MAX),
            read_at: AtomicU64::new(0),
        }
    }

    /// Counts bytes that are taken from an arena.
    pub(super) fn take(&self, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether a look is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.step.load(Ordering::Relaxed)
    }

    /// Told after too much was idle: whether any of it went back.
    pub(crate) fn looked(&self, was_of_use: bool) {
        self.pace(self.limit.load(Ordering::Relaxed), was_of_use);
    }

    /// When to look next: soon, and later where the last look was of no use.
    fn pace(&self, limit: u64, was_of_use: bool) {
        let least = (limit / LOOK_PART).clamp(1, LOOK_BYTES);
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
        self.limit.store(limit, Ordering::Relaxed);
        self.pace(limit, true);
    }
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
    pub(crate) fn begin<O: Os>(&mut self, process: &Process<O>) -> bool {
        let within = &process.within;
        if self.is_under_way || !within.is_due() {
            return false;
        }
        within.taken.store(0, Ordering::Relaxed);
        if within.limit(&process.os) == u64::MAX {
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
                // Relaxed: it is read by whoever looks, under the lock of the work.
                let limit = process.within.limit.load(Ordering::Relaxed);
                let used = process.live_bytes();
                return Some((used + self.idle).saturating_sub(limit - limit / FREE_PART));
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
