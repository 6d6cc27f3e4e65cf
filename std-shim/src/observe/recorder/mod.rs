//! [`Recorder`]: a decorator over an allocator that writes a trace of the program's allocations.
//!
//! # Files
//! * `recording` the life of one trace: events become lines
//! * `target` the file and the minimum size, from the program or the environment
//! * `output` buffered lines and their file
//! * `complaint` messages on standard error
//! * `line` a short text built in place
//! * `os` the system calls
//!
//! # Why it cannot re-enter itself
//! Nothing below this file allocates through Rust: texts are built on the stack, the table lives in
//! pages from the system, and the inner allocator is called only while the lock is free.
//!
//! # Its lock
//! One lock protects the recording. Unlike the core's locks, it is held across system calls, since
//! the order of the lines is the order of the events. Waiting threads sleep.

mod complaint;
mod line;
mod os;
mod output;
mod recording;
mod target;

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::CStr;
use larder_core::sync::{AtomicUsize, Ordering};

use larder_core::Locked;

use crate::os::errno::KeepErrno;
use crate::step::{self, Listener, StepMoment, StepThread};
use crate::thread::wait::Sleep;
use recording::{EndReason, LARGEST, NEVER, Recording, Resized};
use target::RecorderOrder;

/// The only recording of this program: a block's address means the same everywhere in the program.
static RECORDING: Locked<Recording, Sleep> = Locked::new(Recording::new());

/// Minimum size of blocks that go to [`RECORDING`]. It is 0 until the recording has begun, so that
/// the first event begins it, and [`NEVER`] when nothing is recorded. Relaxed: only a hint, which
/// is checked again under the lock.
static THRESHOLD: AtomicUsize = AtomicUsize::new(0);

/// An allocator that records the program's requests to `A`, for `larder replay`.
///
/// ```no_run
/// use larder::{Larder, Recorder};
///
/// #[global_allocator]
/// static HEAP: Recorder<Larder> = Recorder::new(Larder::new());
///
/// fn main() {
///     let numbers = vec![0_u8; 1 << 20];
///     drop(numbers);
/// }
/// ```
///
/// # What is recorded
/// Each block of at least the given size is recorded, with the requested size and an id. The ids
/// count up from 0, and the events of all threads are in one order. A trace depends only on the
/// program's requests and on which reallocs the inner allocator does in place.
///
/// * A free is recorded before the block is free and an alloc after the block exists, so no moment
///   of the trace has more live blocks than the program had; only a block that a realloc moves may
///   count slightly longer than it lives.
/// * A realloc that moves the block is recorded as an alloc of the new id and then a free of the
///   old one, since both blocks are live while the contents are copied. A realloc in place is
///   recorded as the free and then the alloc, since they are never both live. A realloc that fails
///   or changes nothing is not recorded.
/// * Allocations that fail, and frees of blocks that were not recorded, are left out. Alignments
///   are not part of the format.
///
/// # Steps
/// A mark starts a step, and the next mark ends it. Events before the first mark are set-up. Marks
/// come from [`step`](Self::step) and from [`larder::step`](crate::step()), which marks where a
/// step begins and where it ends. If anything is recorded between the end of one step and the
/// beginning of the next, a comment follows the mark (`# between steps`): `larder plan` leaves that
/// part out, and `larder replay` counts it for no repetition. If nothing is recorded in between,
/// the end and the beginning are one mark.
///
/// The format has one sequence of steps and no threads. So only the
/// [`larder::step`](crate::step())s of one thread are marked: those of the first thread that begins
/// one and, after that thread has ended, those of the next thread that begins one. Allocations of
/// other threads during these steps are part of the steps; those threads' own steps are not marked.
/// Kinds of steps ([`step_keyed`](crate::step_keyed)) are not part of the format either.
///
/// # The file and the minimum size
/// [`new`](Self::new) reads the environment, [`to`](Self::to) takes arguments. Either is evaluated
/// once, at the first allocation. A program has one trace: if it has several recorders, the first
/// to be used decides, and the others record into the same trace. `%p` in the name of the file
/// becomes the process id. The file is emptied first. If another process is recording to it, this
/// process does not record.
///
/// # When it ends
/// * At `exit` and after `main`, buffered lines are written, the last step is closed, and the last
///   line says so; events of later exit handlers are left out.
/// * A program that is killed or aborts leaves only whole lines, and loses the lines since the last
///   [`flush`](Self::flush), at most 64 KiB of them. If it marks steps, the reader of the trace
///   asks for the last step to be closed: add the `s` line. `exec` ends the recording in the same
///   way, so flush before it.
/// * A forked child is not recorded, and never touches its parent's trace.
/// * When the disk is full, the table cannot grow or the format has no more ids, a message goes to
///   standard error, the trace ends at a whole line, and the program goes on.
///
/// # Cost
/// Without a recording, each call costs one relaxed load and a comparison. With a recording, each
/// call for a block of at least the given size costs a lock, a search in a table and a line of
/// text. The table takes 32 to 64 bytes for each block of the peak number of live blocks, from the
/// system and not from `A`.
///
/// Signal handlers must not allocate, as with any lock-based allocator.
#[derive(Debug)]
pub struct Recorder<A> {
    inner: A,
    order: RecorderOrder,
}

impl<A> Recorder<A> {
    /// Records if the environment requests it: to the file `LARDER_RECORD`, blocks of at least
    /// `LARDER_RECORD_FROM` bytes (such as `65536` or `64KiB`; every block if it is not set).
    ///
    /// Ignores the environment if the program runs with elevated privileges.
    pub const fn new(inner: A) -> Self {
        let order = RecorderOrder::Environment;
        Self { inner, order }
    }

    /// Records blocks of at least `from_bytes` bytes to `path`. Ignores the environment.
    pub const fn to(inner: A, path: &'static CStr, from_bytes: u64) -> Self {
        let order = RecorderOrder::Program { path, from_bytes };
        Self { inner, order }
    }

    /// Returns the wrapped allocator.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// Marks that a step of the program starts here, such as a training step, a frame or a request.
    /// A replay plans a step from the steps before it. The exit closes the last step. This mark is
    /// not needed where [`larder::step`](crate::step()) begins a step: both together are one mark.
    pub fn step(&self) {
        self.record(LARGEST, Recording::step);
    }

    /// Writes the buffered lines, for programs that may be killed.
    pub fn flush(&self) {
        self.record(LARGEST, Recording::flush);
    }

    /// Runs `act` with the recording if blocks of `bytes` bytes may be recorded. The first call
    /// begins the recording.
    #[inline]
    fn record<R>(&self, bytes: usize, act: impl FnOnce(&mut Recording) -> R) -> Option<R> {
        if bytes < THRESHOLD.load(Ordering::Relaxed) {
            return None;
        }
        Some(locked(|recording| {
            if recording.threshold() == 0 {
                begin(recording, self.order);
            }
            act(recording)
        }))
    }

    #[inline]
    fn allocated(&self, block: *mut u8, bytes: usize) {
        if !block.is_null() {
            self.record(bytes, |recording| recording.alloc(block.addr(), bytes));
        }
    }
}

/// Runs `act` with the recording and publishes its change to the threshold.
#[cold]
#[inline(never)]
fn locked<R>(act: impl FnOnce(&mut Recording) -> R) -> R {
    let _errno = KeepErrno::new();
    RECORDING.with(|recording| {
        let before = recording.threshold();
        let result = act(recording);
        if recording.threshold() != before {
            THRESHOLD.store(recording.threshold(), Ordering::Relaxed);
        }
        result
    })
}

/// Begins the recording and listens to steps. A step may have begun before the first block.
#[cold]
fn begin(recording: &mut Recording, order: RecorderOrder) {
    static HEARD: Listener = heard;
    recording.begin(order, watch);
    if recording.threshold() == NEVER {
        return;
    }
    step::listen(&HEARD);
    if let Some(thread) = step::thread_in_step() {
        recording.heard(thread, StepMoment::Begins);
    }
}

/// Records an event of a thread's steps.
fn heard(thread: StepThread, moment: StepMoment) {
    if THRESHOLD.load(Ordering::Relaxed) != NEVER {
        locked(|recording| recording.heard(thread, moment));
    }
}

/// Registers handlers for the process's exit and its forks. Returns whether the system took them.
fn watch() -> bool {
    os::in_forked_child(forked) && os::at_exit(exits)
}

/// Runs first in a forked child, where the lock may be held by a thread that does not exist there.
/// From now on the child does not take the lock. (A fork during the very first allocation comes
/// before this handler is registered; a program's first allocation comes before its threads.)
extern "C" fn forked() {
    THRESHOLD.store(NEVER, Ordering::Relaxed);
}

extern "C" fn exits() {
    if THRESHOLD.load(Ordering::Relaxed) != NEVER {
        locked(|recording| recording.end(EndReason::Exit));
    }
}

// SAFETY: every block is `A`'s own, requested and freed with the caller's own layouts, and only its
// address is recorded, as a number. Nothing here panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Recorder<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's, and not empty.
        let block = unsafe { self.inner.alloc(layout) };
        self.allocated(block, layout.size());
        block
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's, and not empty.
        let block = unsafe { self.inner.alloc_zeroed(layout) };
        self.allocated(block, layout.size());
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // Before the block is free: afterwards its address may be another thread's new block.
        self.record(layout.size(), |recording| recording.free(block.addr()));
        // SAFETY: the block is `A`'s, has this layout, and the caller gives it up.
        unsafe { self.inner.dealloc(block, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        let from = block.addr();
        let old = self.record(layout.size(), |recording| recording.resizing(from));
        let old = old.flatten();
        // SAFETY: the block is `A`'s and has this layout; the new size is valid for it.
        let block = unsafe { self.inner.realloc(block, layout, new_bytes) };
        let addr = block.addr();
        let stayed = block.is_null() || (addr == from && new_bytes == layout.size());
        if let (true, Some(id)) = (stayed, old) {
            self.record(layout.size(), |recording| recording.stayed(from, id));
        } else if !stayed {
            let resized = Resized {
                old,
                moved: addr != from,
                addr,
                bytes: new_bytes,
            };
            let bytes = new_bytes.max(layout.size());
            self.record(bytes, |recording| recording.resized(resized));
        }
        block
    }
}
