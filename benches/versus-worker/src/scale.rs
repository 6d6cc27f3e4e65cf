//! The share of its full work that a workload does.

/// A factor on the counts of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale(f64);

/// Maximum scale. Beyond it counts would not be exact.
const MAX_SCALE: f64 = 1e6;

impl Scale {
    /// The scale at which each workload takes a fraction of a second.
    pub const FULL: Self = Self(1.0);
    /// The smallest scale that still takes every path, for tests.
    pub const CHECK: Self = Self(0.01);

    pub fn parse(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(factor) if factor > 0.0 && factor <= MAX_SCALE => Ok(Self(factor)),
            _ => Err(format!(
                "`{text}` is no scale; give a number above 0 and up to {MAX_SCALE}"
            )),
        }
    }

    /// Returns the scale multiplied by `factor`.
    #[cfg(test)]
    pub fn times(self, factor: u32) -> Self {
        Self(self.0 * f64::from(factor))
    }

    /// Returns this share of `full`, at least 1.
    pub fn of(self, full: u32) -> usize {
        let share = f64::from(full) * self.0;
        (share as usize).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_multiplies_and_never_gives_zero() {
        assert_eq!(Scale::FULL.of(1000), 1000);
        assert_eq!(Scale::CHECK.of(1000), 10);
        assert_eq!(Scale::CHECK.of(1), 1);
        assert_eq!(Scale::parse("2.5").unwrap().of(10), 25);
    }
}
