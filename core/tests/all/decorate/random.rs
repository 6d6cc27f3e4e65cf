//! Random operations on a whole stack, with deliberate damage, compared with a plain list of the expected findings.

use std::collections::VecDeque;

use super::ground::{best_fit, buffer, flip};
use larder_core::decorate::{
    CheckError, GuardConfig, Guarded, Poisoned, QuarantineConfig, QuarantineStats, Quarantined,
    Tracked, Which,
};
use larder_core::{
    Align, Block, BlockAllocator, EventNumber, Pattern, Request, SliceAccess, StreamId, StreamPoint,
};
use larder_model::Random;

const BYTES: u64 = 1 << 20;
const LIMIT: u64 = 6000;
const PLACES: usize = 7;

#[derive(Clone, Copy, Debug)]
struct Known {
    addr: u64,
    bytes: u64,
    /// The damage to its guards.
    guards: Option<(Which, i64)>,
    /// The offset of the damage since the block was freed.
    freed: Option<i64>,
}

type Find = (u64, Which, i64);

/// The blocks that wait, and the expected findings.
#[derive(Default)]
struct Model {
    waiting: VecDeque<Known>,
    bytes: u64,
    /// Findings in freed blocks; `guards` has those in guards.
    freed: Vec<Find>,
    guards: Vec<Find>,
}

impl Model {
    fn leave(&mut self, known: Known) {
        if let Some(offset) = known.freed {
            self.freed.push((known.addr, Which::Freed, offset));
        }
        if let Some((which, offset)) = known.guards {
            self.guards.push((known.addr, which, offset));
        }
    }

    fn free(&mut self, known: Known) {
        if known.bytes > LIMIT {
            return self.leave(known);
        }
        while self.waiting.len() == PLACES || self.bytes + known.bytes > LIMIT {
            let oldest = self.waiting.pop_front().expect("something waits");
            self.bytes -= oldest.bytes;
            self.leave(oldest);
        }
        self.bytes += known.bytes;
        self.waiting.push_back(known);
    }

    fn agrees(&self, stats: QuarantineStats, name: &str) {
        let waits = (stats.waiting_blocks, stats.waiting_bytes);
        assert_eq!(waits, (self.waiting.len() as u64, self.bytes), "{name}");
    }

    fn drain(&mut self) {
        while let Some(known) = self.waiting.pop_front() {
            self.leave(known);
        }
        self.bytes = 0;
    }
}

fn plain(find: CheckError) -> Find {
    match find {
        CheckError::Damaged(damage) => (damage.addr.get(), damage.which, damage.offset),
        other => panic!("{other}"),
    }
}

fn found_by(check: impl FnOnce(&mut dyn FnMut(CheckError)) -> u64) -> Vec<Find> {
    let mut found = Vec::new();
    let count = check(&mut |find| found.push(plain(find)));
    assert_eq!(count, found.len() as u64);
    found
}

/// Flips a byte in the front or tail guard of a block, unless its guards are damaged already.
fn hurt(access: &SliceAccess<'_>, known: &mut Known, random: &mut Random) {
    if known.guards.is_some() {
        return;
    }
    let by = random.below(16);
    let bits = 1 + random.below(255) as u8;
    if random.below(2) == 0 {
        flip(access, known.addr - 1 - by, bits);
        known.guards = Some((Which::Front, -1 - by as i64));
    } else {
        flip(access, known.addr + known.bytes + by, bits);
        known.guards = Some((Which::Tail, (known.bytes + by) as i64));
    }
}

/// Flips a byte in a waiting block, unless it is damaged already.
fn hurt_freed(access: &SliceAccess<'_>, model: &mut Model, random: &mut Random) {
    let at = random.index(model.waiting.len());
    let known = &mut model.waiting[at];
    let offset = random.below(known.bytes);
    if known.freed.is_none() {
        flip(access, known.addr + offset, 1 + random.below(255) as u8);
        known.freed = Some(offset as i64);
    }
}

fn alloc(allocator: &impl BlockAllocator, random: &mut Random) -> (Block, Known) {
    let max = if random.below(8) == 0 { 9000 } else { 1500 };
    let bytes = 1 + random.below(max);
    let align = Align::new(1 << random.below(9)).unwrap();
    let request = Request::new(bytes).aligned(align);
    let block = allocator.alloc(&request).unwrap().block;
    let known = Known {
        addr: block.addr().get(),
        bytes,
        guards: None,
        freed: None,
    };
    (block, known)
}

fn free(allocator: &impl BlockAllocator, block: Block, random: &mut Random) {
    if random.below(3) == 0 {
        let point = StreamPoint {
            stream: StreamId::MAIN,
            event: EventNumber::new(1),
        };
        allocator.free_after(block, point).unwrap();
    } else {
        allocator.free(block).unwrap();
    }
}

/// Returns the expected findings of a check of all guards. The guards of waiting blocks are checked too.
fn hurt_guards(live: &[(Block, Known)], model: &Model) -> Vec<Find> {
    let known = live.iter().map(|(_, known)| known).chain(&model.waiting);
    let mut finds: Vec<Find> = known
        .filter_map(|known| known.guards.map(|(which, at)| (known.addr, which, at)))
        .collect();
    finds.sort_by_key(|find| find.0);
    finds
}

/// Returns the expected findings of a check of all waiting blocks, which repairs the damage.
fn hurt_waiting(model: &mut Model) -> Vec<Find> {
    let waiting = model.waiting.iter_mut();
    let finds: Vec<Find> = waiting
        .filter_map(|known| Some((known.addr, Which::Freed, known.freed.take()?)))
        .collect();
    model.freed.extend(&finds);
    finds
}

fn run(seed: u64) {
    let (inner, access) = (best_fit(BYTES, 256, 256), buffer(BYTES));
    let tracked = Tracked::new(&inner, 4).unwrap();
    let guarded = Guarded::new(&tracked, &access, GuardConfig::new(), 64).unwrap();
    let config = QuarantineConfig::new(LIMIT);
    let quarantined = Quarantined::new(&guarded, &access, config, PLACES).unwrap();
    let allocator = Poisoned::new(&quarantined, &access, Pattern::F32_NAN).unwrap();
    let mut random = Random::new(seed);
    let mut model = Model::default();
    let mut live: Vec<(Block, Known)> = Vec::new();
    let take = |model: &mut Model, name: &str| {
        take_all(
            model,
            || quarantined.take_finding(),
            || guarded.take_finding(),
            name,
        );
    };
    for step in 0..400 {
        let name = format!("seed {seed}, step {step}");
        let at = random.index(live.len().max(1));
        match random.below(12) {
            0..5 if live.len() < 32 => live.push(alloc(&allocator, &mut random)),
            5..9 if !live.is_empty() => {
                let (block, known) = live.swap_remove(at);
                free(&allocator, block, &mut random);
                model.free(known);
            }
            9 if !live.is_empty() => hurt(&access, &mut live[at].1, &mut random),
            10 if !model.waiting.is_empty() => hurt_freed(&access, &mut model, &mut random),
            11 if step % 2 == 0 => {
                let mut found = found_by(|f| guarded.check_all(f));
                found.sort_by_key(|find| find.0);
                assert_eq!(found, hurt_guards(&live, &model), "{name}");
            }
            11 => {
                let found = found_by(|f| quarantined.check_all(f));
                assert_eq!(found, hurt_waiting(&mut model), "{name}");
            }
            _ => {}
        }
        take(&mut model, &name);
        model.agrees(quarantined.quarantine_stats(), &name);
    }
    for (block, known) in live {
        free(&allocator, block, &mut random);
        model.free(known);
        take(&mut model, "at the end");
    }
    quarantined.drain();
    model.drain();
    take(&mut model, "at the end");
    let left = (inner.stats().live_bytes, tracked.track_stats().live_bytes);
    assert_eq!(left, (0, 0));
}

/// Takes all findings and compares them with the model's.
fn take_all(
    model: &mut Model,
    freed: impl Fn() -> Option<CheckError>,
    guards: impl Fn() -> Option<CheckError>,
    name: &str,
) {
    let freed: Vec<Find> = std::iter::from_fn(freed).map(plain).collect();
    assert_eq!(freed, std::mem::take(&mut model.freed), "{name}");
    let guards: Vec<Find> = std::iter::from_fn(guards).map(plain).collect();
    assert_eq!(guards, std::mem::take(&mut model.guards), "{name}");
}

#[test]
fn f7_every_damage_is_found_once_where_the_plain_list_says() {
    for seed in 0..60 {
        run(seed);
    }
}
