//! The scopes that a thread is in, with the innermost on top (TRACK1).
//!
//! The thread-local is a constant without a destructor, so it works at any moment of a thread's
//! life. Frames that a thread leaves on its stack because their guards were forgotten are never
//! freed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{self, NonNull};

use super::node::NodeRef;

/// The origin of a frame, which decides how its early end counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A scope.
    Scope,
    /// A handle that was entered.
    Entered,
    /// A section that is not counted.
    Uncounted,
}

struct Frame {
    /// The node that counts; `None` for none.
    node: Option<NodeRef>,
    kind: FrameKind,
    number: u64,
    below: *mut Frame,
}

struct ScopeStack {
    top: Cell<*mut Frame>,
    /// The last number used.
    number: Cell<u64>,
}

thread_local! {
    static STACK: ScopeStack = const {
        ScopeStack { top: Cell::new(ptr::null_mut()), number: Cell::new(0) }
    };
}

/// Returns whether the thread has a frame, and is not counting now.
#[inline(always)]
pub(super) fn is_inside() -> bool {
    STACK.with(|stack| !stack.top.get().is_null())
}

/// Runs `f` with the innermost scope's node and an empty stack, so that nested calls are not
/// counted again. `f` does not unwind.
pub(super) fn counting<R>(f: impl FnOnce(Option<&NodeRef>) -> R) -> R {
    STACK.with(|stack| {
        let top = stack.top.replace(ptr::null_mut());
        // SAFETY: TRACK1: a frame of ours, which no code ends while it is not on the stack.
        let node = unsafe { top.as_ref() }.and_then(|frame| frame.node.as_ref());
        let result = f(node);
        stack.top.set(top);
        result
    })
}

/// Returns the node of the innermost scope, if the thread counts.
pub(super) fn innermost() -> Option<NodeRef> {
    STACK.with(|stack| {
        // SAFETY: TRACK1: a frame of ours, on the stack.
        unsafe { stack.top.get().as_ref() }?.node.clone()
    })
}

/// Pushes a frame. Returns its number, or `None` if there is no memory.
pub(super) fn push(node: Option<NodeRef>, kind: FrameKind) -> Option<u64> {
    STACK.with(|stack| {
        // SAFETY: the layout has a size.
        let place = unsafe { System.alloc(Layout::new::<Frame>()) };
        let place = NonNull::new(place.cast::<Frame>())?;
        let number = stack.number.get() + 1;
        stack.number.set(number);
        let below = stack.top.get();
        // SAFETY: as large and aligned as requested, and ours.
        unsafe {
            place.write(Frame {
                node,
                kind,
                number,
                below,
            });
        }
        stack.top.set(place.as_ptr());
        Some(number)
    })
}

/// Returns whether a frame with this number is on the stack. O(frames above it).
fn has(top: *mut Frame, number: u64) -> bool {
    let mut frame = top;
    // SAFETY: TRACK1: a frame of ours, on the stack.
    while let Some(here) = unsafe { frame.as_ref() } {
        if here.number <= number {
            return here.number == number;
        }
        frame = here.below;
    }
    false
}

/// Pops the frame with this number and all frames above it, whose guards were forgotten or
/// outlive this frame. Does nothing if the frame itself was already popped in this way.
pub(super) fn pop(number: u64) {
    STACK.with(|stack| {
        if !has(stack.top.get(), number) {
            return;
        }
        while let Some(top) = NonNull::new(stack.top.get()) {
            // SAFETY: TRACK1: a frame of ours, on the stack, moved out and not used there again.
            let frame = unsafe { top.read() };
            stack.top.set(frame.below);
            // SAFETY: from `System` with this layout, and moved out.
            unsafe { System.dealloc(top.as_ptr().cast(), Layout::new::<Frame>()) };
            if frame.number == number {
                return;
            }
            if let (FrameKind::Scope, Some(node)) = (frame.kind, &frame.node) {
                node.cut_short();
            }
        }
    });
}
