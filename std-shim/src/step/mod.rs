//! Steps: work that repeats, whose large blocks are planned. [`step`] marks the start of such work.
//!
//! # Files
//! * `heap` the blocks of a thread's steps, in their own range, which has its `tables`
//! * `heaps` all such ranges · `settings` their configuration
//! * `listener` a listener for the start and end of steps
//!
//! During a step the thread holds a pointer to its step heap, from which large blocks are
//! allocated. A thread takes the same heap again if it can, so that it finds the plans of its own
//! steps.

mod heap;
mod heaps;
mod listener;
mod settings;
mod tables;

use core::alloc::Layout;
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use crate::os::Native;
use crate::process::PROCESS;
use crate::thread::end::tell_of_end;
use crate::thread::tls;
use listener::tell;

pub(crate) use heap::StepHeap;
pub(crate) use heaps::{STEP_LEAST_BYTES, StepHeaps};
#[cfg(unix)]
pub(crate) use listener::{Listener, listen};
pub(crate) use listener::{StepMoment, StepThread};
#[cfg(feature = "std")]
pub use settings::BadSetting;
pub use settings::{StepSettings, StepsInUse};

/// The state of a thread's steps. All null at first.
pub(crate) struct ThreadSteps {
    /// The heap of the current step.
    heap: Cell<*const StepHeap<Native>>,
    /// The heap of the last step.
    last: Cell<*const StepHeap<Native>>,
    /// Steps begun inside the current one.
    inner: Cell<u32>,
    /// Steps begun and not ended, including those without a heap.
    begun: Cell<u32>,
}

impl ThreadSteps {
    pub(crate) const fn new() -> Self {
        Self {
            heap: Cell::new(ptr::null()),
            last: Cell::new(ptr::null()),
            inner: Cell::new(0),
            begun: Cell::new(0),
        }
    }
}

/// Runs `f` with the calling thread's step state.
fn with_place<R>(f: impl FnOnce(&ThreadSteps) -> R) -> R {
    // SAFETY: the thread's own state, of which there are only shared borrows.
    f(unsafe { &*tls::steps() })
}

/// A step of the calling thread, from the call of [`step`] until this value is dropped.
#[derive(Debug)]
#[must_use = "the step ends where this is dropped"]
pub struct Step {
    /// Makes the step `!Send`: it belongs to the thread that began it.
    thread: PhantomData<*mut ()>,
}

/// Begins a step of the calling thread: a training step, a request, a frame, or anything else that
/// the thread does again and again with nearly the same large allocations.
///
/// ```
/// #[global_allocator]
/// static HEAP: larder::Larder = larder::Larder::new();
///
/// for _ in 0..4 {
///     let _step = larder::step();
///     let activations = vec![0u8; 1 << 20];
///     let gradients = vec![1u8; 3 << 20];
///     drop(activations);
///     let update = vec![2u8; 1 << 20];
///     drop((gradients, update));
/// }
/// assert_eq!(HEAP.stats().steps.known_steps, 3);
/// ```
///
/// Blocks above [`StepSettings::threshold_bytes`](crate::StepSettings) that this thread allocates
/// before the step ends come from separate memory. In the first step, the heap records when each
/// block is allocated and freed. From then on, a step that begins the same way is served from a
/// plan in which blocks that never live at the same time share memory, without page faults and
/// without memory beyond the plan. Several kinds of steps may alternate. Allocations that differ
/// from the plan are served all the same. A block may outlive its step, and any thread may free it;
/// a block that has outlived its step once is kept out of the plan.
///
/// Each allocation and free of such a block costs a lock that only this thread and threads that
/// free its blocks take. The first allocation of a known step also walks the live blocks, and
/// computes a new layout if they have changed: at most about 60 ms, for 16,000 blocks.
///
/// Computing the layout takes about 90 KiB of stack in the step's first allocation.
///
/// A [`Recorder`](crate::Recorder) marks the steps of one thread in its trace; its documentation
/// says which.
///
/// A step begun inside another is part of that step. At most 16 threads have steps at the same
/// time. Steps of further threads have no effect; nor do steps if [`Larder`](crate::Larder) is not
/// the program's allocator, or if memory is short.
pub fn step() -> Step {
    step_keyed(0)
}

/// Begins a step of a kind that the program names: it is compared only with other steps that have
/// the same `key`. Key 0 is for steps without a name, which [`step`] begins.
pub fn step_keyed(key: u64) -> Step {
    with_place(|place| {
        if place.begun.replace(place.begun.get() + 1) == 0 {
            // If the thread ends inside the step, its heap is released.
            tell_of_end();
            tell(StepThread::of(place), StepMoment::Begins);
        }
        if !place.heap.get().is_null() {
            place.inner.set(place.inner.get() + 1);
            return;
        }
        // A hardened heap tracks each of its blocks.
        if !PROCESS.tuning.is_known() || PROCESS.tuning.is_hardened() {
            return;
        }
        let Some(heap) = PROCESS.step_heaps.take(&PROCESS.os, place.last.get()) else {
            return;
        };
        heap.begin(key);
        place.last.set(heap);
        place.heap.set(heap);
    });
    Step {
        thread: PhantomData,
    }
}

impl Step {
    /// Returns the step that the calling thread began last, if its value was forgotten
    /// ([`core::mem::forget`]). This is for programs that begin and end a step in two separate
    /// calls. Returns `None` outside steps.
    pub fn resume() -> Option<Self> {
        let is_inside = with_place(|place| place.begun.get() > 0);
        is_inside.then_some(Self {
            thread: PhantomData,
        })
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        with_place(|place| {
            if let Some(inner) = place.inner.get().checked_sub(1) {
                place.inner.set(inner);
            } else {
                end(place);
            }
            // A thread that has ended has no steps.
            let begun = place.begun.get();
            place.begun.set(begun.saturating_sub(1));
            if begun == 1 {
                tell(StepThread::of(place), StepMoment::Ends);
            }
        });
    }
}

/// Returns the calling thread, if it is inside a step.
#[cfg(unix)]
pub(crate) fn thread_in_step() -> Option<StepThread> {
    with_place(|place| (place.begun.get() > 0).then(|| StepThread::of(place)))
}

fn end(place: &ThreadSteps) {
    // SAFETY: heaps are never freed.
    if let Some(heap) = unsafe { place.heap.replace(ptr::null()).as_ref() } {
        heap.end();
        heap.leave();
    }
}

/// Ends a step that the ending thread never ended.
pub(crate) fn end_of_thread() {
    with_place(|place| {
        place.inner.set(0);
        end(place);
        if place.begun.replace(0) > 0 {
            tell(StepThread::of(place), StepMoment::Ends);
        }
        tell(StepThread::of(place), StepMoment::ThreadEnds);
    });
}

/// Releases the heaps of the other threads, in the child of a fork.
pub(crate) fn in_child() {
    let mine = with_place(|place| place.heap.get());
    for heap in PROCESS.step_heaps.iter() {
        if !ptr::eq(heap, mine) {
            heap.leave();
        }
    }
}

/// Returns whether a step may take a block of this layout: the process has steps, and the block is
/// long enough.
#[inline]
pub(crate) fn may_take(layout: Layout) -> bool {
    layout.size() > STEP_LEAST_BYTES && !PROCESS.step_heaps.are_none()
}

/// Returns whether this thread is inside a step.
pub(crate) fn is_under_way() -> bool {
    !PROCESS.step_heaps.are_none() && with_place(|place| !place.heap.get().is_null())
}

/// Allocates a block of this thread's current step. Returns `None` if there is no step, or if it
/// does not take the block.
pub(crate) fn alloc(layout: Layout) -> Option<NonNull<u8>> {
    if !may_take(layout) {
        return None;
    }
    let heap = with_place(|place| place.heap.get());
    // SAFETY: heaps are never freed.
    let heap = unsafe { heap.as_ref() }?;
    heap.alloc(layout.size(), layout.align())
}

/// Returns the step heap that a block of this layout came from, if there is one.
#[inline]
pub(crate) fn heap_of(block: *mut u8, layout: Layout) -> Option<&'static StepHeap<Native>> {
    if !may_take(layout) {
        return None;
    }
    PROCESS.step_heaps.of(block)
}
