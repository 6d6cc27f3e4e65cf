//! Two spirals, drawn from a seed: points in the plane, and the arm that each belongs to.

use std::f32::consts::{PI, TAU};

/// Numbers from a seed, the same on every machine (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number from -1 to 1.
    pub(crate) fn signed(&mut self) -> f32 {
        // An `f32` holds 24 bits exactly.
        let unit = (self.next() >> 40) as f32 / (1 << 24) as f32;
        2.0 * unit - 1.0
    }
}

/// Largest distance of a point from the middle of its arm.
const NOISE: f32 = 0.03;

/// Number of turns of an arm.
const TURNS: f32 = 1.0;

/// Draws a point, and 0 or 1 for its arm.
pub(crate) fn sample(random: &mut Random) -> ([f32; 2], f32) {
    let arm = if random.signed() < 0.0 { 0.0 } else { 1.0 };
    let along = (random.signed() + 1.0) / 2.0;
    let (radius, angle) = (0.1 + 0.9 * along, TAU * TURNS * along + PI * arm);
    let mut blurred = |value: f32| value + NOISE * random.signed();
    let point = [blurred(radius * angle.cos()), blurred(radius * angle.sin())];
    (point, arm)
}

/// Fills memory with samples: all points, then all labels.
pub(crate) fn fill(memory: &mut [f32], random: &mut Random) {
    let (points, labels) = memory.split_at_mut(memory.len() / 3 * 2);
    for (place, label) in points.chunks_exact_mut(2).zip(labels) {
        let (point, arm) = sample(random);
        place.copy_from_slice(&point);
        *label = arm;
    }
}
