//! A sub-allocator that misbehaves on request.

use std::cell::Cell;

use larder_core::{Addr, AddrRange, GrowRequest, SubAllocError, SubAllocator, round_up};

/// Returns ascending ranges, each right behind the last unless told to leave a gap, and reuses what is released at
/// the end. Equal histories give equal answers, so two sources stay in step.
#[derive(Clone, Debug)]
pub struct Source {
    next: Cell<u64>,
    end: u64,
    refuse_grow: Cell<u32>,
    refuse_release: Cell<u32>,
    grows: Cell<u64>,
    releases: Cell<u64>,
}

impl Source {
    /// Creates a source over `bytes` bytes from `start`.
    pub fn new(start: u64, bytes: u64) -> Self {
        Self {
            next: Cell::new(start),
            end: start + bytes,
            refuse_grow: Cell::new(0),
            refuse_release: Cell::new(0),
            grows: Cell::new(0),
            releases: Cell::new(0),
        }
    }

    /// Refuses the next `calls` calls of `grow`.
    pub fn refuse_grow(&self, calls: u32) {
        self.refuse_grow.set(calls);
    }

    /// Refuses the next `calls` calls of `release`.
    pub fn refuse_release(&self, calls: u32) {
        self.refuse_release.set(calls);
    }

    /// Skips `bytes` bytes of addresses.
    pub fn skip(&self, bytes: u64) {
        self.next.set(self.next.get() + bytes);
    }

    /// Returns the number of ranges given so far.
    pub fn grows(&self) -> u64 {
        self.grows.get()
    }

    /// Returns the number of ranges released so far.
    pub fn releases(&self) -> u64 {
        self.releases.get()
    }
}

impl SubAllocator for Source {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        if let Some(left) = self.refuse_grow.get().checked_sub(1) {
            self.refuse_grow.set(left);
            return Err(SubAllocError);
        }
        let start = round_up(self.next.get(), request.align).ok_or(SubAllocError)?;
        let range = AddrRange::new(Addr::new(start), request.bytes).ok_or(SubAllocError)?;
        if range.end().get() > self.end {
            return Err(SubAllocError);
        }
        self.next.set(range.end().get());
        self.grows.set(self.grows.get() + 1);
        Ok(range)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        if let Some(left) = self.refuse_release.get().checked_sub(1) {
            self.refuse_release.set(left);
            return Err(SubAllocError);
        }
        if range.end().get() == self.next.get() {
            self.next.set(range.start().get());
        }
        self.releases.set(self.releases.get() + 1);
        Ok(())
    }
}
