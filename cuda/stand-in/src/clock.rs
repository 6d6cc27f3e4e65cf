//! Vector clocks: which operation is ordered before which.
//!
//! Each stream counts its operations. An operation's clock says, for every stream, up to which
//! number that stream's operations are ordered before it: by the stream itself, by events, by the
//! legacy default stream, or because the host waited for them before it submitted this one.

use std::collections::BTreeMap;

/// Numbers of operations by stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Clock {
    ticks: BTreeMap<usize, u64>,
}

/// One operation: its stream, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    pub(crate) stream: usize,
    pub(crate) tick: u64,
}

impl Clock {
    /// Everything that `other` knows to be before it is before this too.
    pub(crate) fn join(&mut self, other: &Self) {
        for (stream, tick) in &other.ticks {
            let known = self.ticks.entry(*stream).or_default();
            *known = (*known).max(*tick);
        }
    }

    /// A new operation of `stream`.
    pub(crate) fn tick(&mut self, stream: usize) -> Moment {
        let tick = self.ticks.entry(stream).or_default();
        *tick += 1;
        Moment {
            stream,
            tick: *tick,
        }
    }

    /// Whether the operation is ordered before.
    pub(crate) fn knows(&self, moment: Moment) -> bool {
        self.ticks
            .get(&moment.stream)
            .is_some_and(|known| *known >= moment.tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_knows_its_own_stream_and_what_it_joined() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        let first = a.tick(1);
        let second = b.tick(2);
        assert!(a.knows(first) && !a.knows(second));
        b.join(&a);
        assert!(b.knows(first) && b.knows(second));
        let third = a.tick(1);
        assert!(!b.knows(third));
    }
}
