//! [`OpenEvent`]: the event that frees of a stream carry now, read without a lock.

use super::{AtomicU8, AtomicU64, Ordering};
use crate::stream::EventNumber;

/// The number that frees of a stream carry now, whose event is not recorded yet, and whether anything
/// was freed with it.
///
/// Whoever closes a number opens the next one *before* the event of the closed one is recorded in the
/// stream. So a thread that still reads the closed number read it before that, its work was queued
/// before that, and the event comes behind its work, if the stream takes one thing at a time. A free
/// may carry a later number than it needs, never an earlier one.
///
/// Threads that close take turns; the caller has a lock for that.
#[derive(Debug)]
pub struct OpenEvent {
    open: AtomicU64,
    freed: AtomicU8,
}

impl OpenEvent {
    /// Opens this event, with which nothing was freed yet.
    pub fn new(open: EventNumber) -> Self {
        Self {
            open: AtomicU64::new(open.number()),
            freed: AtomicU8::new(0),
        }
    }

    /// The event that a free carries whose work is queued already. Two loads.
    #[inline]
    pub fn for_free(&self) -> EventNumber {
        // Acquire: whoever sees an event open also sees `freed` as it was reset before that.
        let open = self.open.load(Ordering::Acquire);
        if self.freed.load(Ordering::Relaxed) == 0 {
            self.freed.store(1, Ordering::Relaxed);
        }
        EventNumber::new(open)
    }

    /// The open event.
    pub fn now(&self) -> EventNumber {
        EventNumber::new(self.open.load(Ordering::Acquire))
    }

    /// Whether something was freed with the open event.
    pub fn has_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed) == 1
    }

    /// Opens the next event and gives the closed one, which is to be recorded after this.
    pub fn close(&self) -> EventNumber {
        self.freed.store(0, Ordering::Relaxed);
        let closed = self.open.load(Ordering::Relaxed);
        self.open.store(closed + 1, Ordering::Release);
        EventNumber::new(closed)
    }

    /// Tells that the closed event could not be recorded: there is still something to close.
    pub fn reopen(&self) {
        self.freed.store(1, Ordering::Relaxed);
    }
}
