//! The listener for the start and end of steps: the recorder.

use core::ptr;

use larder_core::sync::{AtomicPtr, Ordering};

/// An identifier of a thread, unique among those that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepThread(usize);

impl StepThread {
    /// Identifies a thread by the address of a value that each thread has one of.
    pub(super) fn of<T>(place: &T) -> Self {
        Self(ptr::from_ref(place).addr())
    }
}

/// An event of a thread's steps. A step inside another is part of it and not reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepMoment {
    Begins,
    Ends,
    ThreadEnds,
}

/// Receives the events of steps, on their threads. It must not allocate.
pub(crate) type Listener = fn(StepThread, StepMoment);

/// The listener of steps: null, or one that is never freed. Called through a pointer, so that a
/// program without one is linked without it.
static LISTENER: AtomicPtr<Listener> = AtomicPtr::new(ptr::null_mut());

/// Sets the listener of steps.
#[cfg(unix)]
pub(crate) fn listen(listener: &'static Listener) {
    // Relaxed: the listener is a constant.
    LISTENER.store(ptr::from_ref(listener).cast_mut(), Ordering::Relaxed);
}

/// Reports an event of a thread's steps to the listener.
pub(super) fn tell(thread: StepThread, moment: StepMoment) {
    // SAFETY: null, or a listener that is never freed.
    if let Some(listener) = unsafe { LISTENER.load(Ordering::Relaxed).as_ref() } {
        listener(thread, moment);
    }
}
