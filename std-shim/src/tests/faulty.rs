//! [`Faulty`]: the native system with planned faults. It counts calls, refuses those in the plan
//! and those above its limits, and records every call that breaks the heap's side of the [`Os`]
//! contract. Its pages may be longer than the native ones, so that systems with other pages are
//! tested, too.

mod below;

use std::collections::BTreeSet;
use std::ops::Range;
use std::ptr::NonNull;

pub(super) use below::Below;
use larder_core::Locked;

use crate::os::{Moved, Native, Os};
use crate::thread::wait::Sleep;

/// A call that can be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Reserve,
    Commit,
    Decommit,
    Discard,
    Advise,
    Look,
    Move,
}

/// Number of kinds of calls.
pub(super) const CALLS: usize = 7;

impl Call {
    pub(super) const ALL: [Self; CALLS] = [
        Self::Reserve,
        Self::Commit,
        Self::Decommit,
        Self::Discard,
        Self::Advise,
        Self::Look,
        Self::Move,
    ];
}

/// The calls that are refused. Counting starts with 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    Willing,
    /// The n-th call of a kind.
    Once(Call, usize),
    /// The n-th call of a kind and all later ones.
    From(Call, usize),
    /// The n-th call of any kind and all later ones.
    AllFrom(usize),
    /// One call in `one_in`, by a seed.
    Random {
        seed: u64,
        one_in: u64,
    },
}

/// What a system is like, apart from its faults.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    /// The result of a move that the plan refuses.
    pub(super) refused_move: Moved,
    pub(super) has_barrier: bool,
    /// Whether committed memory counts as used.
    pub(super) counts_commits: bool,
    /// Whether the process has a filter of system calls.
    pub(super) is_filtered: bool,
    pub(super) has_huge_pages: bool,
    pub(super) memory_limit: Option<u64>,
}

/// A reserved range.
struct Reserved {
    start: usize,
    bytes: usize,
    /// Whether each page is committed.
    pages: Vec<bool>,
}

struct State {
    plan: Plan,
    page_bytes: usize,
    ranges: Vec<Reserved>,
    calls: [usize; CALLS],
    refusals: usize,
    random: u64,
    max_reserved: usize,
    max_committed: usize,
    manner: Manner,
    reads_of_limit: usize,
    /// Huge pages that were split, and the number of splits.
    split: BTreeSet<usize>,
    splits: usize,
    now_ms: u64,
    complaints: Vec<String>,
}

/// The native system with faults. The lock is the heap's own kind, which the thread sanitizer sees.
pub(super) struct Faulty(Locked<State, Sleep>);

impl Faulty {
    pub(super) fn new(plan: Plan) -> Self {
        Self::with_pages(plan, Native.page_bytes())
    }

    /// Creates a system whose pages are `page_bytes` long, or as long as the native ones if those
    /// are longer.
    pub(super) fn with_pages(plan: Plan, page_bytes: usize) -> Self {
        let seed = match plan {
            Plan::Random { seed, .. } => seed,
            _ => 0,
        };
        Self(Locked::new(State {
            plan,
            page_bytes: page_bytes.max(Native.page_bytes()),
            ranges: Vec::new(),
            calls: [0; CALLS],
            refusals: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            max_reserved: usize::MAX,
            max_committed: usize::MAX,
            manner: Manner {
                refused_move: Moved::Refused,
                has_barrier: true,
                counts_commits: false,
                is_filtered: false,
                has_huge_pages: true,
                memory_limit: None,
            },
            reads_of_limit: 0,
            split: BTreeSet::new(),
            splits: 0,
            now_ms: 0,
            complaints: Vec::new(),
        }))
    }

    /// Refuses calls that would bring the reserved or committed bytes above these.
    pub(super) fn limit(&self, max_reserved: usize, max_committed: usize) {
        self.0.with(|state| {
            state.max_reserved = max_reserved;
            state.max_committed = max_committed;
        });
    }

    /// Changes what the system is like.
    pub(super) fn be(&self, change: impl FnOnce(&mut Manner)) {
        self.0.with(|state| change(&mut state.manner));
    }

    /// Sets the memory limit of the process.
    pub(super) fn limit_memory(&self, bytes: usize) {
        self.be(|manner| manner.memory_limit = Some(bytes as u64));
    }

    /// Returns how often the limit was read.
    pub(super) fn reads_of_limit(&self) -> usize {
        self.0.with(|state| state.reads_of_limit)
    }

    /// Returns how many huge pages were split.
    pub(super) fn splits(&self) -> usize {
        self.0.with(|state| state.splits)
    }

    /// Advances the clock.
    pub(super) fn pass(&self, ms: u64) {
        self.0.with(|state| state.now_ms += ms);
    }

    /// Switches to another plan; removes the limits.
    pub(super) fn follow(&self, plan: Plan) {
        self.limit(usize::MAX, usize::MAX);
        self.0.with(|state| state.plan = plan);
    }

    pub(super) fn calls(&self, call: Call) -> usize {
        self.0.with(|state| state.calls[call as usize])
    }

    pub(super) fn refusals(&self) -> usize {
        self.0.with(|state| state.refusals)
    }

    pub(super) fn reserved_bytes(&self) -> usize {
        self.0.with(|state| state.reserved_bytes())
    }

    pub(super) fn committed_bytes(&self) -> usize {
        self.0.with(|state| state.committed_bytes())
    }

    /// Returns the length of the reserved range that contains an address.
    pub(super) fn range_bytes(&self, addr: usize) -> usize {
        self.0.with(|state| {
            let at = state.locate(addr, 1);
            at.map_or(0, |(index, _)| state.ranges[index].bytes)
        })
    }

    /// Returns the broken promises so far.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.0.with(|state| state.complaints.clone())
    }

    /// Releases everything to the kernel.
    ///
    /// # Safety
    /// No range is used any more.
    pub(super) unsafe fn release_all(&self) {
        self.0.with(|state| {
            for range in state.ranges.drain(..) {
                let start = std::ptr::with_exposed_provenance_mut(range.start);
                // SAFETY: the whole range of one `reserve`; unused, says the caller.
                unsafe { Native.release(start, range.bytes) };
            }
        });
    }
}

impl State {
    fn reserved_bytes(&self) -> usize {
        self.ranges.iter().map(|range| range.bytes).sum()
    }

    fn committed_bytes(&self) -> usize {
        let pages = self.ranges.iter().flat_map(|range| &range.pages);
        pages.filter(|committed| **committed).count() * self.page_bytes
    }

    /// Returns the reserved range that contains this one, and its pages in it.
    fn locate(&self, start: usize, bytes: usize) -> Option<(usize, Range<usize>)> {
        let page = self.page_bytes;
        self.ranges.iter().enumerate().find_map(|(index, range)| {
            let from = start.checked_sub(range.start)?;
            let to = from.checked_add(bytes)?;
            (to <= range.bytes).then_some((index, from / page..to.div_ceil(page)))
        })
    }

    fn complain(&mut self, what: &str, start: usize, bytes: usize) {
        self.complaints
            .push(format!("{what}: {bytes:#x} bytes at {start:#x}"));
    }

    /// Counts a call. Returns whether it is refused.
    fn refuses(&mut self, call: Call, bytes: usize) -> bool {
        self.calls[call as usize] += 1;
        let (nth, of_all) = (self.calls[call as usize], self.calls.iter().sum::<usize>());
        let planned = match self.plan {
            Plan::Willing => false,
            Plan::Once(kind, n) => kind == call && nth == n,
            Plan::From(kind, n) => kind == call && nth >= n,
            Plan::AllFrom(n) => of_all >= n,
            Plan::Random { one_in, .. } => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                (self.random >> 20).is_multiple_of(one_in)
            }
        };
        let above = match call {
            Call::Reserve => bytes > self.max_reserved.saturating_sub(self.reserved_bytes()),
            Call::Commit => bytes > self.max_committed.saturating_sub(self.committed_bytes()),
            _ => false,
        };
        let refused = planned || above;
        self.refusals += usize::from(refused);
        refused
    }

    /// Checks that a call names whole pages of a reserved range that are all committed, or all not;
    /// records a complaint otherwise.
    fn check(&mut self, call: Call, start: usize, bytes: usize) -> Option<(usize, Range<usize>)> {
        let page = self.page_bytes;
        if bytes == 0 || !bytes.is_multiple_of(page) || !start.is_multiple_of(page) {
            self.complain(&format!("{call:?} of broken pages"), start, bytes);
        }
        let Some((index, pages)) = self.locate(start, bytes) else {
            self.complain(
                &format!("{call:?} outside of what is reserved"),
                start,
                bytes,
            );
            return None;
        };
        let wanted = call != Call::Commit;
        if self.ranges[index].pages[pages.clone()]
            .iter()
            .any(|is| *is != wanted)
        {
            let now = if wanted { "not committed" } else { "committed" };
            self.complain(&format!("{call:?} of what is {now}"), start, bytes);
        }
        Some((index, pages))
    }

    /// Returns the first half of a range, in whole pages, which is the part that a kernel may have
    /// finished before it failed. Every other refusal does nothing at all.
    fn half(&self, bytes: usize) -> usize {
        let page = self.page_bytes;
        if self.refusals.is_multiple_of(2) {
            bytes / 2 / page * page
        } else {
            0
        }
    }

    fn reserve(
        &mut self,
        bytes: usize,
        align: usize,
        native: impl FnOnce(usize, usize) -> Option<NonNull<u8>>,
    ) -> Option<NonNull<u8>> {
        let page = self.page_bytes;
        if bytes == 0 || !bytes.is_multiple_of(page) || !align.is_power_of_two() {
            self.complain("Reserve of broken pages", align, bytes);
        }
        if self.refuses(Call::Reserve, bytes) {
            return None;
        }
        let found = native(bytes, align.max(page));
        let Some(start) = found else {
            self.refusals += 1;
            return None;
        };
        self.ranges.push(Reserved {
            start: start.as_ptr().expose_provenance(),
            bytes,
            pages: vec![false; bytes.div_ceil(page)],
        });
        found
    }

    /// # Safety
    /// The conditions of [`Os::release`].
    unsafe fn release(&mut self, start: *mut u8, bytes: usize) {
        let is_it = |range: &Reserved| range.start == start.addr() && range.bytes == bytes;
        let Some(index) = self.ranges.iter().position(is_it) else {
            return self.complain("Release of what is not one range", start.addr(), bytes);
        };
        self.ranges.swap_remove(index);
        // SAFETY: the range of one `reserve`; unused, says the caller.
        unsafe { Native.release(start, bytes) };
    }

    /// # Safety
    /// The conditions of [`Os::commit`].
    unsafe fn commit(&mut self, start: *mut u8, bytes: usize) -> bool {
        let Some((index, pages)) = self.check(Call::Commit, start.addr(), bytes) else {
            return false;
        };
        let refused = self.refuses(Call::Commit, bytes);
        let done = if refused { self.half(bytes) } else { bytes };
        // SAFETY: lies in a reserved range.
        let went_well = done == 0 || unsafe { Native.commit(start, done) };
        if refused || !went_well {
            self.refusals += usize::from(!refused);
            return false;
        }
        self.ranges[index].pages[pages].fill(true);
        true
    }

    /// # Safety
    /// The conditions of [`Os::decommit`].
    unsafe fn decommit(&mut self, start: *mut u8, bytes: usize) -> bool {
        let Some((index, pages)) = self.check(Call::Decommit, start.addr(), bytes) else {
            return false;
        };
        if self.refuses(Call::Decommit, bytes) {
            return false;
        }
        // SAFETY: lies in a reserved range; unused, says the caller.
        if !unsafe { Native.decommit(start, bytes) } {
            self.refusals += 1;
            return false;
        }
        self.ranges[index].pages[pages].fill(false);
        self.may_be_huge(start.addr(), bytes);
        true
    }

    /// # Safety
    /// The conditions of [`Os::discard`].
    unsafe fn discard(&mut self, start: *mut u8, bytes: usize) -> bool {
        if self.check(Call::Discard, start.addr(), bytes).is_none() {
            return false;
        }
        let refused = self.refuses(Call::Discard, bytes);
        let done = if refused { self.half(bytes) } else { bytes };
        // SAFETY: committed; unused, says the caller.
        let went_well = done == 0 || unsafe { Native.discard(start, done) };
        self.refusals += usize::from(!refused && !went_well);
        self.may_be_huge(start.addr(), done);
        !refused && went_well
    }

    /// Unmarks huge pages that were discarded whole: they may be faulted again, and are split
    /// again.
    fn may_be_huge(&mut self, start: usize, bytes: usize) {
        let whole = start.div_ceil(HUGE_BYTES)..(start + bytes) / HUGE_BYTES;
        self.split.retain(|page| !whole.contains(page));
    }
}

const HUGE_BYTES: usize = 2 << 20;

impl State {
    /// # Safety
    /// The conditions of [`Os::advise_huge`].
    unsafe fn advise_huge(&mut self, start: *mut u8, bytes: usize) -> bool {
        if self.check(Call::Advise, start.addr(), bytes).is_none() {
            return false;
        }
        // SAFETY: committed.
        !self.refuses(Call::Advise, bytes) && unsafe { Native.advise_huge(start, bytes) }
    }

    /// # Safety
    /// The conditions of [`Os::move_pages`].
    unsafe fn move_pages(&mut self, from: *mut u8, to: *mut u8, bytes: usize) -> Moved {
        let known = [from, to].map(|start| self.check(Call::Move, start.addr(), bytes).is_some());
        if known != [true; 2] {
            return Moved::Refused;
        }
        if from.addr().abs_diff(to.addr()) < bytes {
            self.complain("Move onto itself", from.addr(), bytes);
        }
        if !self.refuses(Call::Move, bytes) {
            // SAFETY: both are committed, and the caller says that nothing in the second is used.
            return unsafe { Native.move_pages(from, to, bytes) };
        }
        let refused = self.manner.refused_move;
        if refused != Moved::Unfit {
            // SAFETY: nothing in it is used. To be touched never again, or to come with new pages.
            assert!(unsafe { Native.decommit(to, bytes) });
        }
        // SAFETY: nothing in it is used.
        assert!(refused != Moved::Refused || unsafe { Native.commit(to, bytes) });
        refused
    }

    /// # Safety
    /// The conditions of [`Os::resident_bytes`].
    unsafe fn resident_bytes(&mut self, start: *mut u8, bytes: usize) -> Option<usize> {
        self.check(Call::Look, start.addr(), bytes)?;
        if self.refuses(Call::Look, bytes) {
            return None;
        }
        // SAFETY: committed.
        unsafe { Native.resident_bytes(start, bytes) }
    }
}
