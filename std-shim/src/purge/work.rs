//! [`PurgeWork`]: upkeep of the heap by calls of the program, with a bounded step in each call: due
//! ticks without a purge thread, and making up for growth and for idle memory near a limit.

use super::tick::{STEP_BLOCKS, Tick};
use crate::arena::ArenaWalk;
use crate::os::Os;
use crate::process::{MemoryCheck, Process};

/// Bytes of an allocated block for which the call does one more step, which costs less than
/// touching those bytes.
const STEP_BYTES: usize = 4 << 20;
/// Bytes of a step near a memory limit, for calls that allocate a span of small blocks.
const LIMIT_STEP_BYTES: usize = 64 << 10;

/// The current work. The holder of its lock may take the locks of heaps and arenas.
pub(crate) struct PurgeWork {
    pub(super) tick: Tick,
    pub(crate) growth: MakeUp,
    look: MemoryCheck,
}

/// Making up for growth, or for idle memory near a limit: returns free memory of the arenas, and
/// owes two ticks if that is not enough.
pub(crate) struct MakeUp {
    is_under_way: bool,
    /// Bytes still to return, and the progress of the walk that finds them.
    left: u64,
    arena: usize,
    walk: ArenaWalk,
    /// Cost so far, in blocks (see `tick`).
    cost: u64,
    /// Bytes that had been returned before, if the work is for a limit.
    before: Option<u64>,
}

impl PurgeWork {
    pub(crate) const fn new() -> Self {
        Self {
            tick: Tick::new(),
            growth: MakeUp::new(),
            look: MemoryCheck::new(),
        }
    }
}

impl MakeUp {
    const fn new() -> Self {
        Self {
            is_under_way: false,
            left: 0,
            arena: 0,
            walk: ArenaWalk::new(),
            cost: 0,
            before: None,
        }
    }

    /// Returns the bytes of a block for which one step is done. The ticks that follow are included.
    const fn step_bytes(&self) -> usize {
        match self.before {
            Some(_) if self.is_under_way => LIMIT_STEP_BYTES,
            _ => STEP_BYTES,
        }
    }

    pub(crate) const fn begin(&mut self, bytes: u64) {
        *self = Self {
            is_under_way: true,
            left: bytes,
            ..Self::new()
        };
    }
}

impl<O: Os> Process<O> {
    /// Does a step of the due work, and more steps for a long block of `bytes` bytes. Returns
    /// immediately if no work is due, or if another thread is doing a step; under pressure it waits
    /// for that step.
    pub(crate) fn work(&'static self, bytes: usize, now: u64) {
        let purger = &self.purger;
        let ticks = purger.is_inline() && purger.is_due(now, &self.tuning);
        if !ticks && !purger.has_work() && !self.memory_limit.is_due() {
            return;
        }
        let (mut left, mut lapses) = (bytes, purger.lapses(now, &self.tuning));
        if ticks {
            purger.owe_ticks(1, now);
        }
        if purger.is_paused(now) && !self.memory_limit.is_due() {
            return;
        }
        loop {
            let step = |work: &mut PurgeWork| {
                // Work for a limit stays due after a pause.
                if core::mem::take(&mut lapses) && work.growth.before.is_none() {
                    work.growth.left = 0;
                }
                let more = self.work_some(work, now);
                more.then(|| work.growth.step_bytes())
            };
            self.wait_for_fork();
            // Under pressure every thread waits while another thread, which may have lost its
            // processor, has an excess to return.
            let step_bytes = match self.memory_limit.under_pressure() {
                true => self.work.with(step),
                false => self.work.try_with(step).flatten(),
            };
            match step_bytes {
                Some(bytes) if bytes <= left => left -= bytes,
                _ => return,
            }
        }
    }

    /// Does a step of the due work. Returns whether there was any.
    pub(crate) fn work_some(&'static self, work: &mut PurgeWork, now: u64) -> bool {
        let growth = &mut work.growth;
        if growth.left == 0 && work.look.begin(self) {
            // The count is followed by more work.
            self.purger.makes_up();
        }
        let looks = work.look.is_under_way();
        if growth.left == 0 && !looks && !self.purger.owes_ticks() {
            if growth.is_under_way {
                self.end_growth(growth, now);
            }
            let bytes = self.purger.take_grown(now);
            if bytes == 0 {
                return false;
            }
            growth.begin(bytes);
            self.purger.makes_up();
        }
        let mut left = STEP_BLOCKS;
        if looks {
            if let Some(excess) = work.look.count_some(self, &mut left) {
                growth.begin(excess);
                growth.before = Some(self.purger.purged_bytes());
            }
        } else if growth.left > 0 {
            self.discard_some(growth, &mut left, now);
        } else {
            self.tick_some(&mut work.tick, &mut left);
        }
        growth.cost += (STEP_BLOCKS - left) as u64;
        true
    }

    fn end_growth(&'static self, growth: &mut MakeUp, now: u64) {
        self.purger.made_up(now, growth.cost);
        if let Some(before) = growth.before {
            self.memory_limit
                .looked(self.purger.purged_bytes() > before);
        }
        growth.is_under_way = false;
    }

    fn discard_some(&'static self, growth: &mut MakeUp, left: &mut usize, now: u64) {
        let Some(arena) = self.arenas().nth(growth.arena) else {
            // No more memory can be returned now: the first tick ages young memory, the second
            // returns it.
            growth.left = 0;
            return self.purger.owe_ticks(2, now);
        };
        let (given, more) = arena.discard_some_dirty(&mut growth.walk);
        self.purger.count_purged(given.bytes);
        *left = left.saturating_sub(given.go_cost());
        growth.left = growth.left.saturating_sub(given.bytes);
        if !more {
            (growth.arena, growth.walk) = (growth.arena + 1, ArenaWalk::new());
        }
    }
}
