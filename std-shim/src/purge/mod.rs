//! Memory that goes back to the system: by itself a while after it became idle, with no further call by
//! the program; before the heap grows; or at once by `trim`. No free gives memory back: what a program frees it
//! often takes again within moments.
//!
//! # Files
//! * `purger` who makes the ticks, and when · `thread` the purge thread, and what the cold path
//!   does for it
//! * `tick` what one does, in steps · `work` the steps that calls of the program do · `trim` everything idle at once
//!
//! Free memory of an arena goes in `arena/idle`.
//!
//! # Ticks
//!
//! A *tick* comes twice in the delay that the program chose, and once in LEAST_TICK_MS at most. What has been
//! idle since the tick before goes back then, and the rest grows older; so memory goes back between half a delay
//! and a whole one after it was last needed, and what is in constant reuse never does. No time is kept with
//! anything.
//!
//! ```text
//!   a tick:  caches of parked heaps ─► spans    remote-free queues ─► spans
//!            long blocks in caches of threads that sleep ─► spans
//!            old lists of transfer caches ─► spans ─► arena        empty spans ─► arena
//!            dirty free memory of arenas that is not young ─► the system
//! ```
//! What a tick itself frees on this way has been idle long enough, and goes the whole way at once. Of
//! the cache of a running thread the bins of long classes are emptied that it has not used since the tick before, which
//! costs its fast paths nothing (`BiasedLock`); the others it empties itself, in slow paths (`thread/local`). Where fewer than USE_BYTES are in use nobody ticks. A span with a
//! used block stays, but not the pages of it in which there is none (holes).
//!
//! Who makes the ticks:
//! ```text
//!   Resting ─► Wanted     USE_BYTES were taken from the arenas
//!   Wanted  ─► Ticking    a slow allocation starts the purge thread
//!   Ticking ─► Waiting    nothing is idle, and USE_BYTES are in use
//!   Waiting ─► Ticking    START_BYTES were freed, or the last thread with a heap has ended
//!   Ticking ─► Resting    nothing is idle, and less is in use, or no thread has a heap: the purge thread ends
//!   Ticking ─► Inline     no thread could be had; START_BYTES freed later it is Wanted again
//!   Resting ─► Inline     no thread is wished, and START_BYTES were freed
//!   Resting ─► Off        the delay is for ever
//! ```
//! The purge thread is there before anything is freed: no free starts one. Inline, slow paths of allocations tick by a
//! coarse clock. Where a thread is wanted and cannot be had, two ticks are owed after each try. Allocations make them, too:
//! a program that only frees from then on, or falls idle, keeps what is idle.
//!
//! # Steps
//!
//! A tick is made in steps of some 200 microseconds at most (STEP_BLOCKS). A step goes on where the last one ended: with
//! a heap, with a span in its list (`SpanSet::settle`), with a chunk of an arena. The purge thread does one step after
//! the other, and lets others have the locks in between. An allocation does one step and leaves the rest to the next ones
//! that come to a slow path; only one that gets a block of several MiB does one more for each 4 MiB, and where too much
//! idles beside a limit for each 64 KiB.
//! If none comes for the time of a tick, what was due is forgotten, and the next tick goes on where this one stood.
//!
//! # Growth
//!
//! Where the delay is short (SHORT_MS at most) or no thread is wanted, a heap that grows by a 64th *makes up* for
//! it, in the same steps, the first of them before the program touches what it got: as many bytes of free memory go
//! back, however young, and if there are fewer, two ticks follow. So memory that a program is done with makes room for
//! what it needs next. Between two such looks lie MAKE_UP_MS at least and MAKE_UP_STEP_MS for each step that the first one
//! took; a heap that no longer grows is left alone. Idle memory beside a limit on the memory of the process goes back in
//! the same way (`process/within`), after a pause, too; under pressure calls wait for each other's steps, and a tick is
//! enough where two are needed else.
//!
//! A free costs one relaxed load for this, and an addition more while nobody ticks, in slow paths
//! only. A tick is O(heaps x classes + spans of classes that something happened to + chunks + blocks that go back).
//!
//! # Invariants
//! * PURGE1 each step of a tick is whole under the lock of the work, which the fork handlers take. No lock is held
//!   between two steps.
//! * PURGE2 nothing is forgotten: a free is done under a lock, or left to the next holder and fenced, and the state
//!   read after that; the purger
//!   writes that it rests and then looks, under the same locks, for what came meanwhile. One of both
//!   sees the other.
//! * PURGE3 a free neither waits for a tick nor calls out: it may come from inside the C library, under locks that
//!   `pthread_create` takes. It counts, and wakes the purge thread by a system call. Threads are started and ticks made by
//!   allocations, by a thread that holds no lock of the heap. The purge thread allocates nothing here and has no heap.
//!   One is Ticking or Waiting at a time.
//! * PURGE4 the child of a fork has no such thread. If its parent had one, the child's next slow allocation
//!   starts one.
//! * PURGE5 the purge thread does not outlive the threads that have heaps, as the process lives while it does. A thread
//!   counts itself out and then looks whether the purge thread waits; that one says that it waits and then counts.

mod purger;
mod thread;
mod tick;
mod trim;
mod work;

pub(crate) use purger::Purger;
pub(crate) use thread::{after_alloc, after_free, thread_ended};
pub(crate) use tick::LOOK_COST;
pub(crate) use work::Work;
