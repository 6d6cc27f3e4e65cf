//! [`ByStream`]: one value for each possible number of a stream.

use core::ops::Index;

use larder_core::StreamId;

/// One value for each stream number. Since every number has one, indexing neither fails nor checks.
pub(crate) struct ByStream<T>(Box<[T; StreamId::COUNT]>);

// A stream number is a byte, so every index is valid.
const _: () = assert!(StreamId::COUNT == u8::MAX as usize + 1);

impl<T> ByStream<T> {
    /// Iterates over all values, in the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (StreamId, &T)> {
        (0..=u8::MAX).map(StreamId::new).zip(self.0.iter())
    }
}

impl<T: Default> Default for ByStream<T> {
    fn default() -> Self {
        // Made on the heap, since values may be large.
        let values: Box<[T]> = (0..StreamId::COUNT).map(|_| T::default()).collect();
        match values.try_into() {
            Ok(values) => Self(values),
            Err(_) => unreachable!("as many values as numbers were made"),
        }
    }
}

impl<T> Index<StreamId> for ByStream<T> {
    type Output = T;

    #[inline]
    fn index(&self, stream_id: StreamId) -> &T {
        &self.0[usize::from(stream_id.number())]
    }
}
