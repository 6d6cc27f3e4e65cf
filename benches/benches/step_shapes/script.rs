//! The events of a step.
//!
//! A training step is that of `versus-worker`'s `steps`: in the forward pass each layer has working memory and an
//! activation, which lives until the backward pass; there it has a gradient of the activation, working memory, and a
//! gradient of the weights, which lives until the update.

use larder_model::Random;

use super::buffer::Buffer;
use super::programs::Run;

/// Layers of a network.
const LAYERS: usize = 24;
/// Sizes of a network's buffers.
const MIN_BYTES: usize = 64 << 10;
const MAX_BYTES: usize = 8 << 20;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    Alloc { slot: usize, bytes: usize },
    Free { slot: usize },
}

/// A step: its allocations and frees, in order. Each buffer has a slot of its own.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) events: Vec<Event>,
    slots: usize,
}

impl Script {
    pub(crate) fn alloc(&mut self, bytes: usize) -> usize {
        let slot = self.slots;
        self.slots += 1;
        self.events.push(Event::Alloc { slot, bytes });
        slot
    }

    pub(crate) fn free(&mut self, slot: usize) {
        self.events.push(Event::Free { slot });
    }

    /// Returns the bytes of all allocations together.
    pub(crate) fn bytes(&self) -> usize {
        let size = |event: &Event| match *event {
            Event::Alloc { bytes, .. } => bytes,
            Event::Free { .. } => 0,
        };
        self.events.iter().map(size).sum()
    }

    /// Carries out all events. Returns the buffers that are still live.
    pub(crate) fn play(&self, run: &mut Run) -> Vec<Buffer> {
        self.play_part(self.events.len(), run, drop)
    }

    /// Carries out the first `count` events. Calls `free` with each buffer to be freed. Returns the buffers that are
    /// still live.
    pub(crate) fn play_part(
        &self,
        count: usize,
        run: &mut Run,
        mut free: impl FnMut(Buffer),
    ) -> Vec<Buffer> {
        let mut slots: Vec<Option<Buffer>> = (0..self.slots).map(|_| None).collect();
        for event in &self.events[..count] {
            match *event {
                Event::Alloc { slot, bytes } => slots[slot] = Some(run.buffer(bytes)),
                Event::Free { slot } => slots[slot].take().into_iter().for_each(&mut free),
            }
        }
        slots.into_iter().flatten().collect()
    }
}

/// The sizes of a network's layers.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    activations: Vec<usize>,
    working: Vec<usize>,
    weights: Vec<usize>,
}

impl Network {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut sizes = || {
            (0..LAYERS)
                .map(|_| log_within(MIN_BYTES, MAX_BYTES, &mut random))
                .collect()
        };
        Self {
            activations: sizes(),
            working: sizes(),
            weights: sizes(),
        }
    }

    /// Returns the network with other sizes, which depend on the batch, and with other weights.
    pub(crate) fn scaled(&self, batch: f64, weights: f64) -> Self {
        let scaled = |sizes: &[usize], factor: f64| {
            sizes
                .iter()
                .map(|&bytes| (bytes as f64 * factor) as usize)
                .collect()
        };
        Self {
            activations: scaled(&self.activations, batch),
            working: scaled(&self.working, batch),
            weights: scaled(&self.weights, weights),
        }
    }

    /// Returns a step that trains the network.
    pub(crate) fn train(&self) -> Script {
        let (mut script, gradients) = self.to_gradients();
        for (layer, gradient) in gradients {
            let scratch = script.alloc(self.weights[layer]);
            script.free(scratch);
            script.free(gradient);
        }
        script
    }

    /// Returns a step that leaves the gradients of the weights.
    pub(crate) fn accumulate(&self) -> Script {
        self.to_gradients().0
    }

    /// Returns a step that only evaluates the network.
    pub(crate) fn evaluate(&self) -> Script {
        let mut script = Script::default();
        let mut behind = None;
        for layer in 0..LAYERS {
            let scratch = script.alloc(self.working[layer]);
            let activation = script.alloc(self.activations[layer]);
            script.free(scratch);
            if let Some(behind) = behind.replace(activation) {
                script.free(behind);
            }
        }
        behind.into_iter().for_each(|slot| script.free(slot));
        script
    }

    /// Returns the passes before the update, and each layer with its gradient of the weights.
    fn to_gradients(&self) -> (Script, Vec<(usize, usize)>) {
        let mut script = Script::default();
        let mut kept = Vec::new();
        for layer in 0..LAYERS {
            let scratch = script.alloc(self.working[layer]);
            kept.push(script.alloc(self.activations[layer]));
            script.free(scratch);
        }
        let mut behind = None;
        let mut gradients = Vec::new();
        for (layer, activation) in kept.into_iter().enumerate().rev() {
            let gradient = script.alloc(self.activations[layer]);
            let scratch = script.alloc(self.working[layer]);
            gradients.push((layer, script.alloc(self.weights[layer])));
            script.free(scratch);
            script.free(activation);
            if let Some(behind) = behind.replace(gradient) {
                script.free(behind);
            }
        }
        behind.into_iter().for_each(|slot| script.free(slot));
        (script, gradients)
    }
}

/// Returns a size from `min` to `max`, with each doubling equally likely.
pub(crate) fn log_within(min: usize, max: usize, random: &mut Random) -> usize {
    let fraction = random.below(1 << 32) as f64 / f64::from(u32::MAX);
    (min as f64 * (max as f64 / min as f64).powf(fraction)) as usize
}
