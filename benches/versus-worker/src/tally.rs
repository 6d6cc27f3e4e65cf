//! Sums of the stamps that were written and read.

/// Sums of the stamps, in any order.
#[derive(Debug, Default)]
pub struct Tally {
    written: u64,
    read: u64,
}

impl Tally {
    #[inline]
    pub fn wrote(&mut self, stamp: u64) -> u64 {
        self.written = self.written.wrapping_add(stamp);
        stamp
    }

    #[inline]
    pub fn read(&mut self, stamp: u64) {
        self.read = self.read.wrapping_add(stamp);
    }

    pub fn join(&mut self, other: &Self) {
        self.written = self.written.wrapping_add(other.written);
        self.read = self.read.wrapping_add(other.read);
    }

    /// Returns the sum, once every block has been freed.
    ///
    /// # Panics
    /// If a block did not hold the stamp written to it, which means that the allocator is broken.
    pub fn answer(&self) -> u64 {
        assert_eq!(
            self.written, self.read,
            "blocks do not hold what was written to them"
        );
        self.read
    }
}

/// Returns a number that almost always differs for different texts.
pub fn digest(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |digest, byte| {
        (digest.rotate_left(5) ^ u64::from(byte)).wrapping_mul(0x9fb2_1c65_1e98_df25)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_the_sum_of_the_stamps() {
        let mut tally = Tally::default();
        tally.wrote(3);
        tally.wrote(4);
        let mut other = Tally::default();
        other.read(4);
        other.read(3);
        tally.join(&other);
        assert_eq!(tally.answer(), 7);
    }

    #[test]
    #[should_panic(expected = "do not hold")]
    fn a_lost_stamp_is_noticed() {
        let mut tally = Tally::default();
        tally.wrote(3);
        tally.read(2);
        let _ = tally.answer();
    }

    #[test]
    fn digests_tell_texts_apart() {
        let digests = ["", "a", "b", "ab", "ba"].map(digest);
        for (index, digest) in digests.iter().enumerate() {
            assert!(!digests[..index].contains(digest), "{index}");
        }
    }
}
