//! Compares the device's gradients with differences of the loss, which the host calculates.

use super::common::together;
use super::gpu;
use crate::data::Random;
use crate::model::{Batch, HostModel, Network};

/// How far weights are moved.
const STEP: f32 = 1e-3;

/// Maximum error of a gradient: both sides round, and a difference has a width.
const OFF: f64 = 1e-4;

/// All weights, one kind after another.
#[derive(Clone)]
struct Weights([Vec<f32>; 4]);

impl Weights {
    fn loss(&self, points: &[f32], labels: &[f32]) -> f64 {
        let [w1, b1, w2, b2] = &self.0;
        let model = HostModel { w1, b1, w2, b2 };
        let losses = points.chunks_exact(2).zip(labels).map(|(point, label)| {
            let z = model.logit([point[0], point[1]]);
            z.max(0.0) + (-z.abs()).exp().ln_1p() - f64::from(*label) * z
        });
        losses.sum::<f64>() / labels.len() as f64
    }

    /// Returns the derivative with respect to one weight, as a difference.
    fn difference(&self, kind: usize, index: usize, points: &[f32], labels: &[f32]) -> f64 {
        let moved = |by: f32| {
            let mut moved = self.clone();
            moved.0[kind][index] += by;
            (f64::from(moved.0[kind][index]), moved.loss(points, labels))
        };
        let ((low, before), (high, after)) = (moved(-STEP), moved(STEP));
        (after - before) / (high - low)
    }
}

#[test]
fn gradients_are_those_of_the_loss() {
    let _turn = together();
    let gpu = gpu();
    for seed in 0..3 {
        let mut random = Random::new(seed);
        let mut model = Network::new(&gpu, 9, &mut random).unwrap();
        let mut batch = Batch::new(&gpu, 37).unwrap();
        batch.draw(&mut random).unwrap();
        let mut loss = gpu.memory.zeros::<f32>(&gpu.compute, 1).unwrap();
        let gradients = model
            .gradients(&gpu, &mut batch, loss.as_view_mut())
            .unwrap();
        let read = |buffer| gpu.compute.clone_dtoh(buffer).unwrap();
        let found = [
            read(&gradients.w1),
            read(&gradients.b1),
            read(&gradients.w2),
            read(&gradients.b2),
        ];

        let on_host = model.on_host().unwrap();
        let weights = [on_host.w1, on_host.b1, on_host.w2, on_host.b2];
        let weights = Weights(weights.map(<[f32]>::to_vec));
        let (points, labels) = batch.on_host().unwrap();
        let expected = weights.loss(points, labels);
        let loss = f64::from(read(&loss)[0]);
        assert!(
            (loss - expected).abs() < OFF,
            "seed {seed}: {loss} for {expected}"
        );
        for (kind, found) in found.iter().enumerate() {
            assert_eq!(found.len(), weights.0[kind].len());
            for (index, found) in found.iter().enumerate() {
                let expected = weights.difference(kind, index, points, labels);
                let found = f64::from(*found);
                assert!(
                    (found - expected).abs() < OFF,
                    "seed {seed}, weight {index} of kind {kind}: {found} for {expected}"
                );
            }
        }
    }
}
