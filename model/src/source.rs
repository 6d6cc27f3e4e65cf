//! A sub-allocator that records its calls and misbehaves on request.

use std::cell::{Cell, RefCell};

use larder_core::{Addr, AddrRange, GrowRequest, SubAllocError, SubAllocator, round_up};

/// A call that reached the sub-allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Bytes requested and granted.
    Grow(u64),
    /// Bytes requested and refused.
    GrowRefused(u64),
    /// Bytes released.
    Release(u64),
    /// Bytes whose release was refused.
    ReleaseRefused(u64),
}

impl Call {
    /// Returns the bytes of the call.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Grow(bytes) | Self::GrowRefused(bytes) => bytes,
            Self::Release(bytes) | Self::ReleaseRefused(bytes) => bytes,
        }
    }
}

/// A function that returns the start and the bytes of the range for a number of requested bytes.
pub type Broken = fn(u64) -> (u64, u64);

/// A sub-allocator of ascending ranges. Each range follows directly on the last unless gaps are requested, and
/// addresses released at the end are used again. Equal histories give equal answers, so two sources stay in step.
#[derive(Clone, Debug)]
pub struct Source {
    next: Cell<u64>,
    end: u64,
    gap_bytes: Cell<u64>,
    capacity_bytes: Cell<u64>,
    refuse_grow: Cell<u32>,
    refuse_release: Cell<u32>,
    broken: Cell<Option<Broken>>,
    /// The ranges in use as `(start, end)`, ascending, neither overlapping nor adjacent.
    out: RefCell<Vec<(u64, u64)>>,
    log: RefCell<Vec<Call>>,
}

impl Source {
    /// Creates a source over `bytes` bytes from `start`.
    pub fn new(start: u64, bytes: u64) -> Self {
        Self {
            next: Cell::new(start),
            end: start + bytes,
            gap_bytes: Cell::new(0),
            capacity_bytes: Cell::new(u64::MAX),
            refuse_grow: Cell::new(0),
            refuse_release: Cell::new(0),
            broken: Cell::new(None),
            out: RefCell::default(),
            log: RefCell::default(),
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

    /// Leaves `bytes` bytes in front of every range from now on. If `bytes` is above 0, no address is granted twice, so
    /// that no range is mistaken for an earlier one.
    pub fn leave_gaps(&self, bytes: u64) {
        self.gap_bytes.set(bytes);
    }

    /// Sets the maximum number of bytes in use.
    pub fn set_capacity(&self, bytes: u64) {
        self.capacity_bytes.set(bytes);
    }

    /// From now on, answers with the ranges of `broken`, which may break any promise. With `None`, keeps the promises
    /// again.
    pub fn answer_with(&self, broken: Option<Broken>) {
        self.broken.set(broken);
    }

    /// Marks a range that was not requested as in use, so that it can be released.
    ///
    /// # Panics
    /// If a part of it is already in use.
    pub fn hand_out(&self, range: AddrRange) {
        let (mut start, mut end) = (range.start().get(), range.end().get());
        let mut out = self.out.borrow_mut();
        let is_out = out.iter().any(|o| o.0 < end && start < o.1);
        assert!(!is_out, "an address was given twice");
        out.retain(|o| {
            let touches = o.1 == start || o.0 == end;
            if touches {
                (start, end) = (start.min(o.0), end.max(o.1));
            }
            !touches
        });
        out.push((start, end));
        out.sort_unstable();
    }

    /// Returns the bytes in use.
    pub fn out_bytes(&self) -> u64 {
        self.out
            .borrow()
            .iter()
            .map(|(start, end)| end - start)
            .sum()
    }

    /// Returns the calls since the log was last taken.
    pub fn take_log(&self) -> Vec<Call> {
        self.log.take()
    }

    /// Returns the number of ranges granted since the last [`take_log`](Self::take_log).
    pub fn grows(&self) -> u64 {
        self.count(|call| matches!(call, Call::Grow(_)))
    }

    /// Returns the number of ranges released since the last [`take_log`](Self::take_log).
    pub fn releases(&self) -> u64 {
        self.count(|call| matches!(call, Call::Release(_)))
    }

    fn count(&self, is: impl Fn(&Call) -> bool) -> u64 {
        let log = self.log.borrow();
        log.iter().filter(|call| is(call)).count() as u64
    }

    fn record(&self, call: Call) {
        let mut log = self.log.borrow_mut();
        log.push(call);
        assert!(log.len() < 100_000, "the same is asked for again and again");
    }

    fn give(&self, request: GrowRequest) -> Option<AddrRange> {
        if let Some(broken) = self.broken.get() {
            let (start, bytes) = broken(request.bytes);
            return AddrRange::new(Addr::new(start), bytes);
        }
        if let Some(left) = self.refuse_grow.get().checked_sub(1) {
            self.refuse_grow.set(left);
            return None;
        }
        if request.bytes > self.capacity_bytes.get().saturating_sub(self.out_bytes()) {
            return None;
        }
        let start = round_up(self.next.get() + self.gap_bytes.get(), request.align)?;
        let range = AddrRange::new(Addr::new(start), request.bytes)?;
        if range.end().get() > self.end {
            return None;
        }
        self.next.set(range.end().get());
        self.hand_out(range);
        Some(range)
    }
}

impl SubAllocator for Source {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let bytes = request.bytes;
        assert!(bytes > 0, "nobody asks for nothing");
        let given = self.give(request);
        self.record(match given {
            Some(_) => Call::Grow(bytes),
            None => Call::GrowRefused(bytes),
        });
        given.ok_or(SubAllocError)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let (start, end) = (range.start().get(), range.end().get());
        if let Some(left) = self.refuse_release.get().checked_sub(1) {
            self.refuse_release.set(left);
            self.record(Call::ReleaseRefused(range.bytes()));
            return Err(SubAllocError);
        }
        self.record(Call::Release(range.bytes()));
        if self.broken.get().is_some() {
            return Ok(());
        }
        if end == self.next.get() && self.gap_bytes.get() == 0 {
            self.next.set(start);
        }
        let mut out = self.out.borrow_mut();
        let held = out.iter().position(|o| o.0 <= start && end <= o.1);
        let (from, to) = out.remove(held.expect("only what is out comes back"));
        out.extend([(from, start), (end, to)].into_iter().filter(|o| o.0 < o.1));
        out.sort_unstable();
        Ok(())
    }
}
