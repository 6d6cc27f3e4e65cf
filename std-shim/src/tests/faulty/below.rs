//! [`Below`]: the faulty system as the heap sees it.

use std::ptr::NonNull;

use super::{Faulty, HUGE_BYTES, State};
use crate::os::{Moved, Native, Os};

/// The system as the heap sees it; the test keeps a reference too.
#[derive(Clone, Copy)]
pub(in crate::tests) struct Below(pub(in crate::tests) &'static Faulty);

impl Below {
    fn with<R>(self, act: impl FnOnce(&mut State) -> R) -> R {
        self.0.0.with(act)
    }
}

// SAFETY: 1 and 2 are the native system's: a refused call changes nothing, or does a part of what a
// kernel may have done.
unsafe impl Os for Below {
    fn page_bytes(&self) -> usize {
        self.with(|state| state.page_bytes)
    }

    fn processors(&self) -> usize {
        1
    }

    fn coarse_ms(&self) -> u64 {
        self.with(|state| state.now_ms)
    }

    fn secret(&self) -> Option<usize> {
        Some(0x5851_f42d_4c95_7f2d)
    }

    fn barrier(&self) -> bool {
        self.with(|state| state.manner.has_barrier) && Native.barrier()
    }

    fn counts_commits(&self) -> bool {
        self.with(|state| state.manner.counts_commits)
    }

    fn is_filtered(&self) -> bool {
        self.with(|state| state.manner.is_filtered)
    }

    fn memory_limit(&self) -> Option<u64> {
        self.with(|state| {
            state.reads_of_limit += 1;
            state.manner.memory_limit
        })
    }

    fn has_huge_pages(&self) -> bool {
        self.with(|state| state.manner.has_huge_pages)
    }

    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let native = |bytes, align| Native.reserve(bytes, align);
        self.with(|state| state.reserve(bytes, align, native))
    }

    fn reserve_zeros(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let native = |bytes, align| Native.reserve_zeros(bytes, align);
        self.with(|state| state.reserve(bytes, align, native))
    }

    unsafe fn release(&self, start: *mut u8, bytes: usize) {
        // SAFETY: the caller's range, which it uses no more.
        self.with(|state| unsafe { state.release(start, bytes) });
    }

    unsafe fn commit(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's range.
        self.with(|state| unsafe { state.commit(start, bytes) })
    }

    unsafe fn decommit(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's range, whose contents it gives up.
        self.with(|state| unsafe { state.decommit(start, bytes) })
    }

    unsafe fn discard(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's range, whose contents it gives up.
        self.with(|state| unsafe { state.discard(start, bytes) })
    }

    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, bytes: usize) -> Moved {
        // SAFETY: the caller's ranges; nothing in the second is used.
        self.with(|state| unsafe { state.move_pages(from, to, bytes) })
    }

    unsafe fn advise_huge(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's range.
        self.with(|state| unsafe { state.advise_huge(start, bytes) })
    }

    unsafe fn split(&self, start: *mut u8, bytes: usize) {
        let ends = [start.addr(), start.addr() + bytes].into_iter();
        let ends = ends.filter(|end| !end.is_multiple_of(HUGE_BYTES));
        self.with(|state| {
            for end in ends {
                state.splits += usize::from(state.split.insert(end / HUGE_BYTES));
            }
        });
        // SAFETY: the caller's range, which is committed.
        unsafe { Native.split(start, bytes) }
    }

    unsafe fn resident_bytes(&self, start: *mut u8, bytes: usize) -> Option<usize> {
        // SAFETY: the caller's range.
        self.with(|state| unsafe { state.resident_bytes(start, bytes) })
    }
}
