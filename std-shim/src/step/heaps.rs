//! [`StepHeaps`]: the heaps of steps, which are created, taken by threads, and found by address.

use core::ptr;

use larder_core::Locked;
use larder_core::small::MAX_SMALL_BYTES;
use larder_core::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::{StepHeap, StepSettings};
use crate::os::Os;
use crate::process::Process;
use crate::thread::wait::Sleep;

/// Maximum size in bytes of blocks that are never part of a step: those with a size class.
pub(crate) const STEP_LEAST_BYTES: usize = MAX_SMALL_BYTES;
/// Maximum number of threads that have steps at the same time.
const MAX_STEP_HEAPS: usize = 16;

/// The heaps of steps of a process.
///
/// # Invariants
/// * STEP3 heaps are entered in order and never removed; an entry is written once, before the count
///   that covers it.
pub(crate) struct StepHeaps<O: Os> {
    heaps: [AtomicPtr<StepHeap<O>>; MAX_STEP_HEAPS],
    count: AtomicUsize,
    /// Number of steps begun, counted while steps are skipped.
    begun: AtomicU64,
    /// Number of steps at the beginning that have no effect.
    skipped: AtomicU64,
    /// Settings of new heaps; held while one is created.
    pub(crate) settings: Locked<StepSettings, Sleep>,
}

impl<O: Os> StepHeaps<O> {
    /// Creates an empty list.
    pub(crate) const fn new() -> Self {
        Self {
            heaps: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_STEP_HEAPS],
            count: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            settings: Locked::new(StepSettings::new()),
        }
    }

    /// Returns whether there is no heap of steps yet.
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        // Relaxed: a thread sees the count that it wrote, and a thread that holds a block of a heap
        // got the block from the thread that allocated it.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Iterates over all heaps.
    pub(crate) fn iter(&'static self) -> impl Iterator<Item = &'static StepHeap<O>> {
        // Acquire: the entries below the count are written (STEP3).
        let count = self.count.load(Ordering::Acquire);
        self.heaps.iter().take(count).filter_map(|entry| {
            // SAFETY: heaps are never freed. Relaxed: the count published the entry.
            unsafe { entry.load(Ordering::Relaxed).as_ref() }
        })
    }

    /// Frees a block of a reserve. Returns `false` if none starts there.
    pub(crate) fn free(&'static self, block: *mut u8) -> bool {
        self.iter()
            .any(|heap| heap.may_contain(block) && heap.free(block))
    }

    /// Returns the granted length of the block of a reserve that starts there.
    pub(crate) fn bytes_at(&'static self, block: *mut u8) -> Option<u64> {
        let mut heaps = self.iter().filter(|heap| heap.may_contain(block));
        heaps.find_map(|heap| heap.bytes_at(block))
    }

    /// Takes a heap for a thread's step: the thread's last heap if no other thread has it,
    /// otherwise another heap.
    pub(crate) fn take(
        &'static self,
        process: &'static Process<O>,
        last: *const StepHeap<O>,
    ) -> Option<&'static StepHeap<O>> {
        // Relaxed: only counts.
        let skipped = self.skipped.load(Ordering::Relaxed);
        if skipped > 0 && self.begun.fetch_add(1, Ordering::Relaxed) < skipped {
            return None;
        }
        // SAFETY: null, or a heap, which is never freed.
        if let Some(heap) = unsafe { last.as_ref() }.filter(|heap| heap.take()) {
            return Some(heap);
        }
        // A new heap has no plans; a heap that another thread left may have plans of these steps.
        if let Some(heap) = self.iter().find(|heap| heap.take()) {
            return Some(heap);
        }
        self.settings.with(|settings| {
            let count = self.count.load(Ordering::Relaxed);
            let entry = self.heaps.get(count)?;
            let heap = settings
                .enabled
                .then(|| StepHeap::create(process, settings.config()))
                .flatten()?;
            heap.take();
            entry.store(ptr::from_ref(heap).cast_mut(), Ordering::Relaxed);
            // Release: the entry and the heap are written (STEP3).
            self.count.store(count + 1, Ordering::Release);
            Some(heap)
        })
    }

    /// Sets the settings of new heaps. Returns `false` if there is a heap already.
    pub(crate) fn set(&self, settings: StepSettings) -> bool {
        self.settings.with(|present| {
            let none = self.count.load(Ordering::Relaxed) == 0;
            if none {
                *present = settings;
                let skipped = &self.skipped;
                skipped.store(settings.first_step, Ordering::Relaxed);
            }
            none
        })
    }
}
