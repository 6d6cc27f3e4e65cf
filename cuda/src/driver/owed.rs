//! Frees of memory that work may still use, because nobody could wait for that work: an allocator ended
//! while a stream captured, or the driver refused the wait.
//!
//! OWED1 such a free stands in its [context](super::context) until each stream that it names has done what was
//! queued before, or can do no more work at all.
//!
//! While an allocator ends, what it gives back on its thread is collected here and given to nobody.

use core::cell::RefCell;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda_abi::{Code, EventHandle};

use super::context::on_stream;
use super::deferred_free::DeferredFree;
use super::{CaptureStatus, Driver};
use crate::limits::Charge;

/// A free, and the charge that is held until it is made.
pub(crate) type Free = (DeferredFree, Option<Charge>);

thread_local! {
    /// What is given back on this thread, while [`collect`] runs.
    static COLLECTED: RefCell<Option<Vec<Free>>> = const { RefCell::new(None) };
}

/// Work that was not waited for.
pub(crate) enum Unwaited {
    /// All that was queued on a stream.
    Stream(Arc<CudaStream>),
    /// What an event recorded, which is given back with the memory.
    Event(EventHandle),
    /// All that was queued in the context.
    Context,
}

/// Frees, and what they wait for.
pub(super) struct Owed {
    pub(super) unwaited: Vec<Unwaited>,
    pub(super) frees: Vec<Free>,
}

/// Runs `end`; what it gives back on this thread is collected instead. A thread that ends, and whose locals
/// are gone, cannot collect: `end` does not run there, and what it would give back is lost.
pub(super) fn collect(end: impl FnOnce()) -> Vec<Free> {
    let Ok(before) = COLLECTED.try_with(|collected| collected.replace(Some(Vec::new()))) else {
        return Vec::new();
    };
    end();
    COLLECTED.replace(before).unwrap_or_default()
}

/// Whether what this thread gives back is collected.
pub(super) fn is_collecting() -> bool {
    let collecting = COLLECTED.try_with(|collected| collected.borrow().is_some());
    collecting.unwrap_or(false)
}

/// Takes a free, if this thread collects; else it comes back.
pub(super) fn take(free: Free) -> Option<Free> {
    if !is_collecting() {
        return Some(free);
    }
    COLLECTED.with_borrow_mut(|collected| collected.get_or_insert_default().push(free));
    None
}

impl Owed {
    pub(super) fn len(&self) -> usize {
        self.frees.len()
    }

    /// Whether all of the work is over. `may_wait` if the host may wait for it.
    pub(super) fn is_over(&mut self, driver: &'static Driver, may_wait: bool) -> bool {
        self.unwaited.retain(|work| !work.is_over(driver, may_wait));
        self.unwaited.is_empty()
    }
}

impl Unwaited {
    pub(super) const fn event(&self) -> Option<EventHandle> {
        match self {
            Self::Event(event) => Some(*event),
            Self::Stream(_) | Self::Context => None,
        }
    }

    /// Work of a context that has failed runs no more; any other refusal says nothing. The context is
    /// current.
    fn is_over(&self, driver: &'static Driver, may_wait: bool) -> bool {
        let answer = match self {
            Self::Stream(stream) => on_stream(driver, stream, |driver, stream| {
                // SAFETY: the stream is held here.
                let status = unsafe { driver.capture_status(stream) }?;
                // A wait for a stream that captures would only spoil the capture.
                if status != CaptureStatus::None {
                    return Ok(false);
                }
                if may_wait {
                    // SAFETY: the stream is held here.
                    unsafe { driver.synchronize_stream(stream) }?;
                    return Ok(true);
                }
                // SAFETY: the stream is held here.
                unsafe { driver.query_stream(stream) }
            }),
            Self::Event(event) => {
                // SAFETY: the event is given back with the memory, behind this.
                unsafe { driver.query_event(*event) }
            }
            Self::Context if may_wait => driver.synchronize_context().map(|()| true),
            Self::Context => Ok(false),
        };
        let answer = match answer.as_ref().map_err(|error| error.code()) {
            // Its owner has destroyed the stream; the work goes on.
            Err(Some(Code::INVALID_HANDLE)) if may_wait => {
                driver.synchronize_context().map(|()| true)
            }
            _ => answer,
        };
        answer.unwrap_or_else(|error| {
            let ended = [Code::CONTEXT_IS_DESTROYED, Code::DEINITIALIZED];
            error.is_fatal() || error.code().is_some_and(|code| ended.contains(&code))
        })
    }
}
