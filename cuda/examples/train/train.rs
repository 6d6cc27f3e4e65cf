//! The training and its report.

use std::fmt;
use std::mem::swap;

use larder_core::Stats;
use larder_core::steps::StepStats;

use crate::Failure;
use crate::data::Random;
use crate::gpu::TrainDevice;
use crate::model::{Batch, HostModel, Network};

/// Number of steps at the end in which the driver must not be asked for memory.
pub(crate) const LAST: usize = 100;

/// Number of steps whose losses are averaged.
const WINDOW: usize = 20;

/// The network to train, and the number of steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrainSettings {
    pub(crate) seed: u64,
    pub(crate) hidden: usize,
    /// Number of samples of a step, and of the test.
    pub(crate) batch: usize,
    pub(crate) steps: usize,
    pub(crate) rate: f32,
}

impl TrainSettings {
    pub(crate) const fn new() -> Self {
        Self {
            seed: 1,
            hidden: 64,
            batch: 256,
            steps: 1500,
            rate: 1.0,
        }
    }
}

/// Result of a training run.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct TrainReport {
    /// The mean loss of each step.
    pub(crate) losses: Vec<f32>,
    /// Fraction of the test samples that are assigned to the correct arm of the spiral, before and after the training.
    pub(crate) accuracy: [f64; 2],
    /// The plane, with each point classified by the trained model on the host.
    pub(crate) picture: String,
    pub(crate) stats: Stats,
    pub(crate) steps: StepStats,
    /// Memory requested before the last steps, and in them.
    pub(crate) asked: [Asked; 2],
}

/// Driver calls for device memory, and bytes of pinned memory requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub(crate) calls: u64,
    pub(crate) pinned_bytes: u64,
}

impl Asked {
    fn so_far(gpu: &TrainDevice) -> Self {
        let calls = gpu.memory.driver_calls();
        Self {
            calls: calls.create + calls.map + calls.unmap + calls.release + calls.set_access,
            pinned_bytes: gpu.pinned.stats().reserved_bytes,
        }
    }

    const fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls - before.calls,
            pinned_bytes: self.pinned_bytes.abs_diff(before.pinned_bytes),
        }
    }
}

/// Trains a model; `at_last` is called before the last steps.
pub(crate) fn train(
    gpu: &TrainDevice,
    settings: &TrainSettings,
    at_last: impl FnOnce(),
) -> Result<TrainReport, Failure> {
    let mut random = Random::new(settings.seed);
    let mut model = Network::new(gpu, settings.hidden, &mut random)?;
    let mut test = Batch::new(gpu, settings.batch)?;
    test.draw(&mut random)?;
    let mut losses = gpu.memory.zeros::<f32>(&gpu.compute, settings.steps)?;
    let accuracy_before = accuracy(gpu, &mut model, &mut test)?;

    let mut now = Batch::new(gpu, settings.batch)?;
    let mut next = Batch::new(gpu, settings.batch)?;
    now.draw(&mut random)?;
    let (mut at_last, mut before_last) = (Some(at_last), None);
    for step in 0..settings.steps {
        if step + LAST >= settings.steps
            && let Some(at_last) = at_last.take()
        {
            before_last = Some(Asked::so_far(gpu));
            at_last();
        }
        next.draw(&mut random)?;
        let loss = losses.slice_mut(step..=step);
        next.push_beside(gpu, || model.step(gpu, &mut now, settings.rate, loss))?;
        swap(&mut now, &mut next);
    }
    let asked = Asked::so_far(gpu);
    let before_last = before_last.unwrap_or(asked);

    Ok(TrainReport {
        losses: gpu.compute.clone_dtoh(&losses)?,
        accuracy: [accuracy_before, accuracy(gpu, &mut model, &mut test)?],
        picture: picture(&model.on_host()?),
        stats: gpu.memory.stats(),
        steps: gpu.memory.step_stats(&gpu.compute).unwrap_or_default(),
        asked: [before_last, asked.since(before_last)],
    })
}

/// Returns the fraction of a batch's samples that the device assigns to the correct arm.
fn accuracy(gpu: &TrainDevice, model: &mut Network, batch: &mut Batch) -> Result<f64, Failure> {
    let logits = model.logits(gpu, batch)?;
    let bias = model.b2.cpu()?.first().copied().unwrap_or(0.0);
    let (_, labels) = batch.on_host()?;
    let is_right = |(logit, label): &(&f32, &f32)| (**logit + bias > 0.0) == (**label > 0.5);
    let right = logits.iter().zip(labels).filter(is_right).count();
    Ok(right as f64 / labels.len() as f64)
}

/// Draws the plane, with the second arm's side dark.
fn picture(model: &HostModel<'_>) -> String {
    let (width, height) = (48, 24);
    let place = |index: i32, count: i32| 1.1 * (2.0 * (index as f32 + 0.5) / count as f32 - 1.0);
    let mut picture = String::new();
    for row in 0..height {
        for col in 0..width {
            let point = [place(col, width), -place(row, height)];
            picture.push(if model.logit(point) > 0.0 { '#' } else { '.' });
        }
        picture.push('\n');
    }
    picture
}

impl TrainReport {
    /// Returns the mean loss of the first steps, and of the last.
    pub(crate) fn loss(&self) -> [f32; 2] {
        let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
        let window = WINDOW.min(self.losses.len());
        let (first, _) = self.losses.split_at(window);
        let (_, last) = self.losses.split_at(self.losses.len() - window);
        [mean(first), mean(last)]
    }

    /// Names the checks that failed.
    pub(crate) fn wrong(&self) -> Option<&'static str> {
        let [first, last] = self.loss();
        let [_, asked] = self.asked;
        // NaN is not less, either.
        if last.partial_cmp(&first) != Some(std::cmp::Ordering::Less) {
            Some("the loss did not fall")
        } else if asked.calls > 0 || asked.pinned_bytes > 0 {
            Some("the last steps asked the driver for memory")
        } else {
            None
        }
    }
}

impl fmt::Display for TrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([first, last], [before, after]) = (self.loss(), self.accuracy);
        let (steps, stats, [early, late]) = (&self.steps, &self.stats, &self.asked);
        writeln!(f, "{}", self.picture)?;
        writeln!(f, "loss      {first:.4} at the start, {last:.4} at the end")?;
        writeln!(
            f,
            "accuracy  {:.1} %, {:.1} %",
            100.0 * before,
            100.0 * after
        )?;
        writeln!(
            f,
            "steps     {}, of which {} known; buffers: {} at their planned place, {} not, {} of no plan",
            steps.steps, steps.known_steps, steps.hits, steps.misses, steps.unplanned
        )?;
        writeln!(
            f,
            "memory    {} buffers; live {} KiB, at most {} KiB; held {} KiB",
            stats.allocations,
            stats.live_bytes >> 10,
            stats.peak_live_bytes >> 10,
            stats.reserved_bytes >> 10
        )?;
        writeln!(
            f,
            "driver    {} calls for device memory and {} KiB pinned before the last {LAST} steps; \
             {} and {} in them",
            early.calls,
            early.pinned_bytes >> 10,
            late.calls,
            late.pinned_bytes >> 10
        )
    }
}
