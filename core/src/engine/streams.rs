//! What each stream has completed, how many free chunks still wait for it, and how a stored point is read.
//!
//! A free chunk stores the low 32 bits of its event. Invariant EVENT1: a stored event lies within 2^31 of
//! the last one that its stream completed, on either side, so the difference of the low halves, read
//! as a signed number, is exact. Ahead it holds because a free that lies too far ahead is refused.
//! Behind it holds because completed points are cleared as soon as all streams together have moved on
//! by 2^30 since the last sweep ([`must_sweep`](Streams::must_sweep)), and one moves by at most 2^30
//! at once.

use crate::stream::{EventNumber, StreamId, StreamPoint};

pub(crate) struct Streams {
    completed: [u64; StreamId::COUNT],
    /// Free chunks that carry a point of the stream.
    points: [u32; StreamId::COUNT],
    /// Free chunks that carry a point of any stream.
    with_point: u32,
    /// The number of the stream that was named last and one, 0 before the first; and whether another one
    /// ever was.
    named: u16,
    many: bool,
    /// How far all streams together have moved on since the last sweep.
    advanced: u64,
    /// The record that was looked at last by a sweep of some.
    swept: u32,
    /// How often a point was looked at.
    #[cfg(test)]
    pub(crate) looks: core::cell::Cell<usize>,
}

impl Streams {
    pub(crate) const fn new() -> Self {
        Self {
            completed: [0; StreamId::COUNT],
            points: [0; StreamId::COUNT],
            with_point: 0,
            named: 0,
            many: false,
            advanced: 0,
            swept: 0,
            #[cfg(test)]
            looks: core::cell::Cell::new(0),
        }
    }

    pub(crate) fn completed(&self, stream: StreamId) -> u64 {
        self.completed[usize::from(stream.number())]
    }

    /// How far the event of a stored point is ahead of what its stream has completed; 0 or less means it is completed.
    pub(crate) fn ahead(&self, stream: StreamId, event_low: u32) -> i64 {
        let completed = self.completed(stream) as u32;
        i64::from(event_low.wrapping_sub(completed).cast_signed())
    }

    /// The stored point, if its event is not completed yet.
    pub(crate) fn pending(&self, stored: Option<(StreamId, u32)>) -> Option<StreamPoint> {
        #[cfg(test)]
        self.looks.update(|looks| looks + 1);
        let (stream, low) = stored?;
        let ahead = u64::try_from(self.ahead(stream, low)).ok()?;
        (ahead > 0).then(|| StreamPoint {
            stream,
            event: EventNumber::new(self.completed(stream) + ahead),
        })
    }

    /// A free chunk has lost its point `before` and carries `after`.
    pub(crate) fn count(
        &mut self,
        before: Option<(StreamId, u32)>,
        after: Option<(StreamId, u32)>,
    ) {
        if let Some((stream, _)) = before {
            let points = &mut self.points[usize::from(stream.number())];
            *points -= 1;
            self.with_point -= 1;
        }
        if let Some((stream, _)) = after {
            let points = &mut self.points[usize::from(stream.number())];
            *points += 1;
            self.with_point += 1;
        }
    }

    /// So many free chunks more carry a point of the stream, or fewer.
    #[inline]
    pub(crate) fn count_more(&mut self, stream: StreamId, more: i32) {
        let points = &mut self.points[usize::from(stream.number())];
        *points = points.wrapping_add_signed(more);
        self.with_point = self.with_point.wrapping_add_signed(more);
    }

    /// Free chunks that carry a point.
    #[inline]
    pub(crate) const fn with_point(&self) -> u32 {
        self.with_point
    }

    /// Free chunks that carry a point of this stream.
    #[inline]
    pub(crate) fn points_of(&self, stream: StreamId) -> u32 {
        self.points[usize::from(stream.number())]
    }

    /// A request or a point names this stream.
    #[inline]
    pub(crate) fn meet(&mut self, stream: StreamId) {
        let named = u16::from(stream.number()) + 1;
        if self.named != named {
            self.many |= self.named != 0;
            self.named = named;
        }
    }

    /// Whether more than one stream was ever named.
    #[inline]
    pub(crate) const fn many(&self) -> bool {
        self.many
    }

    /// Whether the streams have moved on so far since the last sweep that points of completed events
    /// must be cleared now for EVENT1 to hold.
    pub(crate) const fn must_sweep(&self) -> bool {
        self.advanced >= EventNumber::WINDOW
    }

    pub(crate) fn advance(&mut self, stream: StreamId, event: EventNumber) {
        let completed = &mut self.completed[usize::from(stream.number())];
        let by = event.number().saturating_sub(*completed);
        *completed += by;
        self.advanced = self.advanced.saturating_add(by);
    }

    /// Whether any stream moved on since the last sweep.
    pub(crate) const fn moved(&self) -> bool {
        self.advanced > 0
    }

    /// The next record to look at, of so many.
    pub(crate) const fn next_to_sweep(&mut self, records: u32) -> u32 {
        self.swept = if self.swept < records {
            self.swept + 1
        } else {
            1
        };
        self.swept
    }

    /// Every point of a completed event has been cleared.
    pub(crate) const fn set_swept(&mut self) {
        self.advanced = 0;
    }
}
