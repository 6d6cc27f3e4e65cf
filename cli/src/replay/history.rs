//! The history of one replay, from which a page draws pictures: the address and lifetime of each
//! block, the memory held, and the driver calls.
//!
//! A tick is an event of the replay, counted from 1 over all passes. The history is recorded in the
//! sampled run, and only if a page is written.

use std::collections::{BTreeMap, HashMap};

use larder_trace::Trace;

use super::tape::TapeAction;
use super::{Contender, ContenderBlock};
use crate::snapshot::{Span, joined, without};

/// A tick, and the value from that tick until the next change.
pub(crate) type Change<T> = (u64, T);

/// A block that was served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) id: u32,
    pub(crate) bytes: u64,
    pub(crate) address: u64,
    pub(crate) from: u64,
    /// The tick of its free, if it was freed.
    pub(crate) to: Option<u64>,
}

/// Held memory that was mapped and unmapped together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldSpan {
    pub(crate) span: Span,
    pub(crate) from: u64,
    pub(crate) to: Option<u64>,
    /// Bytes that moved to new addresses, here or elsewhere, at the tick `from`.
    pub(crate) moved_bytes: u64,
}

/// A replay, by ticks.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ReplayHistory {
    /// The last tick: the number of events served.
    pub(crate) ticks: u64,
    /// Blocks in allocation order.
    pub(crate) blocks: Vec<Served>,
    /// Numbers of the steps that began.
    pub(crate) steps: Vec<Change<u32>>,
    pub(crate) reserved: Vec<Change<u64>>,
    /// The bytes that the plan in use needs; `None` while the contender follows no plan.
    pub(crate) planned: Vec<Change<Option<u64>>>,
    /// Driver calls so far. If the device does not map pages, allocations and releases of regions.
    pub(crate) calls: Vec<Change<u64>>,
    /// Streams of the blocks, if any is known.
    pub(crate) streams: Option<Vec<Option<u64>>>,
    /// The requests that the recorded program's own allocator refused: the event before each, and its
    /// bytes.
    pub(crate) refusals: Vec<Change<u64>>,
    /// Pieces of held memory; empty if the contender does not report its memory. Pieces mapped
    /// together are adjacent.
    pub(crate) held: Vec<HeldSpan>,
    /// Index in `blocks` of each live block, by place.
    live: HashMap<usize, usize>,
    /// Memory now held, in address order, with adjacent pieces joined.
    now: Vec<Span>,
    /// Pieces that are still held, as indices into `held`.
    open: Vec<usize>,
    reserved_bytes: u64,
    max_reserved_bytes: u64,
    creates_and_releases: (u64, u64),
}

impl ReplayHistory {
    /// Returns the first event after which the most memory is held.
    pub(crate) fn peak_at(&self) -> u64 {
        let changes = self.reserved.iter().rev();
        let most = changes.max_by_key(|(_, bytes)| *bytes);
        most.map_or(0, |(at, _)| *at)
    }

    /// Returns all bytes that were moved. Each piece of an event has the bytes of the whole event.
    pub(crate) fn moved_bytes(&self) -> u64 {
        let pieces = self.held.iter();
        let moved: BTreeMap<u64, u64> = pieces.map(|held| (held.from, held.moved_bytes)).collect();
        moved.values().sum()
    }

    /// Records an event that was served.
    pub(super) fn note(
        &mut self,
        act: TapeAction,
        slots: &[ContenderBlock],
        contender: &dyn Contender,
    ) {
        self.ticks += 1;
        let tick = self.ticks;
        match act {
            TapeAction::Alloc {
                id, place, bytes, ..
            } => {
                self.live.insert(place, self.blocks.len());
                self.blocks.push(Served {
                    id,
                    bytes,
                    address: slots[place].address,
                    from: tick,
                    to: None,
                });
            }
            TapeAction::Free { place } => {
                if let Some(index) = self.live.remove(&place) {
                    self.blocks[index].to = Some(tick);
                }
            }
            TapeAction::Step { number } => self.steps.push((tick, number)),
            TapeAction::StartOver => {}
        }
        self.note_held(contender);
        change(&mut self.planned, tick, contender.planned_bytes());
    }

    /// Finishes the history: adds the streams of the blocks and the refused requests from the trace.
    pub(super) fn of(mut self, trace: &Trace) -> Self {
        let streams = self.blocks.iter().map(|block| trace.stream(block.id));
        let streams: Vec<_> = streams.collect();
        self.streams = streams.iter().any(Option::is_some).then_some(streams);
        let refusals = trace.refusals().iter();
        let refusals = refusals.map(|refusal| (refusal.events_before, refusal.bytes));
        self.refusals = refusals.collect();
        self
    }

    fn note_held(&mut self, contender: &dyn Contender) {
        let tick = self.ticks;
        let after = contender.reserved_bytes();
        let before = std::mem::replace(&mut self.reserved_bytes, after);
        // More may have been held during the event, so its tick shows the maximum.
        let max = contender.max_reserved_bytes().unwrap_or(0);
        let most = if max > self.max_reserved_bytes {
            max
        } else {
            after
        };
        self.max_reserved_bytes = self.max_reserved_bytes.max(max);
        change(&mut self.reserved, tick, most.max(after));
        let (made, given) = (contender.driver_allocations(), contender.driver_frees());
        let pages = contender.driver_calls();
        let calls = pages.map_or(made + given, |calls| calls.total());
        let same = self.calls.last().map(|(_, calls)| *calls) == Some(calls);
        if same && before == after {
            return;
        }
        change(&mut self.calls, tick, calls);
        let created = made > self.creates_and_releases.0;
        let released = given > self.creates_and_releases.1;
        self.creates_and_releases = (made, given);
        // If memory is also released at this tick, created and moved bytes cannot be distinguished.
        let made_bytes = match (created, released) {
            (false, _) => Some(0),
            (true, false) => Some(after.saturating_sub(before)),
            (true, true) => None,
        };
        if let Some(held) = contender.held() {
            self.hold(joined(&held), pages.and(made_bytes));
        }
    }

    /// Sets the memory held from now on. Without `made_bytes`, no bytes count as moved.
    fn hold(&mut self, held: Vec<Span>, made_bytes: Option<u64>) {
        let gone = without(&self.now, &held);
        let come = without(&held, &self.now);
        for span in &gone {
            self.end(span);
        }
        let come_bytes: u64 = come.iter().map(|span| span.end - span.start).sum();
        let moved_bytes = made_bytes.map_or(0, |made| come_bytes.saturating_sub(made));
        for span in come {
            self.begin(HeldSpan {
                span,
                from: self.ticks,
                to: None,
                moved_bytes,
            });
        }
        self.now = held;
    }

    fn begin(&mut self, piece: HeldSpan) {
        self.open.push(self.held.len());
        self.held.push(piece);
    }

    /// Ends the pieces of held memory in a span. The rest of a partly covered piece stays.
    fn end(&mut self, gone: &Span) {
        for index in std::mem::take(&mut self.open) {
            let piece = self.held[index].clone();
            let span = gone.start.max(piece.span.start)..gone.end.min(piece.span.end);
            if span.is_empty() {
                self.open.push(index);
                continue;
            }
            for rest in [piece.span.start..span.start, span.end..piece.span.end] {
                if !rest.is_empty() {
                    self.begin(HeldSpan {
                        span: rest,
                        ..piece.clone()
                    });
                }
            }
            self.held[index].span = span;
            self.held[index].to = Some(self.ticks);
        }
    }
}

/// Appends a value if it differs from the last one.
fn change<T: PartialEq>(changes: &mut Vec<Change<T>>, tick: u64, value: T) {
    if changes.last().is_none_or(|(_, last)| *last != value) {
        changes.push((tick, value));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CONTENDERS, Options, replay};
    use super::*;

    const PAGE: u64 = 2 << 20;

    /// Returns the history of a replay that allocates eight blocks of one page each, frees every
    /// other block, and then allocates a block of four pages.
    fn history(allocator: &str, device_bytes: Option<u64>) -> ReplayHistory {
        let mut text: String = (0..8).map(|id| format!("a {id} {PAGE}\n")).collect();
        text.extend((0..4).map(|id| format!("f {}\n", 2 * id)));
        text.push_str(&format!("a 8 {}\n", 4 * PAGE));
        let trace = larder_trace::read("t.trace".as_ref(), text.as_bytes()).unwrap();
        let spec = CONTENDERS.iter().find(|spec| spec.name == allocator);
        let options = Options {
            history: true,
            ..Options::new(device_bytes)
        };
        let outcome = replay(spec.unwrap(), &trace, &options).unwrap();
        outcome.history.unwrap()
    }

    #[test]
    fn pages_that_move_are_told_from_pages_that_are_new() {
        let history = history("larder", Some(8 * PAGE));
        assert_eq!(history.reserved.last(), Some(&(8, 8 * PAGE)));
        let moved: Vec<_> = history
            .held
            .iter()
            .filter(|held| held.moved_bytes > 0)
            .collect();
        assert!(
            moved.iter().all(|held| (held.from, held.to) == (13, None)),
            "{moved:?}"
        );
        let bytes: u64 = moved
            .iter()
            .map(|held| held.span.end - held.span.start)
            .sum();
        assert_eq!((bytes, moved[0].moved_bytes), (4 * PAGE, 4 * PAGE));
        for tick in 1..=13 {
            let open = |held: &&HeldSpan| held.from <= tick && held.to.is_none_or(|to| tick < to);
            let spans = history.held.iter().filter(open).map(|held| &held.span);
            let sum: u64 = spans.map(|span| span.end - span.start).sum();
            assert_eq!(sum, tick.min(8) * PAGE, "tick {tick}");
        }
    }

    #[test]
    fn nothing_moves_where_no_pages_are_mapped() {
        let history = history("larder-no-moves", None);
        assert!(!history.held.is_empty());
        assert!(history.held.iter().all(|held| held.moved_bytes == 0));
        assert_eq!(history.reserved.last(), Some(&(13, 12 * PAGE)));
        let ends: Vec<_> = history.blocks.iter().map(|block| block.to).collect();
        assert_eq!(ends[..3], [Some(9), None, Some(10)]);
        assert_eq!(ends[8], None);
    }
}
