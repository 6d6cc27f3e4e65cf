//! [`Stats`]: what the heap holds.

use larder_core::lifetime::StepStats;
use larder_core::small::{CLASSES, SizeClass};

use crate::local::Local;
use crate::os::Os;
use crate::process::{Process, span_bytes};

/// What the process heap holds, in bytes where the name says so.
///
/// Free blocks that another running thread keeps at hand count as live: they are that thread's alone
/// to look at, mostly at most 32 KiB of each size class (a list that others freed is taken whole).
/// With one thread left the numbers are exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Blocks in the program's hands, as granted.
    pub live_bytes: u64,
    /// Of them, blocks above 128 KiB or with a coarse alignment.
    pub large_bytes: u64,
    /// Pages cut into blocks of one class, used or not.
    pub span_bytes: u64,
    /// Memory made usable by the system. What of it was never touched takes no physical memory.
    pub committed_bytes: u64,
    /// Addresses reserved for the heap.
    pub reserved_bytes: u64,
    /// Thread heaps, owned or waiting for a thread: as many as ever ran at once.
    pub heaps: u64,
    /// How the blocks of [`step`](crate::step)s were served, over all threads.
    pub steps: StepStats,
    /// By size class, smallest first.
    pub classes: [ClassStats; CLASSES],
}

/// What the heap holds of one size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassStats {
    /// Size of a block.
    pub block_bytes: u64,
    /// Blocks in the program's hands, or kept at hand by another thread.
    pub live_blocks: u64,
    /// Pages cut into such blocks.
    pub span_bytes: u64,
}

impl Stats {
    /// Counts. O(heaps x classes); each heap is locked for a moment.
    pub(crate) fn count<O: Os>(process: &'static Process<O>, local: &Local) -> Self {
        process.receive();
        let mut stats = Self {
            live_bytes: 0,
            large_bytes: 0,
            span_bytes: 0,
            committed_bytes: 0,
            reserved_bytes: 0,
            heaps: 0,
            steps: StepStats::default(),
            classes: [ClassStats::default(); CLASSES],
        };
        // Of all heaps together: what lies idle in one may belong to another's spans.
        let mut idle_blocks = [0; CLASSES];
        process.pool.for_each(|heap| {
            stats.heaps += 1;
            heap.with(|_, parts| {
                let entries = stats.classes.iter_mut().zip(&mut idle_blocks);
                for (class, (entry, idle)) in SizeClass::all().zip(entries) {
                    let usage = parts.set.usage(class, span_bytes(class));
                    *idle += usage.depot_blocks + parts.saved.len(class) as u64;
                    entry.live_blocks += usage.used_blocks;
                    entry.span_bytes += usage.span_bytes;
                }
            });
        });
        let entries = stats.classes.iter_mut().zip(&idle_blocks);
        for (class, (entry, idle)) in SizeClass::all().zip(entries) {
            entry.block_bytes = class.block_bytes() as u64;
            let idle = idle + local.ready_blocks(class) as u64;
            entry.live_blocks = entry.live_blocks.saturating_sub(idle);
            stats.live_bytes += entry.live_blocks * entry.block_bytes;
            stats.span_bytes += entry.span_bytes;
        }
        let mut used_bytes = 0;
        for arena in process.arenas() {
            let (live, committed) = arena.numbers();
            used_bytes += live;
            stats.committed_bytes += committed;
            stats.reserved_bytes += arena.bytes() as u64;
        }
        stats.large_bytes = used_bytes
            .saturating_sub(stats.span_bytes)
            .saturating_sub(process.meta_bytes());
        for heap in process.step_heaps() {
            let (steps, live, committed, reserved) = heap.numbers();
            stats.steps += steps;
            stats.large_bytes += live;
            stats.committed_bytes += committed;
            stats.reserved_bytes += reserved;
        }
        stats.live_bytes += stats.large_bytes;
        stats
    }
}
