//! Steps: work that repeats, whose large blocks are planned. [`step`] marks the start of such work.
//!
//! # Files
//! * `heap` the plans of a thread's steps and the blocks at their places, with its `tables` ·
//!   `elsewhere` the other blocks of a step
//! * `heaps` all such heaps · `settings` their configuration
//! * `listener` a listener for the start and end of steps
//!
//! During a step the thread holds a pointer to its step heap, which sees the thread's large blocks.
//! A thread takes the same heap again if it can, so that it finds the plans of its own steps.

mod elsewhere;
mod heap;
mod heaps;
mod listener;
mod settings;
mod tables;

use core::alloc::Layout;
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use crate::cold_path::plain;
use crate::os::Native;
use crate::process::PROCESS;
use crate::purge;
use crate::thread::end::tell_of_end;
use crate::thread::tls;
use listener::tell;

use heap::Place;
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
    /// Steps begun and not ended, each inside the one before, including those without a heap.
    begun: Cell<u32>,
}

impl ThreadSteps {
    pub(crate) const fn new() -> Self {
        Self {
            heap: Cell::new(ptr::null()),
            last: Cell::new(ptr::null()),
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
/// for _ in 0..10 {
///     let _step = larder::step();
///     let activations = vec![0u8; 1 << 20];
///     let gradients = vec![1u8; 3 << 20];
///     drop(activations);
///     let update = vec![2u8; 1 << 20];
///     drop((gradients, update));
/// }
/// assert_eq!(HEAP.stats().steps.known_steps, 9);
/// ```
///
/// Blocks above [`StepSettings::threshold_bytes`](crate::StepSettings) that this thread allocates
/// before the step ends are observed. Once some steps have freed what they allocated, a step that
/// begins in the same way is served from a plan, in which blocks that never live at the same time
/// share memory. Several kinds of steps may alternate. Allocations that differ from the plan are
/// served all the same. A block may outlive its step, and any thread may free it; a block that has
/// outlived its step more than once is kept out of the plan, as is one that was resized.
///
/// The heap does not grow for a plan, unless as much idle memory can be returned to the system
/// instead. If plans serve few blocks, steps have no effect for a while, and cost nothing.
///
/// Each allocation and free of such a block costs a lock that only this thread and threads that
/// free its blocks take. The first allocation of a known step also computes a layout if there is
/// none: at most about 60 ms, for 16,000 blocks, and about 90 KiB of stack.
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
            begin(place, key);
        }
    });
    Step {
        thread: PhantomData,
    }
}

fn begin(place: &ThreadSteps, key: u64) {
    // A hardened heap tracks each of its blocks.
    if !PROCESS.tuning.is_known() || PROCESS.tuning.is_hardened() {
        return;
    }
    let Some(heap) = PROCESS.step_heaps.take(&PROCESS, place.last.get()) else {
        return;
    };
    place.last.set(heap);
    match heap.begin(key) {
        true => place.heap.set(heap),
        false => heap.leave(),
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
            // A thread that has ended has no steps.
            let begun = place.begun.get();
            place.begun.set(begun.saturating_sub(1));
            if begun == 1 {
                end(place);
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
        let freed_bytes = heap.end();
        heap.leave();
        if freed_bytes > 0 {
            purge::after_free(freed_bytes);
        }
    }
}

/// Ends a step that the ending thread never ended.
pub(crate) fn end_of_thread() {
    with_place(|place| {
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

/// Returns whether the process has had steps.
#[inline]
pub(crate) fn exist() -> bool {
    !PROCESS.step_heaps.are_none()
}

/// Returns whether a step may take a block of this layout: the process has had steps, and the block
/// is long enough. Such a block has no size class.
#[inline]
pub(crate) fn may_take(layout: Layout) -> bool {
    layout.size() > STEP_LEAST_BYTES && exist()
}

/// Returns the heap of this thread's current step.
fn current() -> Option<&'static StepHeap<Native>> {
    // SAFETY: heaps are never freed.
    unsafe { with_place(|place| place.heap.get()).as_ref() }
}

/// Allocates a large block at its place in this thread's current step. Returns `None` if there is no
/// such place; the caller then allocates the block and reports it to [`enter`].
pub(crate) fn alloc(layout: Layout) -> Option<NonNull<u8>> {
    let heap = current()?;
    let block = match heap.alloc(layout.size(), layout.align()) {
        Place::At(block) => block,
        Place::Needs { bytes, grows } => {
            let (reserve, grew) = plain::alloc_reserve(bytes, grows);
            heap.begin_reserve(reserve, grew)?
        }
        Place::None => return None,
    };
    purge::after_alloc(layout.size());
    Some(block)
}

/// Reports a block that has no place to the current step, if there is one.
pub(crate) fn enter(block: NonNull<u8>) {
    if let Some(heap) = current() {
        heap.enter(block);
    }
}

/// Frees a large block if it has a place in a step. Otherwise returns `false`, and the current step
/// learns that the caller frees the block.
pub(crate) fn free(block: *mut u8) -> bool {
    if PROCESS.step_heaps.free(block) {
        return true;
    }
    if let Some(heap) = current() {
        heap.free_elsewhere(block);
    }
    false
}

/// Tells the current step, if there is one, that the caller resizes a large block without a place.
pub(crate) fn resize_elsewhere(block: *mut u8) {
    if let Some(heap) = current() {
        heap.resize_elsewhere(block);
    }
}

/// Returns the length of a block that has a place in a step.
#[inline]
pub(crate) fn bytes_at(block: *mut u8) -> Option<u64> {
    PROCESS.step_heaps.bytes_at(block)
}
