//! Pseudo-random numbers that are the same in every run.

/// A seeded generator, with the distributions that benches need.
#[derive(Debug, Clone)]
pub struct Random(larder_model::Random);

impl Random {
    /// Creates a generator. Every seed is valid.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(larder_model::Random::new(seed))
    }

    /// Returns a uniform number below `bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.0.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Returns a uniform number from `min` to `max`, both included.
    pub fn within(&mut self, min: u32, max: u32) -> u32 {
        min + self.below(max - min + 1)
    }

    /// Returns an index below `length`, which is below 2^32.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u32) as usize
    }

    /// Returns a uniform number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a log-normal number with this median. `sigma` is the standard deviation of its
    /// natural logarithm.
    pub fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        // A sum of twelve uniform numbers is close enough to normal, with variance 1.
        let sum: f64 = (0..12).map(|_| self.unit()).sum();
        median * ((sum - 6.0) * sigma).exp()
    }
}
