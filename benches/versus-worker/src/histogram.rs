//! A histogram of times: counts in a fixed table, without allocation.
//!
//! The buckets are log-linear: below 64 ns each has one nanosecond, and from there on each doubling has 32 buckets. A
//! time is reported as the middle of its bucket, which is wrong by at most a 64th of it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The binary logarithm of the number of buckets in a doubling.
const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;
/// Longer times, of about 18 minutes, count as this time.
const MAX_NANOS: u64 = (1 << 40) - 1;
const BUCKETS: usize = bucket(MAX_NANOS) + 1;

/// The numbers of times in each bucket, which any thread may add to.
pub struct Histogram([AtomicU64; BUCKETS]);

impl Histogram {
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }

    pub fn add(&self, nanos: u64) {
        // Relaxed: the count guards no other data.
        self.0[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
    }
}

/// The sum of several histograms.
pub struct Merged([u64; BUCKETS]);

impl Merged {
    pub fn of(histograms: &[Histogram]) -> Self {
        let mut counts = [0; BUCKETS];
        for histogram in histograms {
            for (count, more) in counts.iter_mut().zip(&histogram.0) {
                *count += more.load(Ordering::Relaxed);
            }
        }
        Self(counts)
    }

    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the shortest time in nanoseconds that `share` of 10,000 times do not exceed, within a 64th; 0 if there
    /// are no times.
    pub fn percentile(&self, share: u64) -> u64 {
        let rank = (u128::from(self.count()) * u128::from(share)).div_ceil(10_000);
        let mut seen = 0;
        let reached = self.0.iter().position(|count| {
            seen += u128::from(*count);
            seen >= rank.max(1)
        });
        reached.map_or(0, middle)
    }
}

const fn bucket(nanos: u64) -> usize {
    let nanos = if nanos < MAX_NANOS { nanos } else { MAX_NANOS };
    let shift = (nanos | 1).ilog2().saturating_sub(STEP_BITS);
    shift as usize * STEPS + (nanos >> shift) as usize
}

/// Returns the middle of a bucket in nanoseconds.
const fn middle(bucket: usize) -> u64 {
    let shift = (bucket / STEPS).saturating_sub(1);
    let least = ((bucket - shift * STEPS) as u64) << shift;
    least + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_bucket_is_never_far_from_its_times() {
        let mut random = Random::new(5);
        let mut last = 0;
        for time in 0..100_000 {
            let bucket = bucket(time);
            assert!(bucket == last || bucket == last + 1, "{time}");
            last = bucket;
        }
        for _ in 0..100_000 {
            let nanos = random.next() >> random.within(24, 63);
            let error = middle(bucket(nanos)).abs_diff(nanos);
            assert!(error <= nanos / 64, "{nanos}: {error}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let parts = [const { Histogram::new() }; 3];
            let mut times = Vec::new();
            for _ in 0..random.within(1, 30_000) {
                let nanos = random.log_within(1.0, 1e9) as u64;
                parts[random.below(3)].add(nanos);
                times.push(nanos);
            }
            times.sort_unstable();
            let merged = Merged::of(&parts);
            assert_eq!(merged.count(), times.len() as u64);
            for share in [1, 5_000, 9_990, 9_999, 10_000] {
                let rank = (times.len() * share as usize).div_ceil(10_000);
                let expected = times[rank - 1];
                let error = merged.percentile(share).abs_diff(expected);
                assert!(error <= expected / 64, "{share} of {}", times.len());
            }
        }
    }

    #[test]
    fn no_times_have_no_percentile() {
        let merged = Merged::of(&[const { Histogram::new() }]);
        assert_eq!((merged.count(), merged.percentile(9_999)), (0, 0));
    }
}
