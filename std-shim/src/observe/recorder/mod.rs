//! [`Recorder`]: a decorator over an allocator that writes a trace of what the program does.
//!
//! # Files
//! * `recording` the life of one trace: events become lines
//! * `target` what to record and where, from the program or the environment
//! * `output` whole lines on their way to a file
//! * `complaint` what is said on standard error
//! * `line` a short text built in place
//! * `os` the system calls
//!
//! # Why it cannot come back to itself
//! Nothing below this file allocates through Rust: texts are built on the stack, the table lives
//! in pages from the system, and the inner allocator is called only while the lock is free.
//!
//! # Its lock
//! One lock holds the recording. Unlike the core's it is held across system calls, since the
//! order of the lines is the order of the events; who waits yields.

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
use crate::step::{self, Listener, Moment, StepThread};
use crate::thread::wait::Sleep;
use recording::{End, LARGEST, NEVER, Recording, Resized};
use target::Order;

/// The one recording of this program: a block's address means the same in all of it.
static RECORDING: Locked<Recording, Sleep> = Locked::new(Recording::new());

/// Sizes from here on go to [`RECORDING`]: 0 until it has begun, so that the first event begins
/// it, and [`NEVER`] when nothing is recorded. Only a hint, hence relaxed: who follows it looks
/// again under the lock.
static THRESHOLD: AtomicUsize = AtomicUsize::new(0);

/// An allocator that records what the program asks of `A`, for `larder replay`.
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
/// Each block of at least the given size, with the size that was asked for, under ids that count
/// up from 0, all threads in one order. A trace depends on nothing but what the program asks
/// and on which reallocs the inner allocator does in place.
///
/// * A free stands in the trace before the block is free and an alloc after the block is there,
///   so no moment of the trace has more live blocks than the program had; only a block
///   that a realloc moves may count for a moment longer than it lives.
/// * A realloc that moves the block is an alloc of the new id and then a free of the old one: while
///   the contents are copied both are live. One in place is the free and then the alloc, since
///   both never are. A realloc that fails or changes nothing is not recorded.
/// * Allocations that fail, and frees of blocks that were not recorded, are left out. Alignments
///   are not part of the format.
///
/// # Steps
/// A mark starts a step, and the next one ends it; what stands before the first is set-up. Marks come
/// from [`step`](Self::step) and from [`larder::step`](crate::step()), which marks where it begins and
/// where it ends. Where something is recorded between the end of one and the beginning of the next, a
/// remark behind the mark says so (`# between steps`): `larder plan` leaves that part out, and `larder
/// replay` counts it for no repetition. Else the two are one mark.
///
/// The format has one line of steps and no threads. So of [`larder::step`](crate::step()) the steps of
/// one thread are marked: of the first that begins one, and when that thread has ended of the next
/// that begins one. What other threads allocate meanwhile is part of these steps; their own are not
/// marked. Kinds of steps ([`step_keyed`](crate::step_keyed)) are not part of the format either.
///
/// # Where and how much
/// [`new`](Self::new) asks the environment, [`to`](Self::to) is told by the program. Either is
/// looked at once, at the first allocation. A program has one trace: with several recorders the
/// first to be used decides, and the others record into the same. `%p` in the name of the file
/// becomes the number of the process. The file is emptied first, unless another process is
/// recording to it: then this one does not record.
///
/// # When it ends
/// * At `exit` and after `main`, what waits is written, the last step is closed, and the last line
///   says so; what is freed or allocated by exit handlers still to come is left out.
/// * A program that is killed or aborts leaves whole lines up to the last 64 KiB or the last
///   [`flush`](Self::flush). If it marks steps, the reader asks for the last one to be closed: add
///   the `s` line. `exec` ends the recording in the same way, so flush before.
/// * A forked child is not recorded, and never touches its parent's trace.
/// * When the disk is full, the table cannot grow or the format has no more ids, one line on
///   standard error says so, the trace ends at a whole line, and the program goes on.
///
/// # Cost
/// Without a recording, one relaxed load and a comparison for each call. With one, blocks from the
/// size on cost a lock, a search in a table and a line of text. The table has 32 to 64 bytes for
/// each of the most blocks that were ever live at once, asked of the system and not of `A`.
///
/// Signal handlers must not allocate, as with any lock-based allocator.
#[derive(Debug)]
pub struct Recorder<A> {
    inner: A,
    order: Order,
}

impl<A> Recorder<A> {
    /// Records if the environment says so: to the file `LARDER_RECORD`, blocks of at least
    /// `LARDER_RECORD_FROM` bytes (such as `65536` or `64KiB`; without it, every block).
    ///
    /// The environment of a program that runs with more rights than its user has is not asked.
    pub const fn new(inner: A) -> Self {
        let order = Order::Environment;
        Self { inner, order }
    }

    /// Records to `path`, blocks of at least `from_bytes`; the environment is not asked.
    pub const fn to(inner: A, path: &'static CStr, from_bytes: u64) -> Self {
        let order = Order::Program { path, from_bytes };
        Self { inner, order }
    }

    /// The allocator that does the work.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// Marks that a step of the program starts here: a training step, a frame, a request. Replays
    /// plan a step from the ones before. The exit closes the last one. Not needed where
    /// [`larder::step`](crate::step()) begins one: both together are one mark.
    pub fn step(&self) {
        self.record(LARGEST, Recording::step);
    }

    /// Writes what waits, for programs that may be killed.
    pub fn flush(&self) {
        self.record(LARGEST, Recording::flush);
    }

    /// Does `act` with the recording if blocks of `bytes` may be recorded; the first call begins it.
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

/// Runs `act` with the recording and publishes what it did to the threshold.
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

/// Begins the recording and listens to steps; one may have begun before the first block.
#[cold]
fn begin(recording: &mut Recording, order: Order) {
    static HEARD: Listener = heard;
    recording.begin(order, watch);
    if recording.threshold() == NEVER {
        return;
    }
    step::listen(&HEARD);
    if let Some(thread) = step::thread_in_step() {
        recording.heard(thread, Moment::Begins);
    }
}

/// A thread's step begins or ends.
fn heard(thread: StepThread, moment: Moment) {
    if THRESHOLD.load(Ordering::Relaxed) != NEVER {
        locked(|recording| recording.heard(thread, moment));
    }
}

/// Has the process's exit and its forks watched.
fn watch() -> bool {
    os::in_forked_child(forked) && os::at_exit(exits)
}

/// Runs first in a forked child, where the lock may be held by a thread that is not there: from
/// here on nobody asks for it. (A fork during the very first allocation is before our time; a
/// program's first one comes before its threads.)
extern "C" fn forked() {
    THRESHOLD.store(NEVER, Ordering::Relaxed);
}

extern "C" fn exits() {
    if THRESHOLD.load(Ordering::Relaxed) != NEVER {
        locked(|recording| recording.end(End::Exit));
    }
}

// SAFETY: every block is `A`'s own, asked for and given back with the caller's own layouts, and
// what is recorded of it is only its address as a number. Nothing here panics.
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
