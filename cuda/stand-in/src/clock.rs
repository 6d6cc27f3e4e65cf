//! Vector clocks, which record the order of operations.
//!
//! Each stream counts its operations. An operation's clock gives, for every stream, the number up
//! to which that stream's operations are ordered before it: by the stream itself, by events, by the
//! legacy default stream, or because the host waited for them before it submitted the operation.

/// Numbers of operations by stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct VectorClock {
    /// Pairs of stream and number, sorted by stream.
    ticks: Vec<(usize, u64)>,
}

/// One operation: its stream, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    pub(crate) stream: usize,
    pub(crate) tick: u64,
}

impl VectorClock {
    /// Adds all operations that `other` includes.
    pub(crate) fn join(&mut self, other: &Self) {
        if self.ticks.is_empty() {
            self.ticks.clone_from(&other.ticks);
            return;
        }
        for (stream, tick) in &other.ticks {
            let known = self.entry(*stream);
            *known = (*known).max(*tick);
        }
    }

    /// Joins the clock of a stream's newest operation, unless that operation is known already:
    /// everything before it is then known too.
    pub(crate) fn join_stream(&mut self, stream: usize, other: &Self) {
        if other.of(stream) > self.of(stream) {
            self.join(other);
        }
    }

    /// Keeps only the operations that both clocks include.
    pub(crate) fn meet(&mut self, other: &Self) {
        for (stream, tick) in &mut self.ticks {
            *tick = (*tick).min(other.of(*stream));
        }
    }

    /// Removes the streams for which `which` is false.
    pub(crate) fn keep(&mut self, which: impl Fn(usize) -> bool) {
        self.ticks.retain(|(stream, _)| which(*stream));
    }

    /// Returns the number of streams in the clock.
    #[cfg(test)]
    pub(crate) fn streams(&self) -> usize {
        self.ticks.len()
    }

    fn of(&self, stream: usize) -> u64 {
        let found = self
            .ticks
            .binary_search_by_key(&stream, |(known, _)| *known);
        found.map_or(0, |index| self.ticks[index].1)
    }

    /// Returns the number of a stream, and adds it as 0 if it is missing.
    fn entry(&mut self, stream: usize) -> &mut u64 {
        let found = self
            .ticks
            .binary_search_by_key(&stream, |(known, _)| *known);
        let index = found.unwrap_or_else(|index| {
            self.ticks.insert(index, (stream, 0));
            index
        });
        &mut self.ticks[index].1
    }

    /// Counts a new operation of `stream`.
    pub(crate) fn tick(&mut self, stream: usize) -> Moment {
        let tick = self.entry(stream);
        *tick += 1;
        Moment {
            stream,
            tick: *tick,
        }
    }

    /// Returns whether the clock includes the operation.
    pub(crate) fn knows(&self, moment: Moment) -> bool {
        self.of(moment.stream) >= moment.tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_knows_its_own_stream_and_what_it_joined() {
        let (mut a, mut b) = (VectorClock::default(), VectorClock::default());
        let first = a.tick(1);
        let second = b.tick(2);
        assert!(a.knows(first) && !a.knows(second));
        b.join(&a);
        assert!(b.knows(first) && b.knows(second));
        let third = a.tick(1);
        assert!(!b.knows(third));
    }

    #[test]
    fn a_join_takes_the_larger_number_of_each_stream() {
        let clock = |ticks: &[(usize, u64)]| VectorClock {
            ticks: ticks.to_vec(),
        };
        let mut all = clock(&[(1, 5), (3, 1), (7, 2)]);
        all.join(&clock(&[(2, 1), (3, 4), (7, 1), (9, 1)]));
        assert_eq!(all, clock(&[(1, 5), (2, 1), (3, 4), (7, 2), (9, 1)]));
        all.meet(&clock(&[(1, 9), (3, 2)]));
        assert_eq!(all, clock(&[(1, 5), (2, 0), (3, 2), (7, 0), (9, 0)]));
    }
}
