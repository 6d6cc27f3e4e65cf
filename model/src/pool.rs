//! The LRU pool, slow and obvious, and random operations on both.
//!
//! The model keeps one vector of idle buffers, oldest first, and walks it for everything. It has a
//! [`Source`] of its own with the history of the real one's, so it predicts addresses too.

use std::fmt;
use std::num::NonZeroU32;

use larder_core::pool::{
    Buffer, Layout, LimitGrowth, Pool, PoolAllocator, PoolConfig, PoolCounters, Reuse, Rounder,
};
use larder_core::{
    AddrRange, Align, AllocError, Block, BlockAllocator, GrowRequest, Request, SubAllocator,
};

use crate::Source;

/// What chooses the policies.
pub type PoolHead = [u8; 8];

/// One operation: its kind, and three numbers that are mapped to what makes sense.
pub type PoolOp = [u8; 4];

/// Where the pool and the model differ, and at which operation.
#[derive(Debug)]
pub struct PoolMismatch(String);

impl fmt::Display for PoolMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    range: AddrRange,
    bytes: u64,
    /// The step in which it was kept.
    step: u32,
    /// Kept because it was not taken back.
    stuck: bool,
}

#[derive(Clone, Copy, Debug)]
struct Out {
    held: Held,
    requested_bytes: u64,
}

/// An answer without what only the real thing knows: the block's address, or words of the error.
type Answer = Result<u64, String>;

struct ModelPool {
    config: PoolConfig,
    records: usize,
    limit: u32,
    /// All that is kept, in the order in which it was.
    kept: Vec<Held>,
    out: Vec<Out>,
    counters: PoolCounters,
    /// Evicted sizes, one entry a size, the latest last.
    ghosts: Vec<(u64, u32)>,
    step: u32,
    source: Source,
}

impl ModelPool {
    fn buffer_bytes(&self, bytes: u64, align: Align) -> u64 {
        let own = self.config.align.bytes();
        let (prefix, more) = match self.config.layout {
            Layout::Plain => (0, align.bytes().saturating_sub(own)),
            Layout::Prefixed if align.bytes() > own => (own, align.bytes()),
            Layout::Prefixed => (own, 0),
        };
        let total = bytes + prefix + more;
        let rounded = match self.config.rounder {
            Rounder::Exact => total,
            Rounder::PowerOfTwo => (0..).map(|k| 1 << k).find(|p| *p >= total).unwrap_or(0),
            Rounder::Multiple(align) => total.next_multiple_of(align.bytes()),
            Rounder::Classes { steps_log2 } => {
                let steps = 1u64 << steps_log2;
                let classes = (0..20).flat_map(|k| {
                    let from = 1u64 << k;
                    (0..steps).map(move |i| (from * steps + i * from, steps))
                });
                // In units of a step's fraction, so that small doublings have whole sizes only.
                let whole = classes.filter(|(size, steps)| size.is_multiple_of(*steps));
                let mut fits = whole.map(|(size, steps)| size / steps);
                fits.find(|size| *size >= total).unwrap_or(0)
            }
        };
        match self.config.layout {
            Layout::Plain => rounded.next_multiple_of(own),
            Layout::Prefixed => rounded,
        }
    }

    fn block_start(&self, start: u64, align: Align) -> u64 {
        let own = self.config.align.bytes();
        let from = match self.config.layout {
            Layout::Plain => start,
            Layout::Prefixed if align.bytes() > own => start + own + 1,
            Layout::Prefixed => return start + own,
        };
        (from..).find(|at| at % align.bytes() == 0).unwrap_or(from)
    }

    fn alloc(&mut self, request: &Request) -> Answer {
        if request.bytes == 0 {
            return Err("zero".into());
        }
        let bytes = self.buffer_bytes(request.bytes, request.align);
        let found = self.take_kept(bytes);
        let counts = u64::from(self.limit > 0);
        if let Some(held) = found {
            self.counters.from_pool += counts;
            return Ok(self.give(held, request));
        }
        if self.out.len() + self.kept.len() == self.records && self.is_any_idle() {
            let oldest = self.take_oldest_idle();
            self.release(oldest);
        }
        // The one that was offered and not taken back may be of this size.
        if let Some(held) = self.take_kept(bytes) {
            self.counters.from_pool += counts;
            return Ok(self.give(held, request));
        }
        if self.out.len() + self.kept.len() == self.records {
            return Err("table".into());
        }
        self.counters.allocated += counts;
        self.note_miss(bytes);
        let wish = GrowRequest {
            bytes: bytes.next_multiple_of(self.config.align.bytes()),
            align: self.config.align,
            at: None,
        };
        let mut got = self.source.grow(wish);
        if got.is_err() && self.config.give_back && !self.kept.is_empty() {
            self.trim();
            got = self.source.grow(wish);
        }
        match got {
            Ok(range) => Ok(self.give(
                Held {
                    range,
                    bytes,
                    step: 0,
                    stuck: false,
                },
                request,
            )),
            Err(_) => Err(format!(
                "memory {} {} {} {}",
                request.bytes,
                bytes,
                self.reserved_bytes(),
                self.free_bytes()
            )),
        }
    }

    fn take_kept(&mut self, bytes: u64) -> Option<Held> {
        let is_one = |held: &Held| held.bytes == bytes;
        let place = match self.config.reuse {
            Reuse::Newest => self.kept.iter().rposition(is_one),
            Reuse::Oldest => self.kept.iter().position(is_one),
        };
        place.map(|place| self.kept.remove(place))
    }

    fn give(&mut self, held: Held, request: &Request) -> u64 {
        let block = self.block_start(held.range.start().get(), request.align);
        self.out.push(Out {
            held,
            requested_bytes: request.bytes,
        });
        block
    }

    fn free(&mut self, which: usize) {
        let held = self.out.remove(which).held;
        if self.limit == 0 {
            return self.release(held);
        }
        self.counters.put += 1;
        if held.range.bytes() > self.config.limit_bytes {
            self.count_eviction();
            return self.release(held);
        }
        self.keep(held, false);
        let mut victims = Vec::new();
        while self.idle().count() > self.limit as usize
            || self.idle_bytes() > self.config.limit_bytes
        {
            let too_many = self.idle().count() > self.limit as usize;
            let victim = self.take_oldest_idle();
            if too_many && matches!(self.config.growth, LimitGrowth::Returning { .. }) {
                self.note_eviction(victim.bytes);
            }
            self.count_eviction();
            victims.push(victim);
        }
        victims.into_iter().for_each(|victim| self.release(victim));
    }

    /// Upstream's rule in upstream's arithmetic.
    fn count_eviction(&mut self) {
        self.counters.evicted += 1;
        let c = self.counters;
        if self.config.growth != LimitGrowth::BothRates || !c.evicted.is_multiple_of(1000) {
            return;
        }
        let evicted = c.evicted as f64 / c.put as f64;
        let requests = c.allocated + c.from_pool;
        let missed = if requests > 0 {
            c.allocated as f64 / requests as f64
        } else {
            0.0
        };
        if evicted > 0.002 && missed > 0.002 {
            self.limit = if self.limit < 100 {
                100
            } else {
                (1.1 * f64::from(self.limit)) as u32
            };
            self.counters = PoolCounters::default();
        }
    }

    fn note_eviction(&mut self, bytes: u64) {
        let known = self.ghosts.iter().position(|ghost| ghost.0 == bytes);
        let before = known.map_or(0, |place| self.ghosts.remove(place).1);
        self.ghosts.push((bytes, before + 1));
        if self.ghosts.len() > 32 {
            self.ghosts.remove(0);
        }
    }

    fn note_miss(&mut self, bytes: u64) {
        let LimitGrowth::Returning { most_buffers } = self.config.growth else {
            return;
        };
        let Some(ghost) = self.ghosts.iter_mut().find(|ghost| ghost.0 == bytes) else {
            return;
        };
        ghost.1 -= 1;
        self.ghosts.retain(|ghost| ghost.1 > 0);
        if self.limit < most_buffers && (self.limit as usize) < self.records {
            self.limit += 1;
        }
    }

    fn end_step(&mut self) {
        self.step += 1;
        let mut leaving = self.take_stuck();
        if let Some(age) = self.config.age_steps {
            while self
                .idle()
                .next()
                .is_some_and(|held| self.step - held.step >= age.get())
            {
                leaving.push(self.take_oldest_idle());
                if self.limit > self.config.limit_buffers {
                    self.limit -= 1;
                }
            }
        }
        leaving.into_iter().for_each(|held| self.release(held));
    }

    fn trim(&mut self) {
        let mut leaving = self.take_stuck();
        leaving.append(&mut self.kept);
        leaving.into_iter().for_each(|held| self.release(held));
    }

    fn clear(&mut self) {
        self.counters = PoolCounters::default();
        self.ghosts.clear();
        self.trim();
    }

    /// Whether the limits were taken.
    fn set_limits(&mut self, buffers: u32, bytes: u64) -> bool {
        if buffers == 0 && self.config.growth != LimitGrowth::Never {
            return false;
        }
        self.config.limit_buffers = buffers;
        self.config.limit_bytes = bytes;
        self.limit = buffers;
        let mut victims = Vec::new();
        while self.idle().count() > buffers as usize || self.idle_bytes() > bytes {
            victims.push(self.take_oldest_idle());
        }
        victims.into_iter().for_each(|victim| self.release(victim));
        true
    }

    fn release(&mut self, held: Held) {
        if self.source.release(held.range).is_err() {
            self.keep(held, true);
        }
    }

    fn keep(&mut self, held: Held, stuck: bool) {
        self.kept.push(Held {
            step: self.step,
            stuck,
            ..held
        });
    }

    fn idle(&self) -> impl Iterator<Item = &Held> {
        self.kept.iter().filter(|held| !held.stuck)
    }

    fn is_any_idle(&self) -> bool {
        self.idle().next().is_some()
    }

    fn idle_bytes(&self) -> u64 {
        self.idle().map(|held| held.range.bytes()).sum()
    }

    fn take_oldest_idle(&mut self) -> Held {
        let place = self.kept.iter().position(|held| !held.stuck);
        self.kept
            .remove(place.expect("only asked where one is idle"))
    }

    fn take_stuck(&mut self) -> Vec<Held> {
        let (stuck, idle) = self.kept.iter().partition(|held| held.stuck);
        self.kept = idle;
        stuck
    }

    fn free_bytes(&self) -> u64 {
        self.kept.iter().map(|held| held.range.bytes()).sum()
    }

    fn reserved_bytes(&self) -> u64 {
        let out: u64 = self.out.iter().map(|out| out.held.range.bytes()).sum();
        self.free_bytes() + out
    }
}

/// A pool and its model, operation by operation.
struct Pair<'t> {
    real: PoolAllocator<'t, Source>,
    model: ModelPool,
    /// In the order of the model's `out`.
    blocks: Vec<Block>,
}

/// Runs operations on a pool and on its model.
///
/// # Errors
/// The first difference, or a broken invariant.
pub fn run_pool(head: PoolHead, ops: impl IntoIterator<Item = PoolOp>) -> Result<(), PoolMismatch> {
    let config = config_of(head);
    let records = 1 + head[7] as usize % 40;
    let mut buffers = vec![Buffer::VACANT; records + 1];
    let mut slots = vec![7; 2 * (records + 1)];
    let wrong = |text: String| PoolMismatch(format!("{config:?}, {records} records: {text}"));
    let pool = match Pool::new(config, &mut buffers, &mut slots) {
        Ok(pool) => pool,
        Err(_) if config.limit_buffers == 0 && config.growth != LimitGrowth::Never => return Ok(()),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let source = Source::new(0x1000, 1 << (16 + head[6] % 8));
    let mut pair = Pair {
        real: PoolAllocator::new(pool, source.clone()),
        model: ModelPool {
            config,
            records,
            limit: config.limit_buffers,
            kept: Vec::new(),
            out: Vec::new(),
            counters: PoolCounters::default(),
            ghosts: Vec::new(),
            step: 0,
            source,
        },
        blocks: Vec::new(),
    };
    for (number, op) in ops.into_iter().enumerate() {
        let result = pair.run(op).and_then(|()| pair.compare());
        result.map_err(|text| wrong(format!("operation {number} {op:?}: {text}")))?;
    }
    Ok(())
}

fn config_of(head: PoolHead) -> PoolConfig {
    let preset = match head[0] % 3 {
        0 => PoolConfig::tensorflow(1 + u32::from(head[1]) % 8),
        1 => PoolConfig::new(1 + u32::from(head[1]) % 8, u64::MAX),
        _ => PoolConfig::new(u32::from(head[1]) % 8, 100 * u64::from(head[2])),
    };
    if head[0] < 64 {
        return preset;
    }
    PoolConfig {
        growth: match head[3] % 4 {
            0 => LimitGrowth::Never,
            1 => LimitGrowth::BothRates,
            2 => LimitGrowth::Returning { most_buffers: 12 },
            _ => preset.growth,
        },
        age_steps: NonZeroU32::new(u32::from(head[3]) / 4 % 4),
        reuse: [Reuse::Newest, Reuse::Oldest][head[4] as usize % 2],
        layout: [Layout::Plain, Layout::Prefixed][head[4] as usize / 2 % 2],
        give_back: head[4] & 4 != 0,
        align: Align::new(1 << (head[4] / 8 % 10)).unwrap_or(Align::ONE),
        rounder: match head[5] % 4 {
            0 => Rounder::Exact,
            1 => Rounder::PowerOfTwo,
            2 => Rounder::Multiple(Align::new(1 << (head[5] / 4 % 8)).unwrap_or(Align::ONE)),
            _ => Rounder::Classes {
                steps_log2: head[5] / 4 % 5,
            },
        },
        ..preset
    }
}

impl Pair<'_> {
    fn run(&mut self, op: PoolOp) -> Result<(), String> {
        let [kind, a, b, c] = op;
        match kind % 16 {
            0..=6 => self.alloc(a, b, c),
            7..=11 => self.free(usize::from(a)),
            12 => self.both(|real| real.end_step(), ModelPool::end_step),
            13 => {
                let (buffers, bytes) = (u32::from(a) % 10, 200 * u64::from(b));
                let bytes = if c % 4 == 0 { bytes } else { u64::MAX };
                let taken = self.real.set_limits(buffers, bytes).is_ok();
                if taken != self.model.set_limits(buffers, bytes) {
                    return Err(format!("limits taken: {taken}"));
                }
                Ok(())
            }
            14 => {
                let calls = 1 + u32::from(b) % 3;
                for source in [self.real.source(), &self.model.source] {
                    match a % 4 {
                        0 => source.refuse_grow(calls),
                        1 => source.refuse_release(calls),
                        _ => source.skip(u64::from(c)),
                    }
                }
                Ok(())
            }
            _ if a % 4 == 0 => self.both(|real| real.clear(), ModelPool::clear),
            _ if a % 4 == 1 => self.both(|real| real.trim(), ModelPool::trim),
            _ => self.both(|real| real.end_step(), ModelPool::end_step),
        }
    }

    /// The bytes that the real one says went back are those that the model holds less.
    fn both(
        &mut self,
        real: impl FnOnce(&PoolAllocator<'_, Source>) -> u64,
        model: impl FnOnce(&mut ModelPool),
    ) -> Result<(), String> {
        let before = self.model.reserved_bytes();
        model(&mut self.model);
        let (bytes, gone) = (real(&self.real), before - self.model.reserved_bytes());
        if bytes != gone {
            return Err(format!("{bytes} bytes went back, the model says {gone}"));
        }
        Ok(())
    }

    fn alloc(&mut self, size: u8, unit: u8, align: u8) -> Result<(), String> {
        let bytes = u64::from(size % 12) * [1, 16, 100, 256][usize::from(unit) % 4];
        let align = 1 << [0, 0, 3, 4, 5, 8, 9, 12][usize::from(align) % 8];
        let request = Request::new(bytes).aligned(Align::new(align).unwrap_or(Align::ONE));
        let predicted = self.model.alloc(&request);
        let answer = self.real.alloc(&request);
        let words = match &answer {
            Ok(grant) => Ok(grant.block.addr().get()),
            Err(AllocError::ZeroSize) => Err("zero".into()),
            Err(AllocError::TableFull { .. }) => Err("table".into()),
            Err(AllocError::OutOfMemory(out)) => Err(format!(
                "memory {} {} {} {}",
                out.requested_bytes, out.rounded_bytes, out.reserved_bytes, out.free_bytes
            )),
            Err(other) => Err(other.to_string()),
        };
        if words != predicted {
            return Err(format!("{words:?}, the model says {predicted:?}"));
        }
        if let Ok(grant) = answer {
            self.blocks.push(grant.block);
        }
        Ok(())
    }

    fn free(&mut self, which: usize) -> Result<(), String> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        let which = which % self.blocks.len();
        let block = self.blocks.remove(which);
        self.model.free(which);
        self.real
            .free(block)
            .map_err(|rejected| rejected.to_string())
    }

    fn compare(&self) -> Result<(), String> {
        let check = self.real.with(|pool| pool.check_invariants());
        check.map_err(|violation| violation.to_string())?;
        let (real, model) = (self.picture_of_real(), self.picture_of_model());
        if real != model {
            return Err(format!("{real:?}, the model says {model:?}"));
        }
        Ok(())
    }

    fn picture_of_real(&self) -> (PoolCounters, [u64; 9]) {
        let (report, stats) = (self.real.report(), self.real.stats());
        let source = self.real.source();
        let numbers = [
            u64::from(report.limit_buffers),
            u64::from(report.out_buffers),
            u64::from(report.idle_buffers),
            report.idle_bytes,
            u64::from(report.stuck_buffers),
            stats.reserved_bytes,
            stats.requested_bytes,
            source.grows(),
            source.releases(),
        ];
        (self.real.counters(), numbers)
    }

    fn picture_of_model(&self) -> (PoolCounters, [u64; 9]) {
        let model = &self.model;
        let stuck = model.kept.iter().filter(|held| held.stuck);
        let numbers = [
            u64::from(model.limit),
            model.out.len() as u64,
            model.idle().count() as u64,
            model.idle_bytes(),
            stuck.count() as u64,
            model.reserved_bytes(),
            model.out.iter().map(|out| out.requested_bytes).sum(),
            model.source.grows(),
            model.source.releases(),
        ];
        (model.counters, numbers)
    }
}
