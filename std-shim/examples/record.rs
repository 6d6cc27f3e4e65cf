//! A program that records its own allocations, as you would in yours:
//!
//! ```text
//! LARDER_RECORD=program.trace LARDER_RECORD_FROM=64KiB cargo run -p larder --example record
//! larder replay program.trace
//! ```

use larder::{Larder, Recorder};

#[global_allocator]
static HEAP: Recorder<Larder> = Recorder::new(Larder::new());

/// Numbers kept during the whole program: 1 MiB.
const WEIGHTS: usize = 1 << 18;

/// Rows of each step, of 1000 numbers each.
const ROWS: [usize; 4] = [40, 25, 60, 40];

// Visible in its crate so that a test can run it; yours need not be.
pub(crate) fn main() {
    let mut weights = vec![0.5_f32; WEIGHTS];
    for rows in ROWS {
        // Optional: a replay can plan the steps of a program that repeats itself.
        HEAP.step();
        let input = vec![1.0_f32; rows * 1000];
        let mut output = Vec::with_capacity(input.len());
        for (number, weight) in input.iter().zip(weights.iter().cycle()) {
            output.push(number * weight);
        }
        drop(input);
        output.resize(2 * rows * 1000, 0.0);
        for (weight, change) in weights.iter_mut().zip(&output) {
            *weight += change * 0.001;
        }
    }
    println!("{:.3}", weights.iter().sum::<f32>());
}
