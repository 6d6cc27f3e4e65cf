//! A sub-allocator that logs its calls and refuses on demand.

use std::cell::{Cell, RefCell};

use larder_core::{Addr, AddrRange, GrowRequest, SubAllocError, SubAllocator};

use super::KIB;

/// A call that reached the sub-allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Bytes requested and given.
    Grow(u64),
    /// Bytes requested and refused.
    GrowRefused(u64),
    /// Bytes taken back.
    Release(u64),
    /// Bytes that were to go back and were refused.
    ReleaseRefused(u64),
}

type Answer = Box<dyn FnMut(GrowRequest) -> Result<AddrRange, SubAllocError>>;

/// A sub-allocator whose addresses ascend, with a gap between any two answers unless it is
/// `contiguous`. Never gives an address twice, so that no region is ever taken for a former one.
pub struct Source {
    next: Cell<u64>,
    pub gap_bytes: Cell<u64>,
    /// Gives the requested address if it is free.
    pub contiguous: Cell<bool>,
    /// Most bytes out at a time.
    pub capacity_bytes: Cell<u64>,
    /// Refuses that many grow calls.
    pub refuse_grows: Cell<u32>,
    /// Refuses that many release calls.
    pub refuse_releases: Cell<u32>,
    /// Answers instead of the rules above, without any check.
    answer: RefCell<Option<Answer>>,
    /// The ranges in use: disjoint, not adjacent, `(start, end)`, ascending.
    out: RefCell<Vec<(u64, u64)>>,
    log: RefCell<Vec<Call>>,
}

impl Source {
    pub fn new() -> Self {
        Self::from_address(0x7000_0000_0000)
    }

    pub fn from_address(first: u64) -> Self {
        Self {
            next: Cell::new(first),
            gap_bytes: Cell::new(64 * KIB),
            contiguous: Cell::new(false),
            capacity_bytes: Cell::new(u64::MAX),
            refuse_grows: Cell::new(0),
            refuse_releases: Cell::new(0),
            answer: RefCell::new(None),
            out: RefCell::new(Vec::new()),
            log: RefCell::new(Vec::new()),
        }
    }

    /// Creates a source that gives each range behind the last one.
    pub fn contiguous() -> Self {
        let source = Self::new();
        source.contiguous.set(true);
        source
    }

    /// Answers by `f` from now on; `None` from the start of the program on means by rule.
    pub fn answer_by(
        &self,
        f: impl FnMut(GrowRequest) -> Result<AddrRange, SubAllocError> + 'static,
    ) {
        *self.answer.borrow_mut() = Some(Box::new(f));
    }

    pub fn answer_by_rule(&self) {
        *self.answer.borrow_mut() = None;
    }

    /// Returns the calls since the last call of this.
    pub fn take_log(&self) -> Vec<Call> {
        self.log.take()
    }

    pub fn out_bytes(&self) -> u64 {
        self.out
            .borrow()
            .iter()
            .map(|(start, end)| end - start)
            .sum()
    }

    fn is_out(&self, start: u64, end: u64) -> bool {
        self.out.borrow().iter().any(|o| o.0 < end && start < o.1)
    }

    /// Lends a range that was not requested, so that it can be released.
    pub fn hand_out(&self, range: AddrRange) {
        self.give(range);
    }

    fn give(&self, range: AddrRange) {
        let (mut start, mut end) = (range.start().get(), range.end().get());
        assert!(!self.is_out(start, end), "the fake gave an address twice");
        let mut out = self.out.borrow_mut();
        out.retain(|o| {
            let touches = o.1 == start || o.0 == end;
            if touches {
                start = start.min(o.0);
                end = end.max(o.1);
            }
            !touches
        });
        out.push((start, end));
        out.sort_unstable();
    }

    fn by_rule(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        if self.refuse_grows.get() > 0 {
            self.refuse_grows.set(self.refuse_grows.get() - 1);
            return Err(SubAllocError);
        }
        if request.bytes > self.capacity_bytes.get().saturating_sub(self.out_bytes()) {
            return Err(SubAllocError);
        }
        let wished = request.at.map(Addr::get).filter(|at| {
            self.contiguous.get() && !self.is_out(*at, at.saturating_add(request.bytes))
        });
        let align = request.align.bytes();
        let start = wished
            .unwrap_or_else(|| (self.next.get() + self.gap_bytes.get()).next_multiple_of(align));
        let range = AddrRange::new(Addr::new(start), request.bytes).ok_or(SubAllocError)?;
        self.next.set(self.next.get().max(range.end().get()));
        self.give(range);
        Ok(range)
    }
}

impl SubAllocator for Source {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        assert!(request.bytes > 0, "nobody asks for nothing");
        assert_eq!(request.bytes % request.align.bytes(), 0, "whole granules");
        let answer = match self.answer.borrow_mut().as_mut() {
            Some(answer) => answer(request),
            None => self.by_rule(request),
        };
        self.log.borrow_mut().push(match answer {
            Ok(_) => Call::Grow(request.bytes),
            Err(_) => Call::GrowRefused(request.bytes),
        });
        answer
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let (start, end) = (range.start().get(), range.end().get());
        if self.refuse_releases.get() > 0 {
            self.refuse_releases.set(self.refuse_releases.get() - 1);
            self.log
                .borrow_mut()
                .push(Call::ReleaseRefused(range.bytes()));
            return Err(SubAllocError);
        }
        self.log.borrow_mut().push(Call::Release(range.bytes()));
        if self.answer.borrow().is_some() {
            return Ok(());
        }
        let mut out = self.out.borrow_mut();
        let held = out.iter().position(|o| o.0 <= start && end <= o.1);
        let (from, to) = out.remove(held.expect("only what is out comes back"));
        out.extend([(from, start), (end, to)].into_iter().filter(|o| o.0 < o.1));
        out.sort_unstable();
        Ok(())
    }
}
