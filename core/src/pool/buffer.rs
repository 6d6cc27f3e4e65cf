//! The records of a pool's buffers, and their lists.

use crate::table::fixed_vec::FixedVec;
use crate::table::list::Linked;
use crate::table::slab::{Record, Sink, SlabOver};

/// The state of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BufferState {
    /// The record has no buffer.
    Vacant,
    /// The buffer is being requested from the sub-allocator.
    Growing,
    /// A caller has a block of the buffer.
    Out,
    /// The buffer is cached, and counted against the limits.
    Idle,
    /// The buffer is cached because the sub-allocator did not take it back.
    Stuck,
    /// The buffer is to be released, but no thread has begun to release it.
    Leaving,
    /// The buffer is being offered to the sub-allocator.
    Going,
}

/// The buffers of a pool.
pub(super) type Buffers = SlabOver<FixedVec<Buffer>>;

/// The record of one buffer, of 72 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    /// First address held from the sub-allocator.
    pub(super) start: u64,
    /// Bytes held from there.
    pub(super) held_bytes: u64,
    /// Bytes requested from the sub-allocator: the size by which the buffer is found.
    pub(super) bytes: u64,
    /// First address of the block, while one is out.
    pub(super) block: u64,
    /// Bytes requested for the block.
    pub(super) requested_bytes: u64,
    /// Number of the block's allocation.
    pub(super) id: u64,
    /// The next older and the next newer buffer, in the list of the state and in the list of the size.
    pub(super) links: [[u32; 2]; 2],
    /// The step in which the buffer became idle.
    pub(super) step: u32,
    pub(super) state: BufferState,
}

static_assertions::const_assert_eq!(size_of::<Buffer>(), 72);

impl Buffer {
    /// A record without a buffer.
    pub(super) const VACANT: Self = Self {
        start: 0,
        held_bytes: 0,
        bytes: 0,
        block: 0,
        requested_bytes: 0,
        id: 0,
        links: [[0; 2]; 2],
        step: 0,
        state: BufferState::Vacant,
    };

    /// Returns the granted bytes of the block: all bytes of the buffer from the block's start.
    pub(super) const fn granted_bytes(&self) -> u64 {
        self.bytes - (self.block - self.start)
    }
}

/// The record that is read for a link outside the table.
static NO_BUFFER: Buffer = Buffer::VACANT;

impl Record for Buffer {
    type Link = u32;
    const VACANT: Self = Self::VACANT;

    fn next_vacant(&self) -> u32 {
        self.links[0][0]
    }

    fn set_next_vacant(&mut self, link: u32) {
        self.links[0][0] = link;
    }
}

impl Sink for Buffer {
    #[inline]
    fn nil() -> &'static Self {
        &NO_BUFFER
    }
}

/// Names the links of a list: the list of a buffer's state, or the list of its size.
pub(super) struct ListLinks<const LIST: usize>;
pub(super) type OfState = ListLinks<0>;
pub(super) type OfSize = ListLinks<1>;

impl<const LIST: usize> Linked<ListLinks<LIST>> for Buffer {
    #[inline]
    fn next(&self) -> u32 {
        self.links[LIST][0]
    }

    #[inline]
    fn previous(&self) -> u32 {
        self.links[LIST][1]
    }

    #[inline]
    fn set_next(&mut self, link: u32) {
        self.links[LIST][0] = link;
    }

    #[inline]
    fn set_previous(&mut self, link: u32) {
        self.links[LIST][1] = link;
    }
}
