//! Heaps of steps: made, taken by threads, found by address.

use std::ptr;

use larder_core::sync::Ordering;

use super::{MIN_STEP_BYTES, Process};
use crate::arena::GROWTH_BYTES;
use crate::os::Os;
use crate::settings::StepSettings;
use crate::step_heap::StepHeap;

impl<O: Os> Process<O> {
    /// Whether a step ever began.
    #[inline]
    pub(crate) fn has_step_heaps(&self) -> bool {
        // Relaxed: a thread sees the count it wrote, and whoever has a block of a heap learned of
        // it from the thread that allocated it.
        self.steps.count.load(Ordering::Relaxed) > 0
    }

    /// All heaps of steps.
    pub(crate) fn step_heaps(&'static self) -> impl Iterator<Item = &'static StepHeap<O>> {
        // Acquire: the entries below the count are written (O1).
        let count = self.steps.count.load(Ordering::Acquire);
        self.steps.heaps.iter().take(count).filter_map(|entry| {
            // SAFETY: heaps live for ever. Relaxed: the count published the entry.
            unsafe { entry.load(Ordering::Relaxed).as_ref() }
        })
    }

    /// The heap of steps an address lies in.
    pub(crate) fn step_heap_of(&'static self, block: *mut u8) -> Option<&'static StepHeap<O>> {
        self.step_heaps().find(|heap| heap.contains(block))
    }

    /// A heap for a thread's step: the one it had last if no other thread has it.
    pub(crate) fn take_step_heap(
        &'static self,
        last: *const StepHeap<O>,
    ) -> Option<&'static StepHeap<O>> {
        // Relaxed: only counts.
        let skipped = self.steps.skipped.load(Ordering::Relaxed);
        if skipped > 0 && self.steps.begun.fetch_add(1, Ordering::Relaxed) < skipped {
            return None;
        }
        // SAFETY: null, or a heap, which lives for ever.
        if let Some(heap) = unsafe { last.as_ref() }.filter(|heap| heap.take()) {
            return Some(heap);
        }
        // A heap that nobody has had knows nothing; one that somebody left may know these steps.
        if let Some(heap) = self.step_heaps().find(|heap| heap.take()) {
            return Some(heap);
        }
        self.steps.settings.with(|settings| {
            let count = self.steps.count.load(Ordering::Relaxed);
            let entry = self.steps.heaps.get(count)?;
            let heap = self.new_step_heap(settings)?;
            heap.take();
            entry.store(ptr::from_ref(heap).cast_mut(), Ordering::Relaxed);
            // Release: the entry and the heap are written (O1).
            self.steps.count.store(count + 1, Ordering::Release);
            Some(heap)
        })
    }

    fn new_step_heap(&'static self, settings: &StepSettings) -> Option<&'static StepHeap<O>> {
        if !settings.enabled {
            return None;
        }
        let mut bytes = settings.range_bytes.max(MIN_STEP_BYTES) & !(GROWTH_BYTES - 1);
        loop {
            if let Some(heap) = StepHeap::reserve(&self.os, bytes, settings.config()) {
                return Some(heap);
            }
            if bytes <= MIN_STEP_BYTES {
                return None;
            }
            bytes = (bytes / 4).max(MIN_STEP_BYTES) & !(GROWTH_BYTES - 1);
        }
    }

    /// How the heaps of steps are made from now on; `false` if there is one already.
    pub(crate) fn set_steps(&self, settings: StepSettings) -> bool {
        self.steps.settings.with(|present| {
            let none = self.steps.count.load(Ordering::Relaxed) == 0;
            if none {
                *present = settings;
                let skipped = &self.steps.skipped;
                skipped.store(settings.first_step, Ordering::Relaxed);
            }
            none
        })
    }
}
