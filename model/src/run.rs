//! Drives the real allocator beside the model and compares all their answers.

use larder_core::{
    Addr, AddrRange, Align, BestFit, Block, BlockAllocator, Chunk, ChunkState, EventNumber, Grant,
    RawBlock, RegionConfig, RegionPool, Request, Resize, Shared, StreamId, StreamPoint,
};

use crate::bfc::ModelError;
use crate::{ModelBfc, Op, Source};

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

/// Streams that operations use.
const STREAMS: u8 = 3;

/// Both allocators, and the live blocks.
struct Pair<'t> {
    real: Shared<RegionPool<'t>, Source>,
    model: ModelBfc,
    live: Vec<Block>,
}

/// Runs the operations on the real allocator and the model, checks all invariants after each, and frees everything at
/// the end.
///
/// # Errors
/// The first difference.
///
/// # Panics
/// If the configuration is invalid.
pub fn run_bfc(
    config: RegionConfig,
    records: usize,
    source: &Source,
    ops: impl IntoIterator<Item = Op>,
) -> Result<(), Mismatch> {
    let mut table = vec![Chunk::VACANT; records];
    let mut pair = Pair {
        real: Shared::new(
            RegionPool::new(config, &mut table).expect("a valid configuration"),
            source.clone(),
        ),

        model: ModelBfc::new(config, records, source.clone()),
        live: Vec::new(),
    };
    for (step, op) in ops.into_iter().enumerate() {
        let outcome = pair.apply(op).and_then(|()| pair.compare());
        outcome.map_err(|what| Mismatch { step, op, what })?;
    }
    let op = Op::Free { which: 0 };
    while !pair.live.is_empty() {
        let outcome = pair.apply(op).and_then(|()| pair.compare());
        outcome.map_err(|what| Mismatch {
            step: usize::MAX,
            op,
            what,
        })?;
    }
    Ok(())
}

/// Compares two values.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, real: &T, model: &T) -> Result<(), String> {
    if real == model {
        return Ok(());
    }
    Err(format!("{what}: real {real:?}, model {model:?}"))
}

/// Returns the parts of a block.
fn raw(block: &Block) -> RawBlock {
    RawBlock {
        addr: block.addr(),
        handle: block.handle(),
    }
}

impl Pair<'_> {
    fn apply(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Alloc { .. } => self.alloc(op),
            Op::Free { which } => self.free(which, None),
            Op::FreeAfter {
                which,
                stream,
                ahead,
            } => {
                let stream = stream % STREAMS;
                let event = self
                    .model
                    .completed(stream)
                    .saturating_add(u64::from(ahead));
                self.free(which, Some((stream, event)))
            }
            Op::Complete { stream, by } => {
                self.complete(stream % STREAMS, by);
                Ok(())
            }
            Op::Resize { .. } => self.resize(op),
            Op::AllocAt { offset, granules } => self.alloc_at(offset, granules),
            Op::Adjust { share } => {
                let limit = self.real.stats().reserved_bytes / 16 * u64::from(share % 33);
                let limit = if share >= 224 { 1 << 40 } else { limit };
                self.real.adjust(limit);
                let real = self.real.stats().limit_bytes;
                same("adjust", &real, &self.model.adjust(limit))
            }
            Op::Trim => same("trim", &self.real.trim(), &self.model.trim()),
            Op::RefuseGrow { calls } => {
                self.real.source().refuse_grow(u32::from(calls % 4));
                self.model.source().refuse_grow(u32::from(calls % 4));
                Ok(())
            }
            Op::RefuseRelease { calls } => {
                self.real.source().refuse_release(u32::from(calls % 4));
                self.model.source().refuse_release(u32::from(calls % 4));
                Ok(())
            }
            Op::Gap => {
                let bytes = self.real.with(|pool| pool.config().granule_bytes);
                self.real.source().skip(bytes);
                self.model.source().skip(bytes);
                Ok(())
            }
        }
    }

    fn alloc(&mut self, op: Op) -> Result<(), String> {
        let request = self.request(op);
        let real = self.real.alloc(&request);
        let model = self.model.alloc(&request);
        match (real, model) {
            (Ok(Grant { block, wait }), Ok(model)) => {
                let wait = wait.map(|point| (point.stream.number(), point.event.number()));
                let real = (block.addr().get(), block.bytes(), wait);
                self.live.push(block);
                same("alloc", &real, &model)
            }
            (Err(real), Err(model)) => same("alloc error", &ModelError::from(real), &model),
            (real, model) => Err(format!("alloc {request:?}: real {real:?}, model {model:?}")),
        }
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
        let granule = self.real.with(|pool| pool.config().granule_bytes);
        let bytes = (u64::from(granules) * granule).saturating_sub(u64::from(less) % granule);
        let stream = stream % STREAMS;
        let mut request = Request::new(bytes).on(StreamId::new(stream));
        if align > 0 {
            request = request.aligned(Align::new(granule << align).expect("a power of two"));
        }
        if flags & 1 == 1 {
            request = request.without_wait();
        }
        if flags >> 1 < 16 {
            let around = self
                .model
                .completed(stream)
                .saturating_add(u64::from(flags >> 1));
            request = request.freed_by(EventNumber::new(around));
        }
        request
    }

    fn free(&mut self, which: u16, point: Option<(u8, u64)>) -> Result<(), String> {
        if self.live.is_empty() {
            return Ok(());
        }
        let block = self.live.swap_remove(usize::from(which) % self.live.len());
        let addr = block.addr();
        let restored = self.real.get_mut().block_from_raw(raw(&block));
        same("block_from_raw", &restored.as_ref(), &Ok(&block))?;
        let freed = match point {
            None => self.real.free(block),
            Some((stream, event)) => {
                let (stream, event) = (StreamId::new(stream), EventNumber::new(event));
                self.real
                    .free_at(block, Some(StreamPoint { stream, event }))
            }
        };
        self.model.free(addr.get(), point);
        freed.map_err(|rejected| format!("free refused: {rejected}"))
    }

    fn resize(&mut self, op: Op) -> Result<(), String> {
        let Op::Resize { which, how, .. } = op else {
            return Ok(());
        };
        if self.live.is_empty() {
            return Ok(());
        }
        let block = self.live.swap_remove(usize::from(which) % self.live.len());
        let to = self.new_size(op, block.bytes());
        // A second value for the block, with its size before the resize.
        let before = self.real.get_mut().block_from_raw(raw(&block));
        let before = before.map_err(|error| format!("block_from_raw: {error}"))?;
        let addr = block.addr().get();
        let (real, model) = if how & 4 == 0 {
            (
                self.real.get_mut().resize(block, to),
                self.model.resize(addr, &to),
            )
        } else {
            (
                self.real.resize(block, to),
                self.model.resize_over(addr, &to),
            )
        };
        let (block, answer) = match real {
            Ok(block) => {
                let bytes = block.bytes();
                (block, Ok(bytes))
            }
            Err(rejected) => (rejected.value, Err(rejected.error)),
        };
        same("resize", &answer, &model)?;
        let place = |block: &Block| (block.addr(), block.handle());
        same("place", &place(&block), &place(&before))?;
        // The former value is as valid as the new one exactly if the size is the same.
        let ours = self.real.requested_bytes(&before).is_some();
        same("former value", &ours, &(before == block))?;
        self.live.push(block);
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
        let granule = self.real.with(|pool| pool.config().granule_bytes);
        let more = if how & 8 == 0 { 0 } else { old_bytes };
        let bytes = more + u64::from(granules) * granule;
        let stream = (how & 3) % STREAMS;
        let completed = self.model.completed(stream);
        let mut to =
            Resize::to(bytes.saturating_sub(u64::from(less) % granule)).on(StreamId::new(stream));
        if how >= 240 {
            to.bytes = u64::MAX - u64::from(less);
        }
        match ahead {
            0 => to,
            191 => to.used_until(EventNumber::new(
                completed.saturating_add(EventNumber::WINDOW + 1),
            )),
            _ => to.used_until(EventNumber::new(completed.saturating_add(u64::from(ahead)))),
        }
    }

    fn complete(&mut self, stream: u8, by: u8) {
        let by = match by {
            201..=224 => EventNumber::WINDOW - 1 + u64::from(by - 201),
            225..=255 => 1 << (by - 225 + 30),
            _ => u64::from(by),
        };
        let event = self.model.completed(stream).saturating_add(by);
        self.real
            .complete(StreamId::new(stream), EventNumber::new(event));
        self.model.complete(stream, event);
    }

    fn alloc_at(&mut self, offset: u16, granules: u8) -> Result<(), String> {
        let granule = self.real.with(|pool| pool.config().granule_bytes);
        let base = self.model.first_base().unwrap_or(0);
        let start = base + u64::from(offset) * granule + u64::from(offset == 7);
        let bytes = u64::from(granules.max(1)) * granule;
        let Some(range) = AddrRange::new(Addr::new(start), bytes) else {
            return Ok(());
        };
        let real = self.real.get_mut().alloc_at(range, None, None);
        let model = self.model.alloc_at(range);
        match (real, model) {
            (Ok(block), Ok(addr)) => {
                let real = block.addr().get();
                self.live.push(block);
                same("alloc_at", &real, &addr)
            }
            (Err(real), Err(model)) => same("alloc_at error", &ModelError::from(real), &model),
            (real, model) => Err(format!(
                "alloc_at {range:?}: real {real:?}, model {model:?}"
            )),
        }
    }

    fn compare(&mut self) -> Result<(), String> {
        let real = self.real.get_mut();
        real.check_invariants()
            .map_err(|violation| format!("{violation}\n{}", real.dump()))?;
        same("stats", &self.real.stats(), &self.model.stats())?;
        let mut blocks = Vec::new();
        self.real.get_mut().for_each_chunk(|chunk| {
            if let ChunkState::Used {
                requested_bytes,
                id,
            } = chunk.state
            {
                let range = chunk.range;
                blocks.push((range.start().get(), range.bytes(), requested_bytes, id));
            }
        });
        same("blocks", &blocks, &self.model.blocks().collect())?;
        let calls = |source: &Source| (source.grows(), source.releases());
        same(
            "sub-allocator calls",
            &calls(self.real.source()),
            &calls(self.model.source()),
        )
    }
}
