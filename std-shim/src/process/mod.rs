//! The state that the threads of a process share: arenas, heaps of threads and of steps, and
//! mappings.
//!
//! # Files
//! * `arenas` the arenas, and the order of searching them
//! * `large_blocks` blocks without a class: in an arena, or in `mappings` of their own
//! * `spans` the source of spans of small blocks
//! * `thread_heaps` heaps of threads: creating, adopting and parking them
//! * `memory_limit` idle memory when the process has a memory limit
//! * `fork` handlers that run around a fork, in the parent and in the child
//!
//! Locks are taken in the order of docs/ARCHITECTURE.md. All locks except those of the pool and of
//! the BFCs are held across system calls that get or discard memory: a heap's lock is taken only by
//! the heap's own thread, `trim`, `stats`, the purger and a fork; `meta` only for new heaps; and
//! the others only for growth.

mod arenas;
pub(crate) mod fork;
mod large_blocks;
mod mappings;
mod memory_limit;
mod spans;
mod thread_heaps;

use core::ptr;

use larder_core::Locked;
use larder_core::small::{HeapPool, Mask};
use larder_core::sync::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use crate::arena::Arena;
use crate::config::Tuning;
use crate::os::{FIRST_ARENA_BYTES, Native, Os};
use crate::purge::{PurgeWork, Purger};
use crate::safety::Blocks;
use crate::safety::guard_pages::GuardPages;
use crate::safety::hardened::link_changed;
use crate::step::StepHeaps;
use crate::thread::wait::Sleep;
use arenas::{FirstArena, MAX_ARENAS};
use mappings::Mappings;
use memory_limit::MemoryLimit;
use thread_heaps::Meta;

pub(crate) use memory_limit::MemoryCheck;
pub(crate) use spans::{PagesOf, may_start, span_bytes};
pub(crate) use thread_heaps::ThreadHeap;

/// The heap of this process.
pub(crate) static PROCESS: Process<Native> = Process::new(Native, FIRST_ARENA_BYTES);

/// A value that slow calls read and that is rarely written, in a cache line of its own.
#[repr(align(128))]
pub(crate) struct RarelyWritten<T>(pub(crate) T);

/// The state that the threads of a process share.
pub(crate) struct Process<O: Os> {
    pub(crate) os: O,
    /// The program's configuration.
    pub(crate) tuning: Tuning,
    pub(crate) purger: Purger,
    /// The current tick, and other work done in steps.
    pub(crate) work: Locked<PurgeWork, Sleep>,
    /// Number of threads that are forking (FORK1).
    pub(crate) forks: RarelyWritten<AtomicU32>,
    /// Number of calls that have waited for a fork.
    #[cfg(test)]
    pub(crate) waits_for_forks: AtomicU32,
    /// Whether the process is the child of a fork and has not ticked yet.
    pub(crate) forked: AtomicU8,
    /// Bytes of the first reservation that is attempted.
    arena_bytes: usize,
    /// The arenas, entered in order (PROC1).
    arenas: [AtomicPtr<Arena<O>>; MAX_ARENAS],
    arena_count: AtomicUsize,
    /// Whether the system counts commits ([`Os::counts_commits`]), read when the first arena is
    /// created.
    counts_commits: AtomicU8,
    first: FirstArena,
    /// Held while an arena is added.
    adding: Locked<(), Sleep>,
    pub(crate) mappings: Mappings,
    pub(crate) memory_limit: MemoryLimit,
    pub(crate) pool: HeapPool<Sleep>,
    meta: Locked<Meta, Sleep>,
    /// How many units of [`LARGE_UNIT`](larder_core::small::LARGE_UNIT) bytes of large blocks all
    /// threads together may cache; 0 until there is an arena, or if cached blocks could not be taken
    /// from a thread.
    large_units: AtomicU32,
    /// Bytes that the bins of each thread's cache may hold together.
    cache_bytes: RarelyWritten<AtomicUsize>,
    /// Number of processors; 0 until it is known.
    processors: AtomicUsize,
    /// Maximum number of heaps with sets of their own; 0 for the usual one.
    #[cfg(test)]
    max_primaries: AtomicUsize,
    pub(crate) step_heaps: StepHeaps<O>,
    /// Masks the links of free blocks, if the heap is hardened.
    mask: Mask,
    /// Used if the heap is hardened.
    pub(crate) hardened: Locked<Blocks, Sleep>,
    /// Used if some blocks have guard pages.
    pub(crate) guard_pages: GuardPages,
}

impl<O: Os> Process<O> {
    /// Creates the state of a process that holds no memory yet. Its first arena will have
    /// `arena_bytes` bytes if the system allows it.
    pub(crate) const fn new(os: O, arena_bytes: usize) -> Self {
        Self {
            os,
            tuning: Tuning::new(),
            purger: Purger::new(),
            work: Locked::new(PurgeWork::new()),
            forks: RarelyWritten(AtomicU32::new(0)),
            #[cfg(test)]
            waits_for_forks: AtomicU32::new(0),
            forked: AtomicU8::new(0),
            arena_bytes,
            arenas: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_ARENAS],
            arena_count: AtomicUsize::new(0),
            counts_commits: AtomicU8::new(0),
            first: FirstArena::none(),
            adding: Locked::new(()),
            mappings: Mappings::new(),
            memory_limit: MemoryLimit::new(),
            pool: HeapPool::new(),
            meta: Locked::new(Meta::NONE),
            large_units: AtomicU32::new(0),
            cache_bytes: RarelyWritten(AtomicUsize::new(usize::MAX)),
            processors: AtomicUsize::new(0),
            #[cfg(test)]
            max_primaries: AtomicUsize::new(0),
            step_heaps: StepHeaps::new(),
            mask: Mask::new(link_changed),
            hardened: Locked::new(Blocks::new()),
            guard_pages: GuardPages::new(),
        }
    }

    /// Returns whether the system counts committed memory.
    pub(crate) fn counts_commits(&'static self) -> bool {
        // Relaxed: the value only selects a policy.
        self.counts_commits.load(Ordering::Relaxed) > 0
    }

    /// Returns the resident bytes of the arenas; 0 where the system does not report them.
    pub(crate) fn resident_bytes(&'static self) -> u64 {
        if self.os.is_filtered() {
            return 0;
        }
        self.arenas().filter_map(Arena::resident_bytes).sum()
    }

    /// Returns the bytes in blocks and spans of the arenas.
    pub(crate) fn live_bytes(&'static self) -> u64 {
        self.arenas().map(|arena| arena.numbers().0).sum()
    }

    /// Returns whether some arena is at least `bytes` bytes long, so that its idle memory might
    /// serve such a request.
    pub(crate) fn could_hold(&'static self, bytes: usize) -> bool {
        self.arenas().any(|arena| arena.bytes() >= bytes)
    }
}
