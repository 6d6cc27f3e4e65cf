//! [`StreamSet`]: a set of streams.

use larder_core::StreamId;

const WORDS: usize = StreamId::COUNT / 64;

/// A set of streams, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct StreamSet([u64; WORDS]);

impl StreamSet {
    pub(super) const EMPTY: Self = Self([0; WORDS]);

    pub(super) fn one(stream_id: StreamId) -> Self {
        let mut set = Self::EMPTY;
        set.insert(stream_id);
        set
    }

    pub(super) fn insert(&mut self, stream_id: StreamId) {
        let number = usize::from(stream_id.number());
        if let Some(word) = self.0.get_mut(number / 64) {
            *word |= 1 << (number % 64);
        }
    }

    pub(super) fn has(&self, stream_id: StreamId) -> bool {
        let number = usize::from(stream_id.number());
        let word = self.0.get(number / 64);
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    /// Returns the union of both sets.
    pub(super) fn with(&self, other: &Self) -> Self {
        let mut both = *self;
        for (word, more) in both.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
        both
    }

    /// Returns this set without one stream.
    pub(super) fn without(&self, stream_id: StreamId) -> Self {
        let mut rest = *self;
        let number = usize::from(stream_id.number());
        if let Some(word) = rest.0.get_mut(number / 64) {
            *word &= !(1 << (number % 64));
        }
        rest
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = StreamId> {
        let words = self.0.into_iter().enumerate();
        words.flat_map(|(index, word)| {
            let bits = (0..64).filter(move |bit| word >> bit & 1 == 1);
            bits.filter_map(move |bit| u8::try_from(index * 64 + bit).ok().map(StreamId::new))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_inserted() {
        let stream_ids = [0, 1, 63, 64, 127, 200, 255].map(StreamId::new);
        let mut set = StreamSet::EMPTY;
        for stream_id in stream_ids {
            assert!(!set.has(stream_id));
            set.insert(stream_id);
            assert!(set.has(stream_id));
            assert!(set.meets(&StreamSet::one(stream_id)));
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), stream_ids);
        for stream_id in stream_ids {
            let rest = set.without(stream_id);
            assert!(!rest.has(stream_id) && !rest.meets(&StreamSet::one(stream_id)));
            assert_eq!(rest.with(&StreamSet::one(stream_id)), set);
        }
    }
}
