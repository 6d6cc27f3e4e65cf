//! Random programs: the seed draws what their steps are like.

use larder_model::Random;

use super::buffer::Buffer;
use super::programs::{Cache, Run};
use super::script::{Script, log_within};

/// Bytes that a full run allocates, within bounds for its steps.
const RUN_BYTES: usize = 200 << 30;

/// The choice of the live buffer that is freed next.
#[derive(Debug, Clone, Copy)]
enum Order {
    Nested,
    Any,
    Fifo,
}

/// The properties that the steps of a program have in common.
#[derive(Debug)]
pub(crate) struct Family {
    buffers: usize,
    min_bytes: usize,
    max_bytes: usize,
    order: Order,
    kinds: usize,
    /// Whether the kinds come in turn, rather than in random order.
    in_turn: bool,
    /// Steps unlike any other, in 100 steps.
    odd_percent: u64,
    /// Buffers that outlive their step, in 1000 buffers.
    outliving_permille: u64,
}

impl Family {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let min_bytes = (36 << 10) << random.below(5);
        Self {
            buffers: 20 + random.index(381),
            min_bytes,
            max_bytes: min_bytes << random.below(6),
            order: *random.pick(&[Order::Nested, Order::Any, Order::Fifo]),
            kinds: 1 + random.index(6),
            in_turn: random.below(2) == 0,
            odd_percent: *random.pick(&[0, 0, 1, 5, 20]),
            outliving_permille: *random.pick(&[0, 0, 1, 10, 50]),
        }
    }

    fn script(&self, random: &mut Random) -> Script {
        let mut script = Script::default();
        let mut live = Vec::new();
        for _ in 0..self.buffers {
            live.push(script.alloc(log_within(self.min_bytes, self.max_bytes, random)));
            while !live.is_empty() && random.below(5) < 2 {
                script.free(self.pick(&mut live, random));
            }
        }
        while !live.is_empty() {
            script.free(self.pick(&mut live, random));
        }
        script
    }

    /// Takes the slot that is freed next.
    fn pick(&self, live: &mut Vec<usize>, random: &mut Random) -> usize {
        live.remove(match self.order {
            Order::Nested => live.len() - 1,
            Order::Any => random.index(live.len()),
            Order::Fifo => 0,
        })
    }
}

pub(crate) fn program(run: &mut Run) -> Vec<Buffer> {
    let mut random = run.random.clone();
    let family = Family::draw(&mut random);
    let scripts: Vec<Script> = (0..family.kinds)
        .map(|_| family.script(&mut random))
        .collect();
    let bytes: usize = scripts.iter().map(Script::bytes).sum();
    let full = RUN_BYTES / (bytes / scripts.len());
    let mut cache = Cache::default();
    for at in 0..run.count(full.clamp(400, 1500)) {
        let turn = if family.in_turn {
            at
        } else {
            random.index(scripts.len())
        };
        let kind = turn % scripts.len();
        let odd = (random.below(100) < family.odd_percent).then(|| family.script(&mut random));
        let script = odd.as_ref().unwrap_or(&scripts[kind]);
        let _step = run.step(0);
        script.play_part(script.events.len(), run, |buffer| {
            if random.below(1000) < family.outliving_permille {
                cache.add(buffer, &mut random);
            }
        });
    }
    cache.0
}
