//! A dump for people: totals, bins, and a map of each region. Formatting does not allocate.

use core::fmt;

use super::report::ChunkState;
use crate::best_fit::BestFit;
use crate::units::AddrRange;

/// Number of cells in a region's map.
const MAP_CELLS: u64 = 80;

/// The value that [`BestFit::dump`] returns.
pub(crate) struct Dump<'a, P>(pub(crate) &'a P);

impl<P: BestFit> fmt::Display for Dump<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pool = self.0;
        let (report, stats) = (pool.report(), pool.stats());
        writeln!(
            f,
            "reserved {} of {} bytes in {} regions; live {} ({} requested) in {} blocks; \
             free {} in {} chunks, largest {}, pending {}",
            report.reserved_bytes,
            stats.limit_bytes,
            report.regions,
            report.live_bytes,
            report.requested_bytes,
            report.used_chunks,
            report.free_bytes,
            report.free_chunks,
            report.largest_free_bytes,
            report.pending_bytes
        )?;
        writeln!(
            f,
            "fragmentation: internal {:.4}, external {:.4}; peak live {}, peak reserved {}, \
             {} allocations, {} records left",
            report.internal_fragmentation(),
            report.external_fragmentation(),
            stats.peak_live_bytes,
            stats.peak_reserved_bytes,
            stats.allocations,
            report.vacant_records
        )?;
        self.bins(f)?;
        let mut result = Ok(());
        pool.for_each_region(|region| {
            if result.is_ok() {
                result = self.region(f, region.range);
            }
        });
        result
    }
}

impl<P: BestFit> Dump<'_, P> {
    fn bins(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (log2, bin) in self.0.bin_summaries().iter().enumerate() {
            if bin.used_chunks + bin.free_chunks > 0 {
                writeln!(
                    f,
                    "  from {:>12} bytes: {:>8} blocks of {} bytes, {:>8} free of {} bytes",
                    self.0.granule().bytes() << log2,
                    bin.used_chunks,
                    bin.used_bytes,
                    bin.free_chunks,
                    bin.free_bytes
                )?;
            }
        }
        Ok(())
    }

    fn region(&self, f: &mut fmt::Formatter<'_>, range: AddrRange) -> fmt::Result {
        write!(f, "  {} +{:>12} [", range.start(), range.bytes())?;
        let cells = MAP_CELLS.min(range.bytes() / self.0.granule().bytes());
        for cell in 0..cells {
            let edge =
                |i: u64| (u128::from(range.bytes()) * u128::from(i) / u128::from(cells)) as u64;
            let (from, to) = (
                range.start().get() + edge(cell),
                range.start().get() + edge(cell + 1),
            );
            write!(f, "{}", self.cell(from, to))?;
        }
        writeln!(f, "]")
    }

    /// Returns the character for the chunks in `[from, to)`.
    fn cell(&self, from: u64, to: u64) -> char {
        let mut best = 4;
        self.0.for_each_chunk(|chunk| {
            let (start, end) = (chunk.range.start().get(), chunk.range.end().get());
            if start < to && from < end {
                let rank = match chunk.state {
                    ChunkState::Used {
                        requested_bytes, ..
                    } if from < start + requested_bytes => 0,
                    ChunkState::Used { .. } => 1,
                    ChunkState::Free { pending: true } | ChunkState::Reserved { pending: true } => {
                        2
                    }
                    ChunkState::Free { pending: false }
                    | ChunkState::Reserved { pending: false } => 3,
                    ChunkState::Leaving => 4,
                    ChunkState::Unmapped => 5,
                    ChunkState::Planned => 6,
                };
                best = best.min(rank);
            }
        });
        ['#', '+', '~', '.', '<'][best]
    }
}
