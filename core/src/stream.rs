//! Stream order as numbers.
//!
//! A *stream* is a queue of work that runs in order: a CUDA stream, a DMA channel, or TensorFlow's single count of
//! frees. *Events* number moments in it; later moments have larger numbers. A caller may free memory while queued work
//! still uses it: the free then carries a [`StreamPoint`], and the memory is in use until the stream has completed the
//! event. The core only compares numbers; the front end decides what an event is.

/// A stream, by number below [`StreamId::COUNT`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct StreamId(u8);

impl StreamId {
    /// Number of streams that an allocator distinguishes, at 12 bytes each; programs use tens of streams. A front end
    /// may give two streams the same number, at the price of later reuse.
    pub const COUNT: usize = 256;

    /// Stream 0, the default.
    pub const MAIN: Self = Self(0);

    /// Creates the stream with this number.
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Returns the stream's number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The number of an event of a stream. Numbers of one stream never decrease; the newest one in use
/// lies at most [`EventNumber::WINDOW`] ahead of the last completed one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct EventNumber(u64);

impl EventNumber {
    /// The distance by which a free may lie ahead of the last event that its stream has completed: 2^30 events, because
    /// a free chunk stores the low 32 bits of the number only.
    pub const WINDOW: u64 = 1 << 30;

    /// Creates the event with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the event's number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A point in a stream's order: memory that carries it is in use until `stream` has completed `event`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct StreamPoint {
    /// The stream whose work still uses the memory.
    pub stream: StreamId,
    /// The event after which its work no longer uses the memory.
    pub event: EventNumber,
}
