//! The chunk record, which describes one piece of a region. Every front end uses the same layout.
//!
//! ```text
//!  byte 0      4      8      12     16                    20       24       28      32
//!       start  size   prev   next   state|flags|stream|rgn  detail0  detail1  detail2
//!                                                  used:  slack    id low   id high
//!                                                  free:  next     previous event (low 32 bits)
//! ```
//!
//! `start` and `size` count granules. `prev` and `next` are the neighbours in address order in the same region. In the
//! details of a free chunk, next and previous are its neighbours in the list of its class. A record has 32 bytes and is
//! aligned to 32 bytes, so it lies in one cache line; half of all records of 40 bytes would lie in two. A free chunk
//! with unmapped pages only carries a flag; the tables of pages (`pages/table.rs`) tell which pages are mapped.

use super::region::RegionId;
use crate::stream::StreamId;
use crate::table::list::Linked;
use crate::table::slab::{Record, Sink};

/// The index of a record in its [`Slab`](crate::table::slab::Slab). 0 names no chunk, because the record there is the
/// sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Link(pub(crate) u32);

impl Link {
    pub(crate) const NIL: Self = Self(0);

    #[inline]
    pub(crate) const fn is_nil(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) const fn is_some(self) -> bool {
        self.0 != 0
    }
}

impl From<u32> for Link {
    #[inline]
    fn from(number: u32) -> Self {
        Self(number)
    }
}

impl From<Link> for u32 {
    #[inline]
    fn from(link: Link) -> Self {
        link.0
    }
}

/// The state of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum State {
    /// The record is vacant.
    Vacant = 0,
    /// The chunk belongs to a caller.
    Used = 1,
    /// The chunk is free, and the search may find it.
    Free = 2,
    /// The chunk is free, but is being released to the sub-allocator, so no request may use it.
    Leaving = 3,
    /// The chunk is free, and a plan under way puts memory behind it ([`pages`](crate::pages)).
    Filling = 4,
    /// The addresses are reserved: no search finds the chunk, and only the owner of the reservation places blocks
    /// there. The memory in it is idle.
    Reserved = 5,
}

const STATE_MASK: u32 = 0b111;
const HAS_POINT: u32 = 1 << 3;
const HOLLOW: u32 = 1 << 4;
const FIRST: u32 = 1 << 5;
const STREAM_SHIFT: u32 = 8;
const REGION_SHIFT: u32 = 16;

/// One record of the table lent to an allocator. A record of zero bytes is valid and empty, so fresh pages from an
/// operating system can serve as a table.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Chunk {
    pub(crate) start: u32,
    pub(crate) size: u32,
    pub(crate) prev: Link,
    pub(crate) next: Link,
    kind: u32,
    detail: [u32; 3],
}

impl Chunk {
    /// An empty record, for filling a table.
    pub const VACANT: Self = Self {
        start: 0,
        size: 0,
        prev: Link::NIL,
        next: Link::NIL,
        kind: 0,
        detail: [0; 3],
    };

    /// Creates a chunk of `region` without neighbours. The caller then sets its state.
    #[inline]
    pub(super) const fn new(start: u32, size: u32, region: RegionId) -> Self {
        Self {
            start,
            size,
            prev: Link::NIL,
            next: Link::NIL,
            kind: (region.get() as u32) << REGION_SHIFT,
            detail: [0; 3],
        }
    }

    #[inline]
    pub(crate) const fn state(&self) -> State {
        match self.kind & STATE_MASK {
            1 => State::Used,
            2 => State::Free,
            3 => State::Leaving,
            4 => State::Filling,
            5 => State::Reserved,
            _ => State::Vacant,
        }
    }

    #[inline]
    pub(super) const fn is_used(&self) -> bool {
        self.kind & STATE_MASK == State::Used as u32
    }

    #[inline]
    pub(crate) const fn is_free(&self) -> bool {
        self.kind & STATE_MASK == State::Free as u32
    }

    #[inline]
    pub(crate) const fn is_reserved(&self) -> bool {
        self.kind & STATE_MASK == State::Reserved as u32
    }

    /// Returns whether a page of a free chunk may have no memory behind it ([`pages`](crate::pages)).
    #[inline]
    pub(crate) const fn is_hollow(&self) -> bool {
        self.kind & HOLLOW != 0
    }

    pub(super) const fn set_hollow(&mut self, hollow: bool) {
        self.kind = (self.kind & !HOLLOW) | if hollow { HOLLOW } else { 0 };
    }

    /// Marks the chunk as hollow if `other` is hollow.
    #[inline]
    pub(super) const fn join_hollow(&mut self, other: &Self) {
        self.kind |= other.kind & HOLLOW;
    }

    /// Returns whether the chunk is the first one of a reservation, and so joins no chunk before it.
    pub(super) const fn is_first(&self) -> bool {
        self.kind & FIRST != 0
    }

    /// Marks the chunk as the first one of a reservation, until it is marked as free or used.
    pub(super) const fn set_first(&mut self) {
        self.kind |= FIRST;
    }

    /// Returns whether the chunk is reserved, and may join a reserved chunk before it.
    pub(super) const fn continues_reservation(&self) -> bool {
        self.kind & (STATE_MASK | FIRST) == State::Reserved as u32
    }

    /// Changes only the state, and keeps the point.
    pub(super) const fn set_state(&mut self, state: State) {
        self.kind = (self.kind & !STATE_MASK) | state as u32;
    }

    #[inline]
    pub(crate) const fn region(&self) -> RegionId {
        RegionId::from_raw((self.kind >> REGION_SHIFT) as u16)
    }

    /// Returns the first granule after the chunk.
    #[inline]
    pub(crate) const fn end(&self) -> u32 {
        self.start + self.size
    }

    /// Marks the chunk as used.
    #[inline]
    pub(super) const fn set_used(&mut self, slack_bytes: u32, id: u64) {
        self.kind = (self.kind & !(0xffff)) | State::Used as u32;
        self.detail = [slack_bytes, id as u32, (id >> 32) as u32];
    }

    /// Marks the chunk as free, without a point and in no list.
    #[inline]
    pub(super) const fn set_free(&mut self) {
        self.kind = (self.kind & !(0xffff)) | State::Free as u32;
        self.detail = [0; 3];
    }

    /// Marks a free chunk without a point as leaving; `id` is the number of the release.
    pub(super) const fn set_leaving(&mut self, id: u64) {
        self.kind = (self.kind & !(0xffff)) | State::Leaving as u32;
        self.detail = [0, id as u32, (id >> 32) as u32];
    }

    /// Returns the granted minus the requested bytes of a used chunk.
    pub(super) const fn slack_bytes(&self) -> u32 {
        self.detail[0]
    }

    /// Sets the granted minus the requested bytes, after the size of the block has changed.
    pub(super) const fn set_slack_bytes(&mut self, slack_bytes: u32) {
        self.detail[0] = slack_bytes;
    }

    /// Returns the number of a used chunk's allocation, or of a leaving chunk's release.
    pub(super) const fn id(&self) -> u64 {
        (self.detail[1] as u64) | ((self.detail[2] as u64) << 32)
    }

    #[inline]
    pub(super) const fn next_free(&self) -> Link {
        Link(self.detail[0])
    }

    #[inline]
    pub(super) const fn previous_free(&self) -> Link {
        Link(self.detail[1])
    }

    /// Returns the stream and the low half of the event of a free or reserved chunk that queued work may still use.
    #[inline]
    pub(crate) const fn point(&self) -> Option<(StreamId, u32)> {
        if self.kind & HAS_POINT == 0 {
            return None;
        }
        Some((
            StreamId::new((self.kind >> STREAM_SHIFT) as u8),
            self.detail[2],
        ))
    }

    /// Sets or clears the point of a free chunk.
    pub(super) const fn set_point(&mut self, point: Option<(StreamId, u32)>) {
        self.kind &= !(HAS_POINT | 0xff << STREAM_SHIFT);
        self.detail[2] = 0;
        if let Some((stream, event)) = point {
            self.kind |= HAS_POINT | (stream.number() as u32) << STREAM_SHIFT;
            self.detail[2] = event;
        }
    }
}

impl Record for Chunk {
    type Link = Link;
    const VACANT: Self = Self::VACANT;

    #[inline]
    fn next_vacant(&self) -> u32 {
        self.next.0
    }

    #[inline]
    fn set_next_vacant(&mut self, link: u32) {
        self.next = Link(link);
    }
}

/// The record that is read for a link outside the table.
static NIL: Chunk = Chunk::VACANT;

impl Sink for Chunk {
    #[inline]
    fn nil() -> &'static Self {
        &NIL
    }
}

/// The links of a free chunk in the bin of its class.
impl Linked for Chunk {
    #[inline]
    fn next(&self) -> Link {
        self.next_free()
    }

    #[inline]
    fn previous(&self) -> Link {
        self.previous_free()
    }

    #[inline]
    fn set_next(&mut self, link: Link) {
        self.detail[0] = link.0;
    }

    #[inline]
    fn set_previous(&mut self, link: Link) {
        self.detail[1] = link.0;
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Self::VACANT
    }
}

const _: () = assert!(size_of::<Chunk>() <= 40, "the project's bound on a record");
static_assertions::assert_eq_size!(Chunk, [u8; 32]);
static_assertions::const_assert_eq!(align_of::<Chunk>(), 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_of_a_record_do_not_leak_into_each_other() {
        let mut chunk = Chunk::new(7, 9, RegionId::from_raw(0xabcd));
        assert_eq!(chunk.state(), State::Vacant);
        chunk.set_used(255, 0x0123_4567_89ab_cdef);
        assert!(chunk.is_used() && !chunk.is_free());
        assert_eq!(chunk.slack_bytes(), 255);
        assert_eq!(chunk.id(), 0x0123_4567_89ab_cdef);
        chunk.set_free();
        assert_eq!(
            (chunk.next_free(), chunk.previous_free()),
            (Link::NIL, Link::NIL)
        );
        assert_eq!(chunk.point(), None);
        chunk.set_point(Some((StreamId::new(255), u32::MAX)));
        chunk.set_next(Link(3));
        chunk.set_previous(Link(4));
        assert_eq!(chunk.point(), Some((StreamId::new(255), u32::MAX)));
        assert_eq!(
            (chunk.next_free(), chunk.previous_free()),
            (Link(3), Link(4))
        );
        chunk.set_leaving(0xfedc_ba98_7654_3210);
        assert_eq!(chunk.state(), State::Leaving);
        assert_eq!(chunk.id(), 0xfedc_ba98_7654_3210);
        assert_eq!(chunk.point(), None);
        chunk.set_free();
        assert!(chunk.is_free());
        chunk.set_used(0, 1);
        assert_eq!(chunk.point(), None);
        assert_eq!(chunk.region(), RegionId::from_raw(0xabcd));
        assert_eq!((chunk.start, chunk.end()), (7, 16));
    }
}
