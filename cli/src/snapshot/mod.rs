//! A replay as a PyTorch memory snapshot, for PyTorch's viewer: the memory held at the end, and its
//! history.
//!
//! The fields are those of `torch.cuda.memory._snapshot()`. Held memory is one *segment* for each
//! run of addresses without a gap, which grows and shrinks like PyTorch's expandable segments. An
//! allocation has the number of its event in the trace in place of a stack.

mod pickle;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;

use pickle::PickleWriter;

/// The stream of all entries. It is not 0: if everything is on stream 0, the viewer drops the
/// stream of the entries but not that of the segments, and then fails when part of a segment is
/// unmapped.
const STREAM: u64 = 1;

/// A range of addresses.
pub(crate) type Span = Range<u64>;

/// A replay, recorded for the viewer.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    entries: Vec<Entry>,
    /// Live blocks by address.
    live: BTreeMap<u64, LiveBlock>,
    /// Pieces of held memory in address order. Each block is one piece.
    pieces: Vec<Span>,
    /// Held memory, with adjacent pieces joined.
    held: Vec<Span>,
}

#[derive(Debug, Clone, Copy)]
struct LiveBlock {
    requested_bytes: u64,
    place: TracePosition,
}

/// An event of the trace and a pass, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TracePosition {
    pub(crate) event: u64,
    pub(crate) pass: u32,
}

/// The action of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentMap,
    SegmentUnmap,
    Oom,
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Oom => "oom",
        }
    }
}

/// An entry of the history.
#[derive(Debug, Clone, Copy)]
struct Entry {
    action: Action,
    /// The address; for a refusal, the bytes that the device has left.
    address: u64,
    bytes: u64,
    place: TracePosition,
}

impl Snapshot {
    /// Records an allocation.
    pub(crate) fn alloc(&mut self, address: u64, requested_bytes: u64, place: TracePosition) {
        let block = LiveBlock {
            requested_bytes,
            place,
        };
        self.live.insert(address, block);
        self.push(Action::Alloc, address, requested_bytes, place);
    }

    /// Records a free of the block at an address, completed immediately because a replay on one
    /// stream does not wait.
    pub(crate) fn free(&mut self, address: u64, place: TracePosition) {
        if let Some(block) = self.live.remove(&address) {
            for action in [Action::FreeRequested, Action::FreeCompleted] {
                self.push(action, address, block.requested_bytes, place);
            }
        }
    }

    /// Records a refusal.
    pub(crate) fn refuse(&mut self, bytes: u64, left_bytes: u64, place: TracePosition) {
        self.push(Action::Oom, left_bytes, bytes, place);
    }

    /// Sets the memory held now, as pieces in address order, and records the changes.
    pub(crate) fn hold(&mut self, pieces: Vec<Span>, place: TracePosition) {
        let held = joined(&pieces);
        for (action, changed) in [
            (Action::SegmentUnmap, without(&self.held, &held)),
            (Action::SegmentMap, without(&held, &self.held)),
        ] {
            for span in changed {
                self.push(action, span.start, span.end - span.start, place);
            }
        }
        self.held = held;
        self.pieces = pieces;
    }

    /// Returns the bytes held.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.iter().map(|span| span.end - span.start).sum()
    }

    /// Returns whether every live block lies in held memory.
    pub(crate) fn holds_all_blocks(&self) -> bool {
        self.live.iter().all(|(&address, block)| {
            let above = self.held.partition_point(|span| span.end <= address);
            let span = self.held.get(above);
            span.is_some_and(|span| {
                span.start <= address && block.requested_bytes <= span.end - address
            })
        })
    }

    fn push(&mut self, action: Action, address: u64, bytes: u64, place: TracePosition) {
        self.entries.push(Entry {
            action,
            address,
            bytes,
            place,
        });
    }

    /// Writes the snapshot as a pickle.
    pub(crate) fn write(&self, trace: &str, allocator: &str, out: impl Write) -> io::Result<()> {
        let mut out = PickleWriter::begin(out)?;
        out.dict(|out| {
            out.text("segments")?;
            out.list(self.held.iter(), |out, span| self.segment(out, span, trace))?;
            out.text("device_traces")?;
            out.list([&self.entries].into_iter(), |out, entries| {
                out.list(entries.iter(), |out, entry| entry.write(out, trace))
            })?;
            out.text("allocator_settings")?;
            out.dict(|out| {
                out.text_at("allocator", allocator)?;
                out.text_at("trace", trace)
            })?;
            out.text("external_annotations")?;
            out.empty_list()
        })?;
        out.end()
    }

    fn segment<W: Write>(
        &self,
        out: &mut PickleWriter<W>,
        span: &Span,
        trace: &str,
    ) -> io::Result<()> {
        let blocks = self.blocks(span);
        let used = || blocks.iter().filter(|block| block.live.is_some());
        let used_bytes = used().map(|block| block.bytes).sum();
        let requested_bytes = used().map(|block| block.requested_bytes()).sum();
        out.dict(|out| {
            out.number_at("device", 0)?;
            out.number_at("address", span.start)?;
            out.number_at("total_size", span.end - span.start)?;
            out.number_at("allocated_size", used_bytes)?;
            out.number_at("active_size", used_bytes)?;
            out.number_at("requested_size", requested_bytes)?;
            out.number_at("stream", STREAM)?;
            out.text_at("segment_type", "large")?;
            out.text("segment_pool_id")?;
            out.pair(0, 0)?;
            out.text("is_expandable")?;
            out.truth(true)?;
            out.text("frames")?;
            out.empty_list()?;
            out.text("blocks")?;
            out.list(blocks.iter(), |out, block| block.write(out, trace))
        })
    }

    /// Returns the blocks that make up a segment, without a gap.
    fn blocks(&self, segment: &Span) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut at = segment.start;
        let mut live = self.live.range(segment.clone()).peekable();
        while let Some((&address, &block)) = live.next() {
            let next = live.peek().map_or(segment.end, |(next, _)| **next);
            blocks.extend(Block::free(at, address));
            // The granted size is known only if the block is a piece of its own.
            let piece = self
                .pieces
                .binary_search_by_key(&address, |piece| piece.start);
            let piece_end = piece.map_or(0, |index| self.pieces[index].end);
            let end = address + block.requested_bytes;
            let end = if piece_end <= next {
                end.max(piece_end)
            } else {
                end
            };
            blocks.push(Block {
                address,
                bytes: end - address,
                live: Some(block),
            });
            at = end;
        }
        blocks.extend(Block::free(at, segment.end));
        blocks
    }
}

/// A piece of a segment.
struct Block {
    address: u64,
    bytes: u64,
    live: Option<LiveBlock>,
}

impl Block {
    fn free(start: u64, end: u64) -> Option<Self> {
        (start < end).then(|| Self {
            address: start,
            bytes: end - start,
            live: None,
        })
    }

    fn requested_bytes(&self) -> u64 {
        self.live.map_or(0, |block| block.requested_bytes)
    }

    fn write<W: Write>(&self, out: &mut PickleWriter<W>, trace: &str) -> io::Result<()> {
        let state = if self.live.is_some() {
            "active_allocated"
        } else {
            "inactive"
        };
        out.dict(|out| {
            out.number_at("address", self.address)?;
            out.number_at("size", self.bytes)?;
            out.number_at("requested_size", self.requested_bytes())?;
            out.text_at("state", state)?;
            write_frames(out, trace, self.live.map(|block| block.place))
        })
    }
}

impl Entry {
    fn write<W: Write>(&self, out: &mut PickleWriter<W>, trace: &str) -> io::Result<()> {
        let address = if self.action == Action::Oom {
            "device_free"
        } else {
            "addr"
        };
        out.dict(|out| {
            out.text_at("action", self.action.name())?;
            out.number_at(address, self.address)?;
            out.number_at("size", self.bytes)?;
            out.number_at("stream", STREAM)?;
            write_frames(out, trace, Some(self.place))
        })
    }
}

/// Writes the frame of an event of the trace, or an empty list.
fn write_frames<W: Write>(
    out: &mut PickleWriter<W>,
    trace: &str,
    place: Option<TracePosition>,
) -> io::Result<()> {
    out.text("frames")?;
    out.list(place.into_iter(), |out, place| {
        out.dict(|out| {
            out.text_at("filename", trace)?;
            out.number_at("line", place.event)?;
            match place.pass {
                1 => out.text_at("name", "event"),
                pass => out.text_at("name", &format!("event of pass {pass}")),
            }
        })
    })
}

/// Joins adjacent ranges. The ranges are in order and do not overlap.
pub(crate) fn joined(pieces: &[Span]) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.end == piece.start => last.end = piece.end,
            _ => joined.push(piece.clone()),
        }
    }
    joined
}

/// Returns the parts of `spans` that are not in `others`; both are in order.
pub(crate) fn without(spans: &[Span], others: &[Span]) -> Vec<Span> {
    let mut rest = Vec::new();
    let mut others = others.iter().peekable();
    for span in spans {
        let mut start = span.start;
        while let Some(other) = others.peek() {
            if other.start >= span.end {
                break;
            }
            if start < other.start {
                rest.push(start..other.start);
            }
            start = start.max(other.end);
            if other.end > span.end {
                break;
            }
            others.next();
        }
        if start < span.end {
            rest.push(start..span.end);
        }
    }
    rest
}
