//! The last completed event of each stream, the number of free chunks with points of each stream, and the meaning of a
//! stored point.
//!
//! A free chunk stores the low 32 bits of its event. Invariant EVENT1: a stored event lies within 2^31 of the last
//! completed event of its stream, before or after it. So the difference of the low halves, as a signed number, is
//! exact. EVENT1 holds for later events because a free with an event too far ahead is refused. It holds for earlier
//! events because one call advances a stream by at most 2^30, and because completed points are cleared as soon as all
//! streams together have advanced by 2^30 since the last sweep ([`must_sweep`](Streams::must_sweep)).

use crate::stream::{EventNumber, StreamId, StreamPoint};

pub(super) struct Streams {
    completed: [u64; StreamId::COUNT],
    /// Number of free chunks that carry a point of the stream.
    points: [u32; StreamId::COUNT],
    /// Number of free chunks that carry a point of any stream.
    with_point: u32,
    /// One plus the number of the stream that was named last, or 0 if none was; and whether more than one stream was
    /// ever named.
    named: u16,
    many: bool,
    /// Number of events by which all streams together have advanced since the last sweep.
    advanced: u64,
    /// The record that a partial sweep examined last.
    swept: u32,
    /// Number of times that a point, or a chunk next to one, was examined.
    #[cfg(test)]
    pub(super) looks: core::cell::Cell<usize>,
}

impl Streams {
    pub(super) const fn new() -> Self {
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

    /// Counts a look, in tests.
    #[inline]
    pub(super) fn look(&self) {
        #[cfg(test)]
        self.looks.update(|looks| looks + 1);
    }

    pub(super) fn completed(&self, stream: StreamId) -> u64 {
        self.completed[usize::from(stream.number())]
    }

    /// Returns the distance from the stream's last completed event to the event of a stored point. If it is 0 or less,
    /// the event is completed.
    pub(super) fn ahead(&self, stream: StreamId, event_low: u32) -> i64 {
        let completed = self.completed(stream) as u32;
        i64::from(event_low.wrapping_sub(completed).cast_signed())
    }

    /// Returns the stored point, if its event is not yet completed.
    pub(super) fn pending(&self, stored: Option<(StreamId, u32)>) -> Option<StreamPoint> {
        self.look();
        let (stream, low) = stored?;
        let ahead = u64::try_from(self.ahead(stream, low)).ok()?;
        (ahead > 0).then(|| StreamPoint {
            stream,
            event: EventNumber::new(self.completed(stream) + ahead),
        })
    }

    /// Updates the counts when the point of a free chunk changes from `before` to `after`.
    pub(super) fn count(
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

    /// Adjusts the number of free chunks with a point of `stream` by `more`.
    #[inline]
    pub(super) fn count_more(&mut self, stream: StreamId, more: i32) {
        let points = &mut self.points[usize::from(stream.number())];
        *points = points.wrapping_add_signed(more);
        self.with_point = self.with_point.wrapping_add_signed(more);
    }

    /// Returns the number of free chunks with a point.
    #[inline]
    pub(super) const fn with_point(&self) -> u32 {
        self.with_point
    }

    /// Returns the number of free chunks with a point of `stream`.
    #[inline]
    pub(super) fn points_of(&self, stream: StreamId) -> u32 {
        self.points[usize::from(stream.number())]
    }

    /// Notes that a request or a point names `stream`.
    #[inline]
    pub(super) fn note(&mut self, stream: StreamId) {
        let named = u16::from(stream.number()) + 1;
        if self.named != named {
            self.many |= self.named != 0;
            self.named = named;
        }
    }

    /// Returns whether more than one stream was ever named.
    #[inline]
    pub(super) const fn many(&self) -> bool {
        self.many
    }

    /// Returns whether the streams have advanced so far since the last sweep that the points of completed events must
    /// be cleared to maintain EVENT1.
    pub(super) const fn must_sweep(&self) -> bool {
        self.advanced >= EventNumber::WINDOW
    }

    pub(super) fn advance(&mut self, stream: StreamId, event: EventNumber) {
        let completed = &mut self.completed[usize::from(stream.number())];
        let by = event.number().saturating_sub(*completed);
        *completed += by;
        self.advanced = self.advanced.saturating_add(by);
    }

    /// Returns whether any stream has advanced since the last sweep.
    pub(super) const fn moved(&self) -> bool {
        self.advanced > 0
    }

    /// Returns the next record to examine, of `records` records.
    pub(super) const fn next_to_sweep(&mut self, records: u32) -> u32 {
        self.swept = if self.swept < records {
            self.swept + 1
        } else {
            1
        };
        self.swept
    }

    /// Notes that the points of all completed events are cleared.
    pub(super) const fn set_swept(&mut self) {
        self.advanced = 0;
    }
}
