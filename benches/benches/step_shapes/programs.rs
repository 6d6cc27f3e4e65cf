//! The programs. Each returns its live buffers.

use std::collections::VecDeque;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::sync_channel;
use std::thread;

use larder_model::Random;

use super::buffer::Buffer;
use super::families;
use super::script::{Network, Script};

/// The share of a full run's steps that run without `--bench`.
const TINY_SHARE: usize = 100;
/// Steps of a full run, which then takes about a second.
const STEPS: usize = 1200;
const CACHED: usize = 64;

pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) program: fn(&mut Run) -> Vec<Buffer>,
}

/// The name of the shape whose program depends on the seed.
pub(crate) const FAMILIES: &str = "families";

pub(crate) const SHAPES: [Shape; 16] = [
    shape("plain", plain),
    shape("buckets-keyed", |run| buckets(true, run)),
    shape("buckets", |run| buckets(false, run)),
    shape("accumulation", accumulation),
    shape("evaluation", evaluation),
    shape("prefetch", prefetch),
    shape("early-stop", early_stop),
    shape("panic", panic),
    shape("drift", drift),
    shape("phases", phases),
    shape("growing-vec", growing_vec),
    shape("cache", cache),
    shape(FAMILIES, families::program),
    shape("80-kinds", eighty_kinds),
    shape("many", many),
    shape("forgotten", forgotten),
];

const fn shape(name: &'static str, program: fn(&mut Run) -> Vec<Buffer>) -> Shape {
    Shape { name, program }
}

/// The mode and the random numbers of a run.
pub(crate) struct Run {
    pub(crate) random: Random,
    with_steps: bool,
    is_full: bool,
}

impl Run {
    pub(crate) fn new(with_steps: bool, is_full: bool, seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            with_steps,
            is_full,
        }
    }

    /// Begins a step, in programs with steps.
    pub(crate) fn step(&self, key: u64) -> Option<larder::Step> {
        self.with_steps.then(|| larder::step_keyed(key))
    }

    /// Returns the count that stands for that of a full run.
    pub(crate) fn count(&self, full: usize) -> usize {
        if self.is_full {
            full
        } else {
            (full / TINY_SHARE).max(8)
        }
    }

    pub(crate) fn buffer(&mut self, bytes: usize) -> Buffer {
        Buffer::new(bytes, self.random.next_u64())
    }

    /// Plays steps without leaving a buffer, with the script of each.
    fn steps<'s>(
        &mut self,
        full: usize,
        mut script: impl FnMut(usize, &mut Random) -> &'s Script,
    ) -> Vec<Buffer> {
        for at in 0..self.count(full) {
            let _step = self.step(0);
            script(at, &mut self.random).play(self);
        }
        Vec::new()
    }
}

/// Buffers that outlive their step, until a random one is evicted.
#[derive(Default)]
pub(crate) struct Cache(pub(crate) Vec<Buffer>);

impl Cache {
    pub(crate) fn add(&mut self, buffer: Buffer, random: &mut Random) {
        if self.0.len() == CACHED {
            self.0.swap_remove(random.index(CACHED));
        }
        self.0.push(buffer);
    }
}

fn plain(run: &mut Run) -> Vec<Buffer> {
    let script = Network::new(1).train();
    run.steps(STEPS, |_, _| &script)
}

/// Batches of eight lengths, in random order.
fn buckets(is_keyed: bool, run: &mut Run) -> Vec<Buffer> {
    let network = Network::new(1);
    let scripts: Vec<Script> = (1..=8)
        .map(|eighths| network.scaled(f64::from(eighths) / 8.0, 1.0).train())
        .collect();
    for _ in 0..run.count(STEPS) {
        let bucket = run.random.index(scripts.len());
        let _step = run.step(if is_keyed { bucket as u64 + 1 } else { 0 });
        scripts[bucket].play(run);
    }
    Vec::new()
}

/// The gradients of each step are freed in the fourth step after it.
fn accumulation(run: &mut Run) -> Vec<Buffer> {
    let script = Network::new(1).accumulate();
    let mut gradients = VecDeque::new();
    for _ in 0..run.count(STEPS) {
        let _step = run.step(0);
        gradients.push_back(script.play(run));
        if gradients.len() > 4 {
            gradients.pop_front();
        }
    }
    gradients.into_iter().flatten().collect()
}

/// Three steps that evaluate follow ten that train.
fn evaluation(run: &mut Run) -> Vec<Buffer> {
    let network = Network::new(1);
    let (train, evaluate) = (network.train(), network.evaluate());
    run.steps(STEPS, |at, _| if at % 13 < 10 { &train } else { &evaluate })
}

/// A thread allocates the inputs, in steps of its own, up to two steps ahead.
fn prefetch(run: &mut Run) -> Vec<Buffer> {
    const INPUTS: [usize; 3] = [6 << 20, 2 << 20, 700_000];
    let script = Network::new(1).train();
    let count = run.count(STEPS);
    let mut loader = Run {
        random: Random::new(2),
        ..*run
    };
    let (sender, receiver) = sync_channel(2);
    thread::scope(|threads| {
        threads.spawn(move || {
            for _ in 0..count {
                let _step = loader.step(0);
                let inputs = INPUTS.map(|bytes| loader.buffer(bytes));
                if sender.send(inputs).is_err() {
                    break;
                }
            }
        });
        for _ in 0..count {
            let _step = run.step(0);
            let inputs = receiver.recv();
            script.play(run);
            drop(inputs);
        }
    });
    Vec::new()
}

/// Each step ends at a random event.
fn early_stop(run: &mut Run) -> Vec<Buffer> {
    let script = Network::new(1).train();
    for _ in 0..run.count(STEPS) {
        let count = run.random.index(script.events.len()) + 1;
        let _step = run.step(0);
        script.play_part(count, run, drop);
    }
    Vec::new()
}

/// Each step in twenty panics at a random event.
fn panic(run: &mut Run) -> Vec<Buffer> {
    struct Planned;
    let script = Network::new(1).train();
    for _ in 0..run.count(STEPS) {
        let panics_at = (run.random.below(20) == 0).then(|| run.random.index(script.events.len()));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _step = run.step(0);
            let _live = script.play_part(panics_at.unwrap_or(script.events.len()), run, drop);
            if panics_at.is_some() {
                // Unlike `panic!` it prints nothing.
                resume_unwind(Box::new(Planned));
            }
        }));
        if let Err(payload) = outcome
            && !payload.is::<Planned>()
        {
            resume_unwind(payload);
        }
    }
    Vec::new()
}

/// All sizes grow a little in each step.
fn drift(run: &mut Run) -> Vec<Buffer> {
    let network = Network::new(1);
    for at in 0..run.count(STEPS) {
        let factor = 1.001_f64.powi((at % 500) as i32);
        let script = network.scaled(factor, factor).train();
        let _step = run.step(0);
        script.play(run);
    }
    Vec::new()
}

/// Three networks, one after another.
fn phases(run: &mut Run) -> Vec<Buffer> {
    let scripts = [1, 2, 3].map(|seed| Network::new(seed).train());
    let count = run.count(STEPS);
    run.steps(STEPS, |at, _| &scripts[at * scripts.len() / count])
}

/// A vector grows to 128 MiB, beside a few buffers.
fn growing_vec(run: &mut Run) -> Vec<Buffer> {
    const PIECE_BYTES: usize = 64 << 10;
    let pieces = run.count(2048);
    for _ in 0..run.count(STEPS / 8) {
        let _step = run.step(0);
        let _beside = [5 << 20, 300_000, 2 << 20].map(|bytes| run.buffer(bytes));
        let mut growing = run.buffer(PIECE_BYTES);
        (1..pieces).for_each(|_| growing.grow(PIECE_BYTES));
    }
    Vec::new()
}

/// One buffer in a hundred is cached.
fn cache(run: &mut Run) -> Vec<Buffer> {
    let script = Network::new(1).train();
    let mut random = Random::new(2);
    let mut cache = Cache::default();
    for _ in 0..run.count(STEPS) {
        let _step = run.step(0);
        script.play_part(script.events.len(), run, |buffer| {
            if random.below(100) == 0 {
                cache.add(buffer, &mut random);
            }
        });
    }
    cache.0
}

/// More kinds of steps than a heap remembers, in turn.
fn eighty_kinds(run: &mut Run) -> Vec<Buffer> {
    let scripts: Vec<Script> = (0..80).map(|seed| Network::new(seed).train()).collect();
    run.steps(STEPS, |at, _| &scripts[at % scripts.len()])
}

/// More buffers in a step than a heap remembers, of which five are live at a time.
fn many(run: &mut Run) -> Vec<Buffer> {
    let buffers = run.count(17_000);
    for _ in 0..run.count(STEPS / 16) {
        let _step = run.step(0);
        let mut live = VecDeque::new();
        for _ in 0..buffers {
            live.push_back(run.buffer(40 << 10));
            if live.len() > 5 {
                live.pop_front();
            }
        }
    }
    Vec::new()
}

/// The second step never ends. Later ones begin inside it.
fn forgotten(run: &mut Run) -> Vec<Buffer> {
    let script = Network::new(1).train();
    for at in 0..run.count(STEPS) {
        let step = run.step(0);
        script.play(run);
        if at == 1 {
            forget(step);
        }
    }
    Vec::new()
}
