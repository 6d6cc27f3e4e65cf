//! Frees that are deferred because it was impossible to wait for a stream's work: an allocator ended while a
//! stream was being captured, or the driver refused the wait.
//!
//! OWED1 Such a free waits in its [context](super::context) until each stream that it names has finished the
//! work queued before the free, or can run no more work at all.
//!
//! While an allocator ends, its frees on the same thread are collected here instead of being made.

use core::cell::RefCell;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda_abi::{Code, EventHandle};

use super::context::on_stream;
use super::refused_free::RefusedFree;
use super::{CaptureStatus, Driver};
use crate::limits::Charge;

/// A free, with the charge held until it is made.
pub(crate) type Free = (RefusedFree, Option<Charge>);

thread_local! {
    /// This thread's frees while [`collect`] runs.
    static COLLECTED: RefCell<Option<Vec<Free>>> = const { RefCell::new(None) };
}

/// Work that was not waited for.
pub(crate) enum Unwaited {
    /// All work queued on a stream.
    Stream(Arc<CudaStream>),
    /// The work recorded by an event, which is freed with the memory.
    Event(EventHandle),
    /// All work queued in the context.
    Context,
}

/// Frees, and the work they wait for.
pub(super) struct Owed {
    pub(super) unwaited: Vec<Unwaited>,
    pub(super) frees: Vec<Free>,
}

/// Runs `end` and collects the frees that it makes on this thread. A thread whose thread-local variables are
/// already gone cannot collect frees, so `end` does not run there and its memory is leaked.
pub(super) fn collect(end: impl FnOnce()) -> Vec<Free> {
    let Ok(before) = COLLECTED.try_with(|collected| collected.replace(Some(Vec::new()))) else {
        return Vec::new();
    };
    end();
    COLLECTED.replace(before).unwrap_or_default()
}

/// Returns whether this thread collects its frees.
pub(super) fn is_collecting() -> bool {
    let collecting = COLLECTED.try_with(|collected| collected.borrow().is_some());
    collecting.unwrap_or(false)
}

/// Collects a free, or returns it if this thread does not collect.
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

    /// Returns whether all of the work is over, waiting for it if `may_wait`.
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

    /// Returns whether the work is over. The context must be current. Work of a context that has failed counts
    /// as over; after any other refusal the work counts as pending.
    fn is_over(&self, driver: &'static Driver, may_wait: bool) -> bool {
        let answer = match self {
            Self::Stream(stream) => on_stream(driver, stream, |driver, stream| {
                // SAFETY: `self` holds the stream.
                let status = unsafe { driver.capture_status(stream) }?;
                // To wait for a stream that is being captured would only invalidate the capture.
                if status != CaptureStatus::None {
                    return Ok(false);
                }
                if may_wait {
                    // SAFETY: `self` holds the stream.
                    unsafe { driver.synchronize_stream(stream) }?;
                    return Ok(true);
                }
                // SAFETY: `self` holds the stream.
                unsafe { driver.query_stream(stream) }
            }),
            Self::Event(event) => {
                // SAFETY: the event exists, since it is freed with the memory, after this call.
                unsafe { driver.query_event(*event) }
            }
            Self::Context if may_wait => driver.synchronize_context().map(|()| true),
            Self::Context => Ok(false),
        };
        let answer = match answer.as_ref().map_err(|error| error.code()) {
            // The stream's owner has destroyed it; its work continues.
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
