//! Random operations on an LRU pool and its [`ModelPool`], which are compared after each.

use std::fmt;
use std::num::NonZeroU32;

use larder_core::pool::{Pool, PoolAllocator, PoolConfig, PoolCounters};
use larder_core::{Align, AllocError, Block, BlockAllocator, Request};

use crate::Source;
use crate::pool::ModelPool;

/// Bytes from which the policies are decoded.
pub type PoolHead = [u8; 8];

/// One operation: its kind, and three numbers that are mapped to valid values.
pub type PoolOp = [u8; 4];

/// A difference between the pool and the model, and the operation that showed it.
#[derive(Debug)]
pub struct PoolMismatch(String);

impl fmt::Display for PoolMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pool and its model, which are given the same operations.
struct Pair {
    real: PoolAllocator<Source>,
    model: ModelPool,
    /// The live blocks, in the order of the model's `out`.
    blocks: Vec<Block>,
}

/// Runs operations on a pool and its model, and compares the two after each.
///
/// # Errors
/// The first difference, or a broken invariant.
pub fn run_pool(head: PoolHead, ops: impl IntoIterator<Item = PoolOp>) -> Result<(), PoolMismatch> {
    let config = config_of(head);
    let records = 1 + head[7] as usize % 40;
    let wrong = |text: String| PoolMismatch(format!("{config:?}, {records} records: {text}"));
    let pool = match Pool::new(config, records) {
        Ok(pool) => pool,
        Err(_) if config.limit_buffers == 0 && config.max_buffers > 0 => return Ok(()),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let source = Source::new(0x1000, 1 << (16 + head[6] % 8));
    let mut pair = Pair {
        real: PoolAllocator::new(pool, source.clone()),
        model: ModelPool::new(config, records, source),
        blocks: Vec::new(),
    };
    for (number, op) in ops.into_iter().enumerate() {
        let result = pair.run(op).and_then(|()| pair.compare());
        result.map_err(|text| wrong(format!("operation {number} {op:?}: {text}")))?;
    }
    Ok(())
}

fn config_of(head: PoolHead) -> PoolConfig {
    let limit = u32::from(head[1]) % 8;
    let preset = match head[0] % 2 {
        0 => PoolConfig::new(1 + limit, u64::MAX),
        _ => PoolConfig::new(limit, 100 * u64::from(head[2])),
    };
    if head[0] < 64 {
        return preset;
    }
    PoolConfig {
        max_buffers: [0, 12, u32::MAX][head[3] as usize % 3],
        age_steps: NonZeroU32::new(u32::from(head[3]) / 4 % 4),
        align: Align::new(1 << (head[4] % 10)).unwrap_or(Align::ONE),
        steps_log2: head[5] % 6,
        ..preset
    }
}

impl Pair {
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

    /// Runs an operation on both. The real pool must report the number of bytes that the model released.
    fn both(
        &mut self,
        real: impl FnOnce(&PoolAllocator<Source>) -> u64,
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
