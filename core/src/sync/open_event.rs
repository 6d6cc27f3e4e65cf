//! [`OpenEvent`]: the event that frees on a stream carry now, read without a lock.

use super::{AtomicU8, AtomicU64, Ordering};
use crate::stream::EventNumber;

/// The number that frees on a stream carry now, whose event is not recorded yet, and whether any free has used it.
///
/// The thread that closes a number opens the next one *before* the event of the closed one is recorded in the stream.
/// So a thread that still reads the closed number read it before that moment, and had queued its work by then. The
/// event comes after that work, if the stream takes one thing at a time. A free may carry a later number than it needs,
/// never an earlier one.
///
/// Threads that close numbers take turns, under a lock of the caller.
#[derive(Debug)]
pub struct OpenEvent {
    open: AtomicU64,
    freed: AtomicU8,
}

impl OpenEvent {
    /// Creates an open event that no free has used yet.
    pub fn new(open: EventNumber) -> Self {
        Self {
            open: AtomicU64::new(open.number()),
            freed: AtomicU8::new(0),
        }
    }

    /// Returns the event for a free whose work is queued already. Two loads.
    #[inline]
    pub fn for_free(&self) -> EventNumber {
        // Acquire: a thread that sees an event open also sees `freed` as it was reset before that.
        let open = self.open.load(Ordering::Acquire);
        if self.freed.load(Ordering::Relaxed) == 0 {
            self.freed.store(1, Ordering::Relaxed);
        }
        EventNumber::new(open)
    }

    /// Returns the open event.
    pub fn now(&self) -> EventNumber {
        EventNumber::new(self.open.load(Ordering::Acquire))
    }

    /// Returns whether a free used the open event.
    pub fn has_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed) == 1
    }

    /// Opens the next event. Returns the closed one, to be recorded after this call.
    pub fn close(&self) -> EventNumber {
        self.freed.store(0, Ordering::Relaxed);
        let closed = self.open.load(Ordering::Relaxed);
        self.open.store(closed + 1, Ordering::Release);
        EventNumber::new(closed)
    }

    /// Notes that the closed event could not be recorded: there is still an event to close.
    pub fn reopen(&self) {
        self.freed.store(1, Ordering::Relaxed);
    }
}
