//! Lanes and epochs: stream order as numbers.
//!
//! A *lane* is a queue of work that runs in order: a CUDA stream, a DMA channel, or TensorFlow's
//! single count of frees. An *epoch* numbers points of that queue. Memory freed while work that
//! uses it is still queued carries a [`Stamp`]: it is out of use once the lane has passed the
//! epoch. The core only compares numbers; what an epoch means (an event, a counter) is the
//! door's affair.

/// A queue of work in order, by number, below [`Lane::COUNT`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Lane(u8);

impl Lane {
    /// How many lanes an allocator tells apart. The table of frontiers and stamps (12 bytes a lane) lies in
    /// the allocator itself; programs use tens of streams, and doors may share a lane between
    /// streams at the price of later reuse.
    pub const COUNT: usize = 256;

    /// Lane 0, the one used where nothing is said.
    pub const MAIN: Self = Self(0);

    /// The lane with this number.
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// The lane's number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// A point in a lane's order. Epochs of one lane never decrease; the distance between the last
/// completed epoch and the newest one in use may be at most [`Epoch::WINDOW`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Epoch(u64);

impl Epoch {
    /// How far ahead of the frontier a stamp may lie: 2^30 epochs, because a free chunk stores
    /// the low 32 bits of its epoch only.
    pub const WINDOW: u64 = 1 << 30;

    /// The epoch with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The epoch's number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// "In use until `lane` has passed `epoch`."
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Stamp {
    /// The queue whose work still uses the memory.
    pub lane: Lane,
    /// The point of that queue after which it no longer does.
    pub epoch: Epoch,
}
