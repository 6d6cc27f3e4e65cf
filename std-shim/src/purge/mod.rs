//! Returning memory to the system: some time after it becomes idle, with no further call by the
//! program; before the heap grows; or immediately, with `trim`. No free returns memory, because a
//! program often allocates again within moments.
//!
//! # Files
//! * `purger` decides which thread makes the ticks, and when · `thread` the purge thread, and calls
//!   from the cold path
//! * `tick` a tick, in steps · `work` the steps that calls of the program make · `trim` returns all
//!   idle memory at once
//!
//! Free memory of an arena is returned in `arena/idle`.
//!
//! # Ticks
//!
//! A *tick* comes twice in the configured delay, but at most once in LEAST_TICK_MS. It returns
//! memory that has been idle since the previous tick, and ages the rest. So memory returns between
//! half a delay and a whole delay after its last use, and memory in constant reuse never returns.
//! Nothing carries a time stamp.
//!
//! ```text
//!   a tick:  caches of parked heaps ─► spans    remote-free queues ─► spans
//!            long and large blocks in caches of threads that sleep ─► spans, arenas
//!            old lists of transfer caches ─► spans ─► arena        empty spans ─► arena
//!            dirty free memory of arenas that is not young ─► the system
//! ```
//! Blocks freed by a tick itself have been idle long enough, and go the whole way immediately. In a
//! running thread's cache, a tick takes large blocks, and empties the bins of long classes, that have
//! not been used since the previous tick, which costs the fast paths nothing (`BiasedLock`); the
//! thread flushes the other bins itself, in slow paths (`thread/local`). While fewer than USE_BYTES
//! are in use there are no ticks. A span with a used block stays, but its pages without a used block (holes) are
//! returned.
//!
//! Ticks are made by:
//! ```text
//!   Resting ─► Wanted     USE_BYTES were taken from the arenas
//!   Wanted  ─► Ticking    a slow allocation starts the purge thread
//!   Ticking ─► Waiting    nothing is idle, and USE_BYTES are in use
//!   Waiting ─► Ticking    START_BYTES were freed, or the last thread with a heap has ended
//!   Ticking ─► Resting    nothing is idle, and less is in use, or no thread has a heap: the purge thread ends
//!   Ticking ─► Inline     no thread could be had; START_BYTES freed later it is Wanted again
//!   Resting ─► Inline     no thread is configured, and START_BYTES were freed
//!   Resting, Ticking ─► Off    the delay is infinite
//!   Off     ─► Resting    the program has set another delay
//! ```
//! The purge thread exists before anything is freed: no free starts it. In the state Inline, slow
//! paths of allocations tick according to a coarse clock. If a thread is wanted and cannot be
//! started, two ticks are owed after each attempt. Allocations make those ticks, too, so a program
//! that from then on only frees, or becomes idle, keeps its idle memory.
//!
//! # Steps
//!
//! A tick is made in steps of at most about 200 microseconds (STEP_BLOCKS). A step continues where
//! the last one ended: with a heap, with a span in its list (`SpanSet::settle`), with a chunk of an
//! arena. The purge thread does one step after another, and releases the locks in between. An
//! allocation in a slow path does one step and leaves the rest to the next such allocations; an
//! allocation of a block of several MiB does one more step for each 4 MiB, or, near a memory limit,
//! for each 64 KiB. If no such allocation comes for the time of a tick, the due work is dropped,
//! and the next tick continues where this one stopped.
//!
//! # Growth
//!
//! If the delay is short (SHORT_MS at most) or no thread is wanted, a heap that grows by a 64th
//! *makes up* for the growth, in the same steps, with the first step before the program touches its
//! new block: it returns as many bytes of free memory, however young, and if there are fewer, two
//! ticks follow. So memory that a program no longer needs makes room for what it needs next. The
//! pause between two such purges is MAKE_UP_MS, or a millisecond for each MAKE_UP_MS_BLOCKS blocks
//! that the first purge cost if that is longer. A heap that no longer grows is left alone. Idle
//! memory near a limit on the memory of the process is returned in the same way
//! (`process/memory_limit`), even after a pause. Under pressure, calls wait for each other's steps,
//! and one tick does the work of two.
//!
//! For all this, a free costs one relaxed load, plus an addition while there are no ticks, and both
//! only in slow paths. A tick is O(heaps x classes + spans of changed classes + chunks + blocks
//! returned).
//!
//! # Invariants
//! * PURGE1 each step of a tick runs under the lock of the work, which the fork handlers take. No
//!   lock is held between two steps.
//! * PURGE2 no free is missed: a free is done under a lock, or is left to the next holder and
//!   followed by a fence, and the thread then reads the state. The purger writes that it rests, and
//!   then scans for later frees under the same locks. One of the two sees the other.
//! * PURGE3 a free neither waits for a tick nor calls other code, because it may come from inside
//!   the C library, under locks that `pthread_create` takes. It counts, and wakes the purge thread
//!   with a system call. Allocations start threads and make ticks, on a thread that holds no lock
//!   of the heap. The purge thread allocates nothing here and has no heap. At most one purge thread
//!   is Ticking or Waiting at a time.
//! * PURGE4 the child of a fork has no purge thread. If its parent had one, the child's next slow
//!   allocation starts one.
//! * PURGE5 the purge thread does not outlive the threads that have heaps, because it would keep
//!   the process alive. An ending thread subtracts itself from the count and then checks whether
//!   the purge thread waits; the purge thread sets its state to waiting and then reads the count.
//! * PURGE6 the state is not Off while the delay is finite. The thread that turns the ticks off reads
//!   the delay again once others see that state; the thread that changes the delay then reads the
//!   state. One of the two sees the other.

mod purger;
mod thread;
mod tick;
mod trim;
mod work;

pub(crate) use purger::Purger;
pub(crate) use thread::{after_alloc, after_free, thread_ended};
pub(crate) use tick::LOOK_COST;
pub(crate) use work::PurgeWork;
