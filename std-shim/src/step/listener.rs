//! Who hears where steps begin and end: the recorder.

use core::ptr;

use larder_core::sync::{AtomicPtr, Ordering};

/// A thread, told from all others that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepThread(usize);

impl StepThread {
    /// By the address of something that each thread has one of.
    pub(super) fn of<T>(place: &T) -> Self {
        Self(ptr::from_ref(place).addr())
    }

    #[cfg(all(test, unix))]
    pub(crate) const fn numbered(number: usize) -> Self {
        Self(number)
    }
}

/// What there is to hear of a thread's steps. A step inside another is part of it and not heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Begins,
    Ends,
    ThreadEnds,
}

/// Hears of steps, on their threads. It must not allocate.
pub(crate) type Listener = fn(StepThread, Moment);

/// Who hears of steps: null, or a listener that is there for ever. Not called by name, so that a
/// program without one is linked without it.
static LISTENER: AtomicPtr<Listener> = AtomicPtr::new(ptr::null_mut());

/// From now on `listener` hears of steps.
#[cfg(unix)]
pub(crate) fn listen(listener: &'static Listener) {
    // Relaxed: what it points to was never written.
    LISTENER.store(ptr::from_ref(listener).cast_mut(), Ordering::Relaxed);
}

/// Tells the listener of a moment of a thread's steps.
pub(super) fn tell(thread: StepThread, moment: Moment) {
    // SAFETY: null, or a listener that is there for ever.
    if let Some(listener) = unsafe { LISTENER.load(Ordering::Relaxed).as_ref() } {
        listener(thread, moment);
    }
}
