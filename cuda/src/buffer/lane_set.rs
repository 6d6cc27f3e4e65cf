//! [`LaneSet`]: some of the lanes.

use larder_core::Lane;

const WORDS: usize = Lane::COUNT / 64;

/// Some lanes, a bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LaneSet([u64; WORDS]);

impl LaneSet {
    pub(super) const EMPTY: Self = Self([0; WORDS]);

    pub(super) fn one(lane: Lane) -> Self {
        let mut set = Self::EMPTY;
        set.insert(lane);
        set
    }

    pub(super) fn insert(&mut self, lane: Lane) {
        let number = usize::from(lane.number());
        if let Some(word) = self.0.get_mut(number / 64) {
            *word |= 1 << (number % 64);
        }
    }

    pub(super) fn has(&self, lane: Lane) -> bool {
        let number = usize::from(lane.number());
        let word = self.0.get(number / 64);
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    /// All of both.
    pub(super) fn with(&self, other: &Self) -> Self {
        let mut both = *self;
        for (word, more) in both.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
        both
    }

    /// All but one.
    pub(super) fn without(&self, lane: Lane) -> Self {
        let mut rest = *self;
        let number = usize::from(lane.number());
        if let Some(word) = rest.0.get_mut(number / 64) {
            *word &= !(1 << (number % 64));
        }
        rest
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Lane> {
        let words = self.0.into_iter().enumerate();
        words.flat_map(|(index, word)| {
            let bits = (0..64).filter(move |bit| word >> bit & 1 == 1);
            bits.filter_map(move |bit| u8::try_from(index * 64 + bit).ok().map(Lane::new))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_inserted() {
        let lanes = [0, 1, 63, 64, 127, 200, 255].map(Lane::new);
        let mut set = LaneSet::EMPTY;
        for lane in lanes {
            assert!(!set.has(lane));
            set.insert(lane);
            assert!(set.has(lane));
            assert!(set.meets(&LaneSet::one(lane)));
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), lanes);
        for lane in lanes {
            let rest = set.without(lane);
            assert!(!rest.has(lane) && !rest.meets(&LaneSet::one(lane)));
            assert_eq!(rest.with(&LaneSet::one(lane)), set);
        }
    }
}
