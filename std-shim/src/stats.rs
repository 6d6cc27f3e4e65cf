//! [`Stats`]: the statistics of the heap.

use core::fmt;

use larder_core::small::{CLASSES, ClassUsage, SizeClass, SpanSet, ThreadCache};
use larder_core::steps::StepStats;

use crate::os::Os;
use crate::process::{Process, span_bytes};
use crate::thread::local::Local;

/// The memory of the process heap. Fields whose names end in `_bytes` are in bytes.
///
/// Four of the numbers measure different things, and each is at most the next. *Live* are the
/// blocks that the program holds. Span bytes and large bytes together are the memory divided into
/// blocks, including free blocks. *Committed* is the memory that the system lets the heap use.
/// *Reserved* are addresses alone. The difference between committed and live is memory that is
/// free, fragmented or cached.
///
/// *Resident*, the bytes in physical memory, is independent of these: memory that is allocated but
/// never touched, such as the unused end of a vector, counts as live and committed, and memory is
/// committed ahead of its use.
///
/// Counting allocates nothing. The [`Display`](fmt::Display) form is for people: a line for each of
/// the ten numbers of the heap, and with `{:#}` one for each size class. Programs read the fields,
/// or use [`fields`](Self::fields) to get them with their names.
///
/// ```
/// # use larder::Larder;
/// # #[global_allocator]
/// # static HEAP: Larder = Larder::new();
/// let stats = HEAP.stats();
/// println!("{stats}");
/// let json: Vec<String> = stats.fields().map(|(name, number)| format!("\"{name}\":{number}")).collect();
/// assert!(json[0].starts_with("\"live_bytes\":"));
/// ```
///
/// Free small blocks in the caches of other running threads count as live, since only the thread
/// itself can read its cache. These are at most 32 KiB of each size class, or what others freed of a
/// span. If only one thread is left, the numbers are exact. Blocks in the
/// quarantine of a hardened heap count in their class or as large, but not as live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Blocks that the program holds, with their granted lengths.
    pub live_bytes: u64,
    /// The part of `live_bytes` in blocks above 128 KiB or with a coarse alignment.
    pub large_bytes: u64,
    /// Pages cut into blocks of one class, used or not.
    pub span_bytes: u64,
    /// Memory made usable by the system. Parts that were never touched, or have been returned, take
    /// no physical memory.
    pub committed_bytes: u64,
    /// The part of `committed_bytes` that is now in physical memory, as reported by the system (on
    /// Linux; 0 elsewhere). Excludes the heap's tables and blocks of 1 GiB and more.
    pub resident_bytes: u64,
    /// Free memory that may have been written and has not been returned: the next purge returns it.
    /// Parts that were never touched take no physical memory. Excludes free lists.
    pub retained_bytes: u64,
    /// Free small blocks in the caches of the calling thread and of ended threads, and in shared
    /// lists; those in caches of other running threads count as live. Large blocks in the caches of
    /// all threads.
    pub kept_bytes: u64,
    /// Bytes returned to the system since the program began, by the heap itself and by `trim`.
    /// Counts only bytes that were resident.
    pub purged_bytes: u64,
    /// Addresses reserved for the heap.
    pub reserved_bytes: u64,
    /// Thread heaps, owned or waiting for a thread: as many as the largest number of threads that
    /// ever ran at the same time. Beyond two per processor, heaps share spans.
    pub heaps: u64,
    /// Counts of how the blocks of [`step`](crate::step)s were served, summed over all threads.
    pub steps: StepStats,
    /// The memory of each size class, smallest first.
    pub classes: [ClassStats; CLASSES],
}

/// The memory of one size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ClassStats {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks that the program holds, or that another thread caches.
    pub live_blocks: u64,
    /// Pages cut into blocks of this class.
    pub span_bytes: u64,
}

impl ClassStats {
    /// Adds a heap's usage of the class. Counts the free blocks in `idle_blocks`.
    fn add(&mut self, usage: ClassUsage, idle_blocks: &mut u64) {
        *idle_blocks += usage.transfer_blocks;
        self.live_blocks += usage.used_blocks;
        self.span_bytes += usage.span_bytes;
    }
}

impl Stats {
    /// Returns the numbers of the heap as a whole, with their names.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let explained = self.explained().into_iter();
        explained.map(|(name, number, _)| (name, number))
    }

    /// Returns the [`fields`](Self::fields), each with a description.
    fn explained(&self) -> [(&'static str, u64, &'static str); 10] {
        [
            (
                "live_bytes",
                self.live_bytes,
                "in use, or cached by other threads",
            ),
            (
                "large_bytes",
                self.large_bytes,
                "of them, blocks above 128 KiB",
            ),
            (
                "span_bytes",
                self.span_bytes,
                "cut into small blocks, used or not",
            ),
            ("committed_bytes", self.committed_bytes, "usable"),
            ("resident_bytes", self.resident_bytes, "of them, in memory"),
            ("reserved_bytes", self.reserved_bytes, "addresses"),
            (
                "retained_bytes",
                self.retained_bytes,
                "free, and not yet returned",
            ),
            ("kept_bytes", self.kept_bytes, "free, cached by threads"),
            ("purged_bytes", self.purged_bytes, "returned so far"),
            ("heaps", self.heaps, "of threads"),
        ]
    }

    /// Formats the numbers as OpenMetrics text, which Prometheus reads: one family for each of
    /// [`fields`](Self::fields), and two with a sample for each size class that has a span.
    /// Allocates nothing.
    ///
    /// ```
    /// # use larder::Larder;
    /// # #[global_allocator]
    /// # static HEAP: Larder = Larder::new();
    /// let answer = HEAP.stats().open_metrics().to_string(); // the body of a reply to `GET /metrics`
    /// assert!(answer.contains("\nlarder_live_bytes "));
    /// ```
    pub fn open_metrics(&self) -> impl fmt::Display + '_ {
        OpenMetrics(self)
    }

    /// Counts the memory of the heap. O(heaps x classes + chunks), and a system call for each 2 MiB
    /// committed. Locks each heap briefly.
    pub(crate) fn count<O: Os>(process: &'static Process<O>, local: &Local) -> Self {
        process.receive();
        let cached_bytes = process.cached_large_bytes();
        let mut stats = Self {
            live_bytes: 0,
            large_bytes: 0,
            span_bytes: 0,
            committed_bytes: 0,
            resident_bytes: 0,
            retained_bytes: process.idle_bytes(),
            kept_bytes: cached_bytes,
            purged_bytes: process.purger.purged_bytes(),
            reserved_bytes: 0,
            heaps: 0,
            steps: StepStats::default(),
            classes: [ClassStats::default(); CLASSES],
        };
        // Summed over all heaps: a block that one heap caches may belong to a span of another.
        let mut idle_blocks = [0; CLASSES];
        process.pool.for_each(|heap| {
            stats.heaps += 1;
            let mut add_idle = |cache: &mut ThreadCache| {
                for (class, idle) in SizeClass::all().zip(&mut idle_blocks) {
                    *idle += cache.len(class) as u64;
                }
            };
            // SAFETY: set and cache stay where they are; their blocks are only counted.
            unsafe { heap.with_idle_cache(true, |_, _, cache| add_idle(cache)) };
            let mut add_set = |set: &SpanSet| {
                let entries = stats.classes.iter_mut().zip(&mut idle_blocks);
                for (class, (entry, idle)) in SizeClass::all().zip(entries) {
                    entry.add(set.usage(class, span_bytes(class)), idle);
                }
            };
            // SAFETY: the set stays where it is; its blocks are only counted.
            unsafe { heap.with(|_, set| add_set(set)) };
        });
        let entries = stats.classes.iter_mut().zip(&idle_blocks);
        for (class, (entry, idle)) in SizeClass::all().zip(entries) {
            entry.block_bytes = class.block_bytes() as u64;
            let idle = idle + local.ready_blocks(class) as u64;
            entry.live_blocks = entry.live_blocks.saturating_sub(idle);
            stats.kept_bytes += idle * entry.block_bytes;
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
            .saturating_sub(process.meta_bytes() + cached_bytes);
        let mapped = process.mappings.bytes();
        stats.large_bytes += mapped;
        stats.committed_bytes += mapped;
        stats.reserved_bytes += mapped;
        stats.resident_bytes = process.resident_bytes();
        for heap in process.step_heaps.iter() {
            let (steps, unused_bytes) = heap.numbers();
            stats.steps += steps;
            stats.large_bytes = stats.large_bytes.saturating_sub(unused_bytes);
        }
        stats.live_bytes += stats.large_bytes;
        if process.tuning.is_hardened() {
            let waiting = process.hardened.with(|blocks| blocks.waiting_bytes());
            stats.live_bytes = stats.live_bytes.saturating_sub(waiting);
        }
        stats
    }
}

impl fmt::Display for Stats {
    /// Writes a line for each number of the heap; in the alternate form, also one for each size class
    /// that has a span.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, number, meaning) in self.explained() {
            writeln!(f, "  {name:<16}{number:>15}  {meaning}")?;
        }
        if !f.alternate() {
            return Ok(());
        }
        writeln!(
            f,
            "{:>12}{:>14}{:>16}{:>8}",
            "block bytes", "live blocks", "span bytes", "used"
        )?;
        for class in self.classes.iter().filter(|class| class.span_bytes > 0) {
            let live = class.live_blocks * class.block_bytes;
            writeln!(
                f,
                "{:>12}{:>14}{:>16}{:>7}%",
                class.block_bytes,
                class.live_blocks,
                class.span_bytes,
                live * 100 / class.span_bytes
            )?;
        }
        Ok(())
    }
}

struct OpenMetrics<'a>(&'a Stats);

impl fmt::Display for OpenMetrics<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, number) in self.0.fields() {
            // The only number that never falls.
            let (kind, suffix) = match name {
                "purged_bytes" => ("counter", "_total"),
                _ => ("gauge", ""),
            };
            family(f, name, kind)?;
            writeln!(f, "larder_{name}{suffix} {number}")?;
        }
        for name in ["class_live_blocks", "class_span_bytes"] {
            family(f, name, "gauge")?;
            for class in self.0.classes.iter().filter(|class| class.span_bytes > 0) {
                let number = match name {
                    "class_live_blocks" => class.live_blocks,
                    _ => class.span_bytes,
                };
                let bytes = class.block_bytes;
                writeln!(f, "larder_{name}{{block_bytes=\"{bytes}\"}} {number}")?;
            }
        }
        writeln!(f, "# EOF")
    }
}

/// Writes the header of a metric family. Declares the unit if the name ends in one.
fn family(f: &mut fmt::Formatter<'_>, name: &str, kind: &str) -> fmt::Result {
    writeln!(f, "# TYPE larder_{name} {kind}")?;
    if name.ends_with("_bytes") {
        writeln!(f, "# UNIT larder_{name} bytes")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Stats {
        let mut classes = [ClassStats::default(); CLASSES];
        classes[3] = ClassStats {
            block_bytes: 32,
            live_blocks: 1024,
            span_bytes: 65536,
        };
        Stats {
            live_bytes: 32768,
            large_bytes: 0,
            span_bytes: 65536,
            committed_bytes: 1 << 20,
            resident_bytes: 1 << 19,
            reserved_bytes: 64 << 30,
            retained_bytes: 5,
            kept_bytes: 8,
            purged_bytes: 6,
            heaps: 7,
            steps: StepStats::default(),
            classes,
        }
    }

    #[test]
    fn the_table_has_every_number_and_on_request_the_classes_with_spans() {
        let short = some().to_string();
        assert_eq!(short.lines().count(), 10);
        let table = format!("{:#}", some());
        assert!(table.starts_with(&short), "{table}");
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[3], ["committed_bytes", "1048576", "usable"]);
        assert_eq!(lines[4][..2], ["resident_bytes", "524288"]);
        assert_eq!(lines[9], ["heaps", "7", "of", "threads"]);
        assert_eq!(lines[11], ["32", "1024", "65536", "50%"]);
        assert_eq!(lines.len(), 12);
    }

    #[test]
    fn open_metrics_has_every_number_with_its_kind_and_ends() {
        let text = some().open_metrics().to_string();
        let purged = "# TYPE larder_purged_bytes counter\n# UNIT larder_purged_bytes bytes\n\
                      larder_purged_bytes_total 6\n";
        let classes = "# TYPE larder_class_live_blocks gauge\n\
                       larder_class_live_blocks{block_bytes=\"32\"} 1024\n\
                       # TYPE larder_class_span_bytes gauge\n# UNIT larder_class_span_bytes bytes\n\
                       larder_class_span_bytes{block_bytes=\"32\"} 65536\n# EOF\n";
        assert!(text.contains(purged), "{text}");
        assert!(text.contains("\n# TYPE larder_heaps gauge\nlarder_heaps 7\n"));
        assert!(text.ends_with(classes), "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(samples.count(), some().fields().count() + 2);
    }
}
