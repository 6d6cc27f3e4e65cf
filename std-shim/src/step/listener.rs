//! The listener for the start and end of steps: the recorder.

use core::ptr;

use larder_core::sync::{AtomicPtr, Ordering};

/// An identifier of a thread, unique among running threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepThread(usize);

impl StepThread {
    /// Identifies a thread by the address of a value of which each thread has its own.
    pub(super) fn of<T>(place: &T) -> Self {
        Self(ptr::from_ref(place).addr())
    }
}

/// An event of a thread's steps. A step inside another is part of that step and is not
/// reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepMoment {
    Begins,
    Ends,
    ThreadEnds,
}

/// Receives the events of steps, on their threads. It must not allocate.
pub(crate) type Listener = fn(StepThread, StepMoment);

/// The listener of steps: null, or a listener that is never freed. Called through a pointer, so
/// that a program without a recorder is linked without the recorder's code.
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
