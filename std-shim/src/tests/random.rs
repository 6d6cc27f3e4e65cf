//! Random numbers of the unit tests.

/// A small generator (xorshift), so that a seed determines everything.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number below `below`.
    pub(crate) fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }
}
