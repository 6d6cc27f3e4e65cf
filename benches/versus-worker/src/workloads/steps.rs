//! A repeated step with large buffers, as when a small network is trained on the CPU.
//!
//! In the forward pass, each layer allocates working memory and an activation, which stays until the backward
//! pass. In the backward pass, it allocates the gradient of the activation, working memory, and the gradient of
//! the weights, which stays until the update; the activation and the next layer's gradient are freed. The
//! update allocates working memory for each gradient of weights, and frees both.

use std::hint::black_box;

use crate::allocator;
use crate::clock::{Laps, Live, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

const LAYERS: usize = 24;
/// Sizes of activations, working memory and weights, in bytes.
const MIN_BYTES: f64 = 65536.0;
const MAX_BYTES: f64 = 8_388_608.0;

/// Number of timed turns in a full run, and number of untimed turns before them.
const TURNS: u32 = 30;
const WARM_UP: usize = 4;

/// Lengths of batches, one or three, in quarters of the longest.
const ONE: &[usize] = &[4];
const THREE: &[usize] = &[4, 3, 2];

/// Words are 8 bytes, pages 4 KiB.
const WORD_BYTES: usize = size_of::<u64>();
const WORDS_OF_PAGE: usize = 4096 / WORD_BYTES;

pub fn one_shape(scale: Scale) -> Outcome {
    steps(ONE, Contents::Pages, scale)
}

pub fn three_shapes(scale: Scale) -> Outcome {
    steps(THREE, Contents::Pages, scale)
}

pub fn filled(scale: Scale) -> Outcome {
    steps(ONE, Contents::Words, scale)
}

/// Leaves the buffers untouched. Operations count blocks, not steps.
pub fn untouched(scale: Scale) -> Outcome {
    let outcome = steps(ONE, Contents::Nothing, scale);
    let blocks = StepScript::train(4).slots as u64;
    Outcome {
        operations: outcome.operations * blocks,
        ..outcome
    }
}

/// The values written into a buffer, and read back before it is freed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Contents {
    Nothing,
    /// One word of each page.
    Pages,
    Words,
}

/// Runs turns, each with one step of every length.
fn steps(lengths: &[usize], contents: Contents, scale: Scale) -> Outcome {
    let scripts: Vec<StepScript> = lengths
        .iter()
        .map(|length| StepScript::train(*length))
        .collect();
    let mut play = Play::new(&scripts);
    for _ in 0..WARM_UP {
        for script in &scripts {
            // All pages are written, since pages that are never written take no memory.
            play.step(script, contents.or_pages(), |_| ());
        }
    }
    let turns = scale.of(TURNS);
    let mut laps = Laps::new(turns);
    for _ in 0..turns {
        laps.lap(|| {
            for script in &scripts {
                play.step(script, contents, |_| ());
            }
        });
    }
    let live = (contents != Contents::Nothing).then(|| play.look(&scripts[0], contents));
    laps.stop((turns * scripts.len()) as u64, play.tally.answer())
        .with_live(live)
}

#[derive(Debug)]
enum StepEvent {
    Alloc { slot: usize, bytes: usize },
    Free { slot: usize },
}

/// A step: its allocations and frees, in order.
#[derive(Debug, Default)]
struct StepScript {
    events: Vec<StepEvent>,
    /// Number of slots, one for each block.
    slots: usize,
}

impl StepScript {
    /// Makes the step with activations and working memory of `quarters` quarters.
    fn train(quarters: usize) -> Self {
        let mut random = Random::new(24);
        let mut sizes = |quarters: usize| -> Vec<usize> {
            let mut size = || random.log_within(MIN_BYTES, MAX_BYTES) / 4 * quarters;
            (0..LAYERS).map(|_| size()).collect()
        };
        let (activations, working) = (sizes(quarters), sizes(quarters));
        let weights = sizes(4);
        let mut script = Self::default();
        let mut kept = Vec::new();
        for layer in 0..LAYERS {
            let scratch = script.alloc(working[layer]);
            kept.push(script.alloc(activations[layer]));
            script.free(scratch);
        }
        let mut behind = None;
        let mut gradients = Vec::new();
        for (layer, activation) in kept.into_iter().enumerate().rev() {
            let gradient = script.alloc(activations[layer]);
            let scratch = script.alloc(working[layer]);
            gradients.push((layer, script.alloc(weights[layer])));
            script.free(scratch);
            script.free(activation);
            if let Some(behind) = behind.replace(gradient) {
                script.free(behind);
            }
        }
        if let Some(behind) = behind {
            script.free(behind);
        }
        for (layer, gradient) in gradients {
            let scratch = script.alloc(weights[layer]);
            script.free(scratch);
            script.free(gradient);
        }
        script
    }

    fn alloc(&mut self, bytes: usize) -> usize {
        let slot = self.slots;
        self.slots += 1;
        self.events.push(StepEvent::Alloc { slot, bytes });
        slot
    }

    fn free(&mut self, slot: usize) {
        self.events.push(StepEvent::Free { slot });
    }

    /// Returns the maximum live bytes, and the event that reaches them.
    fn peak(&self) -> (u64, usize) {
        let mut sizes = vec![0; self.slots];
        let mut live = 0;
        let mut peak = (0, 0);
        for (index, event) in self.events.iter().enumerate() {
            match *event {
                StepEvent::Alloc { slot, bytes } => {
                    sizes[slot] = bytes as u64;
                    live += bytes as u64;
                }
                StepEvent::Free { slot } => live -= sizes[slot],
            }
            if live > peak.0 {
                peak = (live, index);
            }
        }
        peak
    }
}

/// The live buffers, and the sums written and read.
struct Play {
    slots: Vec<Option<SummedBuffer>>,
    random: Random,
    tally: Tally,
}

impl Play {
    fn new(scripts: &[StepScript]) -> Self {
        let slots = scripts.iter().map(|script| script.slots).max();
        Self {
            slots: (0..slots.unwrap_or(0)).map(|_| None).collect(),
            random: Random::new(8),
            tally: Tally::default(),
        }
    }

    /// Calls `after` with the number of each event.
    fn step(&mut self, script: &StepScript, contents: Contents, mut after: impl FnMut(usize)) {
        let _step = allocator::step();
        for (index, event) in script.events.iter().enumerate() {
            match *event {
                StepEvent::Alloc { slot, bytes } => {
                    let mut buffer = SummedBuffer::new(bytes, self.random.next());
                    self.tally.wrote(buffer.write(contents));
                    self.slots[slot] = Some(buffer);
                }
                StepEvent::Free { slot } => {
                    if let Some(buffer) = self.slots[slot].take() {
                        self.tally.read(buffer.finish(contents));
                    }
                }
            }
            after(index);
        }
    }

    /// Runs one more step, and reads the memory when the most bytes are live.
    fn look(&mut self, script: &StepScript, contents: Contents) -> Live {
        let (bytes, peak) = script.peak();
        let mut live = None;
        self.step(script, contents, |index| {
            if index == peak {
                live = Some(Live::look(bytes));
            }
        });
        live.unwrap_or_else(|| Live::look(0))
    }
}

/// A large buffer with the sums of the values written into it.
struct SummedBuffer {
    words: Vec<u64>,
    stamp: u64,
}

impl SummedBuffer {
    fn new(bytes: usize, stamp: u64) -> Self {
        let mut words = Vec::with_capacity(bytes / WORD_BYTES);
        // Hides the buffer's use from the optimiser.
        black_box(words.as_mut_ptr());
        Self { words, stamp }
    }

    /// Writes the values. Returns their sum.
    fn write(&mut self, contents: Contents) -> u64 {
        let stamp = self.stamp;
        let count = match contents {
            Contents::Nothing => return self.words.capacity() as u64,
            Contents::Pages => {
                let pages = self.words.spare_capacity_mut().iter_mut();
                let mut count = 0;
                for word in pages.step_by(WORDS_OF_PAGE) {
                    word.write(stamp.wrapping_add(count));
                    count += 1;
                }
                count
            }
            Contents::Words => {
                let count = self.words.capacity() as u64;
                self.words
                    .extend((0..count).map(|at| stamp.wrapping_add(at)));
                count
            }
        };
        let positions = (count * count.saturating_sub(1)) / 2;
        stamp.wrapping_mul(count).wrapping_add(positions)
    }

    /// Frees the buffer. Returns the sum of its contents.
    fn finish(mut self, contents: Contents) -> u64 {
        let sum = |sum: u64, word: u64| sum.wrapping_add(word);
        match contents {
            Contents::Nothing => self.words.capacity() as u64,
            Contents::Pages => {
                let pages = self.words.spare_capacity_mut().iter();
                pages
                    .step_by(WORDS_OF_PAGE)
                    // SAFETY: `write` wrote these words.
                    .map(|word| unsafe { word.assume_init_read() })
                    .fold(0, sum)
            }
            Contents::Words => self.words.iter().copied().fold(0, sum),
        }
    }
}

impl Contents {
    fn or_pages(self) -> Self {
        if self == Self::Nothing {
            Self::Pages
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_frees_all_it_allocates_and_its_peak_is_in_the_middle() {
        for quarters in [4, 3, 2] {
            let script = StepScript::train(quarters);
            assert_eq!(script.slots, LAYERS * 6);
            assert_eq!(script.events.len(), 2 * script.slots);
            let (bytes, at) = script.peak();
            assert!((40 << 20..200 << 20).contains(&bytes), "{bytes}");
            assert!((LAYERS..script.events.len()).contains(&at), "{at}");
        }
    }

    #[test]
    fn what_is_read_is_what_was_written_until_somebody_else_writes() {
        for contents in [Contents::Nothing, Contents::Pages, Contents::Words] {
            let mut buffer = SummedBuffer::new(100_000, 77);
            assert_eq!(buffer.write(contents), buffer.finish(contents));
        }
        let mut buffer = SummedBuffer::new(100_000, 77);
        let written = buffer.write(Contents::Words);
        buffer.words[9] = 0;
        assert_ne!(buffer.finish(Contents::Words), written);
    }
}
