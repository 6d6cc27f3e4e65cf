//! Random operations on a [`Pair`], each mapped to existing blocks and valid values.

use larder_core::{Addr, AddrRange, Align, Block, Chunk, EventNumber, Request, Resize, StreamId};

use crate::pair::Played;
use crate::{Call, Op, Pair, Policies, Source};

/// The first answer that the model did not predict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Number of the operation, from 0.
    pub step: usize,
    /// The operation.
    pub op: Op,
    /// The difference.
    pub what: String,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "operation {} {:?}: {}", self.step, self.op, self.what)
    }
}

struct Run<'t> {
    pair: Pair<'t>,
    granule: u64,
    streams: u8,
    live: Vec<Block>,
}

/// Runs the operations on the real allocator and the model. At the end, everything is freed and all memory must be
/// released.
///
/// # Errors
/// The first difference.
///
/// # Panics
/// If the configuration is invalid.
pub fn run_bfc(policies: &Policies, ops: impl IntoIterator<Item = Op>) -> Result<(), Mismatch> {
    let mut table = vec![Chunk::VACANT; policies.records];
    let source = Source::new(policies.start, policies.bytes);
    let mut run = Run {
        pair: Pair::new(policies.config, &mut table, &source),
        granule: policies.config.granule_bytes,
        streams: policies.streams,
        live: Vec::new(),
    };
    for (step, op) in ops.into_iter().enumerate() {
        run.apply(op).map_err(|what| Mismatch { step, op, what })?;
    }
    let (step, op) = (usize::MAX, Op::Trim);
    run.end().map_err(|what| Mismatch { step, op, what })
}

impl Run<'_> {
    fn apply(&mut self, op: Op) -> Played<()> {
        match op {
            Op::Alloc { .. } => {
                self.pair.take_calls();
                let granted = self.pair.alloc(&self.request(op))?;
                self.live.extend(granted.map(|grant| grant.block));
                let calls = self.pair.take_calls();
                let grows = calls.iter().filter(|call| matches!(call, Call::Grow(_)));
                if grows.count() > 2 {
                    return Err(format!("too many calls for one block: {calls:?}"));
                }
            }
            Op::Free { which } if self.streams == 1 => {
                let event = self.event_ahead(0, u64::from(which as u8));
                self.free(which, Some((0, event)))?;
            }
            Op::Free { which } => self.free(which, None)?,
            Op::FreeAfter {
                which,
                stream,
                ahead,
            } => {
                let stream = stream % self.streams;
                let event = self.event_ahead(stream, u64::from(ahead));
                self.free(which, Some((stream, event)))?;
            }
            Op::Complete { stream, by } => self.complete(stream % self.streams, by)?,
            Op::Resize { .. } => self.resize(op)?,
            Op::AllocAt { offset, granules } => self.alloc_at(offset, granules)?,
            Op::Adjust { share } => {
                let held = self.pair.stats().reserved_bytes;
                let limit = held / 16 * u64::from(share % 33);
                let limit = if share >= 224 { 1 << 40 } else { limit };
                self.pair.adjust(limit)?;
            }
            Op::Trim => drop(self.pair.trim()?),
            Op::RefuseGrow { calls } => {
                let calls = u32::from(calls % 4);
                self.pair.sources(|source| source.refuse_grow(calls));
            }
            Op::RefuseRelease { calls } => {
                let calls = u32::from(calls % 4);
                self.pair.sources(|source| source.refuse_release(calls));
            }
            Op::Gap => self.pair.sources(|source| source.skip(self.granule)),
        }
        Ok(())
    }

    /// Frees everything, completes all streams and stops refusing releases. All memory must then be released.
    fn end(&mut self) -> Played<()> {
        while !self.live.is_empty() {
            self.free(0, None)?;
        }
        self.pair.sources(|source| source.refuse_release(0));
        for stream in 0..self.streams {
            let last = self.event_ahead(stream, EventNumber::WINDOW);
            self.pair.complete(stream, last)?;
        }
        self.pair.trim()?;
        match self.pair.out_bytes() {
            0 => Ok(()),
            bytes => Err(format!("{bytes} bytes never come back")),
        }
    }

    /// Returns the event `ahead` events after the last one that the stream completed.
    fn event_ahead(&self, stream: u8, ahead: u64) -> u64 {
        self.pair.model().completed(stream).saturating_add(ahead)
    }

    fn request(&self, op: Op) -> Request {
        let Op::Alloc {
            granules,
            less,
            align,
            stream,
            flags,
        } = op
        else {
            return Request::new(0);
        };
        let granule = self.granule;
        let bytes = (u64::from(granules) * granule).saturating_sub(u64::from(less) % granule);
        let stream = stream % self.streams;
        let mut request = Request::new(bytes).on(StreamId::new(stream));
        if align > 0 {
            request = request.aligned(Align::new(granule << align).expect("a power of two"));
        }
        if flags & 1 == 1 {
            request = request.without_wait();
        }
        if flags >> 1 < 16 {
            let around = self.event_ahead(stream, u64::from(flags >> 1));
            request = request.freed_by(EventNumber::new(around));
        }
        request
    }

    fn pick(&mut self, which: usize) -> Option<Block> {
        let count = self.live.len();
        (count > 0).then(|| self.live.swap_remove(which % count))
    }

    fn free(&mut self, which: u16, point: Option<(u8, u64)>) -> Played<()> {
        let Some(block) = self.pick(usize::from(which)) else {
            return Ok(());
        };
        let freed = self.pair.free(block, point)?;
        freed.map_err(|rejected| format!("free refused: {rejected}"))
    }

    fn resize(&mut self, op: Op) -> Played<()> {
        let Op::Resize { which, how, .. } = op else {
            return Ok(());
        };
        if let Some(block) = self.pick(usize::from(which)) {
            let to = self.new_size(op, block.bytes());
            let resized = self.pair.resize(block, to, how & 4 != 0)?;
            self.live
                .push(resized.unwrap_or_else(|rejected| rejected.value));
        }
        Ok(())
    }

    fn new_size(&self, op: Op, old_bytes: u64) -> Resize {
        let Op::Resize {
            granules,
            less,
            how,
            ahead,
            ..
        } = op
        else {
            return Resize::to(0);
        };
        let more = if how & 8 == 0 { 0 } else { old_bytes };
        let bytes = more + u64::from(granules) * self.granule;
        let bytes = bytes.saturating_sub(u64::from(less) % self.granule);
        let stream = (how & 3) % self.streams;
        let mut to = Resize::to(bytes).on(StreamId::new(stream));
        if how >= 240 {
            to.bytes = u64::MAX - u64::from(less);
        }
        let ahead = match ahead {
            0 => return to,
            191 => EventNumber::WINDOW + 1,
            ahead => u64::from(ahead),
        };
        to.used_until(EventNumber::new(self.event_ahead(stream, ahead)))
    }

    fn complete(&mut self, stream: u8, by: u8) -> Played<()> {
        let by = match by {
            201..=224 => EventNumber::WINDOW - 1 + u64::from(by - 201),
            225..=255 => 1 << (by - 225 + 30),
            _ => u64::from(by),
        };
        let event = self.event_ahead(stream, by);
        self.pair.complete(stream, event)
    }

    /// Allocates at a given address: for any stream if the offset is even, otherwise for one stream.
    fn alloc_at(&mut self, offset: u16, granules: u8) -> Played<()> {
        let base = self.pair.model().first_base().unwrap_or(0);
        let start = base + u64::from(offset) * self.granule + u64::from(offset == 7);
        let bytes = u64::from(granules.max(1)) * self.granule;
        let stream = (offset as u8 / 2) % self.streams;
        let stream = (offset % 2 == 1).then_some(stream);
        if let Some(place) = AddrRange::new(Addr::new(start), bytes) {
            self.live.extend(self.pair.alloc_at(place, stream)?);
        }
        Ok(())
    }
}
