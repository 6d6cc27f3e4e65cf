//! [`IndexSet`]: a set of small numbers whose least and greatest are found in constant time.

/// Numbers below a capacity, as a tree of words: a bit of a level says whether the word of that number in the level
/// below is not 0. Each operation visits one word of each level: at most 6 for 2^32 numbers.
pub(super) struct IndexSet {
    /// The leaves first.
    levels: Vec<Vec<u64>>,
}

const BITS: usize = u64::BITS as usize;

impl IndexSet {
    /// Creates a set without numbers.
    pub(super) fn new(capacity: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = capacity.max(1);
        while words > 1 || levels.is_empty() {
            words = words.div_ceil(BITS);
            levels.push(vec![0; words]);
        }
        Self { levels }
    }

    /// Adds a number below the capacity.
    pub(super) fn insert(&mut self, number: usize) {
        let mut index = number;
        for level in &mut self.levels {
            let Some(word) = level.get_mut(index / BITS) else {
                return;
            };
            let was_empty = *word == 0;
            *word |= 1 << (index % BITS);
            if !was_empty {
                return;
            }
            index /= BITS;
        }
    }

    /// Removes a number.
    pub(super) fn remove(&mut self, number: usize) {
        let mut index = number;
        for level in &mut self.levels {
            let Some(word) = level.get_mut(index / BITS) else {
                return;
            };
            *word &= !(1 << (index % BITS));
            if *word != 0 {
                return;
            }
            index /= BITS;
        }
    }

    /// Returns whether a number is in the set.
    pub(super) fn contains(&self, number: usize) -> bool {
        let word = self
            .levels
            .first()
            .and_then(|leaves| leaves.get(number / BITS));
        word.is_some_and(|word| word >> (number % BITS) & 1 == 1)
    }

    /// Returns the least number.
    pub(super) fn first(&self) -> Option<usize> {
        self.find(|word| word.trailing_zeros())
    }

    /// Returns the greatest number.
    pub(super) fn last(&self) -> Option<usize> {
        self.find(|word| BITS as u32 - 1 - word.leading_zeros())
    }

    /// Goes down from the root through the bit that `choose` picks of each word, which is not 0.
    fn find(&self, choose: impl Fn(u64) -> u32) -> Option<usize> {
        let mut index = 0;
        for level in self.levels.iter().rev() {
            match level.get(index) {
                None | Some(0) => return None,
                Some(word) => index = index * BITS + choose(*word) as usize,
            }
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_agrees_with_a_sorted_set() {
        for capacity in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let (mut set, mut model) = (IndexSet::new(capacity), BTreeSet::new());
            let mut state = capacity as u64;
            for round in 0..4000 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let number = (state >> 33) as usize % capacity;
                // It fills, and then empties.
                if (state >> 20) % 4000 > round {
                    set.insert(number);
                    model.insert(number);
                } else {
                    set.remove(number);
                    model.remove(&number);
                }
                assert_eq!(set.contains(number), model.contains(&number));
                assert_eq!(set.first(), model.first().copied());
                assert_eq!(set.last(), model.last().copied());
            }
        }
    }
}
