//! Random operations on a whole stack, and damage done on purpose, beside a plain list of what must be
//! found when.

use std::collections::VecDeque;

use super::ground::{best_fit, buffer, flip, places, rows};
use larder_core::decorate::{
    CheckError, GuardConfig, Guarded, Poisoned, QuarantineConfig, Quarantined, Tracked, Which,
};
use larder_core::{
    Align, Block, BlockAllocator, Epoch, Lane, Pattern, Request, SliceAccess, Stamp,
};
use larder_model::Random;

const BYTES: u64 = 1 << 20;
const LIMIT: u64 = 6000;
const PLACES: usize = 7;

/// What the model knows of a block.
#[derive(Clone, Copy, Debug)]
struct Known {
    addr: u64,
    bytes: u64,
    /// First damage of its guards: the front one goes before the tail.
    guards: Option<(Which, i64)>,
    /// First damage since it was freed.
    freed: Option<i64>,
}

type Find = (u64, Which, i64);

/// What must be in the lists.
#[derive(Default)]
struct Model {
    waiting: VecDeque<Known>,
    bytes: u64,
    /// Finds of leaving blocks, and of their guards.
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

/// Flips a byte of the front or the tail guard of a block whose guards are whole.
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

fn run(seed: u64) {
    let (inner, access) = (best_fit(BYTES, 256, 256), buffer(BYTES));
    let tracked = Tracked::new(&inner, places(4));
    let guarded = Guarded::new(&tracked, &access, GuardConfig::new(), rows(64));
    let config = QuarantineConfig::new(LIMIT);
    let quarantined = Quarantined::new(&guarded, &access, config, places(PLACES)).unwrap();
    let allocator = Poisoned::new(&quarantined, &access, Pattern::F32_NAN).unwrap();
    let mut random = Random::new(seed);
    let mut model = Model::default();
    let mut live: Vec<(Block, Known)> = Vec::new();
    for step in 0..400 {
        let name = format!("seed {seed}, step {step}");
        match random.below(12) {
            0..5 if live.len() < 32 => {
                let most = if random.below(8) == 0 { 9000 } else { 1500 };
                let bytes = 1 + random.below(most);
                let align = Align::new(1 << random.below(9)).unwrap();
                let block = allocator
                    .alloc(&Request::new(bytes).aligned(align))
                    .unwrap()
                    .block;
                let addr = block.addr().get();
                live.push((
                    block,
                    Known {
                        addr,
                        bytes,
                        guards: None,
                        freed: None,
                    },
                ));
            }
            5..9 if !live.is_empty() => {
                let at = random.below(live.len() as u64) as usize;
                let (block, known) = live.swap_remove(at);
                if random.below(3) == 0 {
                    let stamp = Stamp {
                        lane: Lane::MAIN,
                        epoch: Epoch::new(1),
                    };
                    allocator.free_after(block, stamp).unwrap();
                } else {
                    allocator.free(block).unwrap();
                }
                model.free(known);
            }
            9 if !live.is_empty() => {
                let at = random.below(live.len() as u64) as usize;
                hurt(&access, &mut live[at].1, &mut random);
            }
            10 if !model.waiting.is_empty() => {
                let at = random.below(model.waiting.len() as u64) as usize;
                let known = &mut model.waiting[at];
                let offset = random.below(known.bytes);
                if known.freed.is_none() {
                    flip(&access, known.addr + offset, 1 + random.below(255) as u8);
                    known.freed = Some(offset as i64);
                }
            }
            11 if step % 5 == 0 => {
                let mut found = Vec::new();
                guarded.check_all(|find| found.push(plain(find)));
                let mut expected: Vec<Find> = live
                    .iter()
                    .map(|(_, known)| known)
                    .chain(&model.waiting)
                    .filter_map(|known| known.guards.map(|(which, at)| (known.addr, which, at)))
                    .collect();
                found.sort_by_key(|find| find.0);
                expected.sort_by_key(|find| find.0);
                assert_eq!(found, expected, "{name}");
            }
            11 => {
                let mut found = Vec::new();
                quarantined.check_all(|find| found.push(plain(find)));
                let mut expected = Vec::new();
                for known in &mut model.waiting {
                    if let Some(offset) = known.freed.take() {
                        expected.push((known.addr, Which::Freed, offset));
                    }
                }
                assert_eq!(found, expected, "{name}");
                model.freed.extend(expected);
            }
            _ => {}
        }
        take_all(
            &mut model,
            || quarantined.take_finding(),
            || guarded.take_finding(),
            &name,
        );
        let stats = quarantined.quarantine_stats();
        let expected = (model.waiting.len() as u64, model.bytes);
        assert_eq!(
            (stats.waiting_blocks, stats.waiting_bytes),
            expected,
            "{name}"
        );
    }
    for (block, known) in live {
        allocator.free(block).unwrap();
        model.free(known);
        take_all(
            &mut model,
            || quarantined.take_finding(),
            || guarded.take_finding(),
            "at the end",
        );
    }
    quarantined.drain();
    model.drain();
    take_all(
        &mut model,
        || quarantined.take_finding(),
        || guarded.take_finding(),
        "at the end",
    );
    assert_eq!(
        (inner.stats().live_bytes, tracked.track_stats().live_bytes),
        (0, 0)
    );
}

/// The lists have what the model says, and are empty afterwards.
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
