//! The state of a thread: its stack of contexts, its number and its capture mode.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};

use larder_cuda_abi::constants::CAPTURE_MODE_GLOBAL;

static NEXT: AtomicUsize = AtomicUsize::new(1);

thread_local! {
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    static CLOSED: Cell<bool> = const { Cell::new(false) };
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(CAPTURE_MODE_GLOBAL) };
}

/// Returns the thread's number, which is never reused.
pub(crate) fn number() -> usize {
    // A thread whose thread-locals are destroyed is ending and needs no separate number.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

/// Returns the context on top of the stack.
pub(crate) fn current() -> Option<usize> {
    with_contexts(|contexts| contexts.last().copied()).flatten()
}

/// Replaces the context on top of the stack; `None` pops it.
pub(crate) fn set_current(context: Option<usize>) {
    with_contexts(|contexts| {
        contexts.pop();
        contexts.extend(context);
    });
}

pub(crate) fn push(context: usize) {
    with_contexts(|contexts| contexts.push(context));
}

pub(crate) fn pop() -> Option<usize> {
    with_contexts(Vec::pop).flatten()
}

/// Returns whether this thread must not call the driver because it is inside a call or runs a host
/// function.
pub(crate) fn is_closed() -> bool {
    CLOSED.try_with(Cell::get).unwrap_or(false)
}

/// Sets whether this thread must not call the driver.
pub(crate) fn set_closed(closed: bool) {
    let _ = CLOSED.try_with(|cell| cell.set(closed));
}

/// Returns the capture mode of this thread; see `cuThreadExchangeStreamCaptureMode`.
pub(crate) fn capture_mode() -> u32 {
    CAPTURE_MODE
        .try_with(Cell::get)
        .unwrap_or(CAPTURE_MODE_GLOBAL)
}

/// Sets the capture mode of this thread and returns the previous one.
pub(crate) fn exchange_capture_mode(mode: u32) -> u32 {
    CAPTURE_MODE
        .try_with(|cell| cell.replace(mode))
        .unwrap_or(CAPTURE_MODE_GLOBAL)
}

fn with_contexts<R>(f: impl FnOnce(&mut Vec<usize>) -> R) -> Option<R> {
    CONTEXTS
        .try_with(|contexts| f(&mut contexts.borrow_mut()))
        .ok()
}
