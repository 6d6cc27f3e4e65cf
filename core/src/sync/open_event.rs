//! [`OpenEvent`]: the event number that frees on a stream carry at present, which is read without a lock.

use super::{AtomicU8, AtomicU64, Ordering};
use crate::stream::EventNumber;

/// The open event number of a stream, whose event is not yet recorded. Frees on the stream carry this number. Also
/// stores whether any free has used it.
///
/// A thread that closes a number opens the next number *before* it records the event of the closed number in the
/// stream. So a thread that got the closed number read it before the event was recorded, and had queued its work by
/// then. If the stream accepts one operation at a time, the event comes after that work. A free may carry a later
/// number than it needs, but never an earlier one.
///
/// A lock of the caller ensures that one thread at a time closes numbers.
#[derive(Debug)]
pub struct OpenEvent {
    open: AtomicU64,
    freed: AtomicU8,
}

impl OpenEvent {
    /// Creates an open event that no free has used.
    pub fn new(open: EventNumber) -> Self {
        Self {
            open: AtomicU64::new(open.number()),
            freed: AtomicU8::new(0),
        }
    }

    /// Returns the event number for a free whose work is already queued. Two loads.
    #[inline]
    pub fn for_free(&self) -> EventNumber {
        // Acquire: a thread that sees a new open event also sees that `freed` was reset before.
        let open = self.open.load(Ordering::Acquire);
        if self.freed.load(Ordering::Relaxed) == 0 {
            self.freed.store(1, Ordering::Relaxed);
        }
        EventNumber::new(open)
    }

    /// Returns the open event number.
    pub fn now(&self) -> EventNumber {
        EventNumber::new(self.open.load(Ordering::Acquire))
    }

    /// Returns whether a free has used the open event.
    pub fn has_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed) == 1
    }

    /// Opens the next event number. Returns the closed one, whose event must be recorded after this call.
    pub fn close(&self) -> EventNumber {
        self.freed.store(0, Ordering::Relaxed);
        let closed = self.open.load(Ordering::Relaxed);
        self.open.store(closed + 1, Ordering::Release);
        EventNumber::new(closed)
    }

    /// Notes that the closed event could not be recorded, so the open one must be closed even if no free uses it.
    pub fn reopen(&self) {
        self.freed.store(1, Ordering::Relaxed);
    }
}
