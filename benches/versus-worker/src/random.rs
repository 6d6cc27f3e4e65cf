//! A small generator of pseudo-random numbers, so that every run has the same inputs.

/// A counter whose steps are scrambled.
#[derive(Debug, Clone)]
pub struct Random(u64);

/// An odd number with well-spread bits, so that the counter visits every state.
const STEP: u64 = 0xa076_1d64_78bd_642f;
const SCRAMBLE: u64 = 0xe703_7ed1_a0b4_28db;

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(SCRAMBLE))
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let product = u128::from(self.0) * u128::from(self.0 ^ SCRAMBLE);
        (product >> 64) as u64 ^ product as u64
    }

    /// Returns a nearly uniformly distributed number below `bound`.
    #[inline]
    pub fn below(&mut self, bound: usize) -> usize {
        let product = u128::from(self.next()) * bound as u128;
        (product >> 64) as usize
    }

    /// Returns a number in `min..=max`.
    #[inline]
    pub fn within(&mut self, min: usize, max: usize) -> usize {
        min + self.below(max - min + 1)
    }

    /// Returns a number in `0.0..1.0`.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a nearly normally distributed number, with mean 0 and deviation 1: a sum of twelve
    /// fractions.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.fraction()).sum::<f64>() - 6.0
    }

    /// Returns a number in `min..=max`, with each doubling equally likely.
    pub fn log_within(&mut self, min: f64, max: f64) -> usize {
        (min * (max / min).powf(self.fraction())) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_another_gives_others() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn numbers_stay_in_their_range_and_fill_it() {
        let mut random = Random::new(1);
        let mut seen = [0; 8];
        for _ in 0..8000 {
            seen[random.within(3, 10) - 3] += 1;
            let size = random.log_within(64.0, 1024.0);
            assert!((64..=1024).contains(&size), "{size}");
        }
        assert!(
            seen.iter().all(|&count| (800..1200).contains(&count)),
            "{seen:?}"
        );
        let mean = (0..8000).map(|_| random.normal()).sum::<f64>() / 8000.0;
        assert!(mean.abs() < 0.1, "{mean}");
    }
}
