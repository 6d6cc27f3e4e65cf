//! Numbers that are the same in every run.

/// Steele, Lea and Flood's generator.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Any seed will do.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform below `bound`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Uniform from `min` to `max`.
    pub(crate) fn within(&mut self, min: u32, max: u32) -> u32 {
        min + self.below(max - min + 1)
    }

    /// A place in something of so many elements, fewer than 2^32.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        self.below(length as u32) as usize
    }

    /// Log-normal with this median, `sigma` in natural logarithms.
    pub(crate) fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        // A sum of twelve uniform numbers is normal enough, with variance 1.
        let sum: f64 = (0..12).map(|_| self.unit()).sum();
        median * ((sum - 6.0) * sigma).exp()
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
