//! Tests of what the example claims, on any driver. Tests that need the stand-in say so if there is
//! none.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

#[path = "../../../tests/all/common/mod.rs"]
mod common;
mod gradients;
mod ptx;
mod refusals;
mod runs;

use crate::gpu::TrainDevice;
use crate::train::TrainSettings;

fn gpu() -> TrainDevice {
    TrainDevice::new(common::driver()).unwrap()
}

/// A network that trains quickly.
const SMALL: TrainSettings = TrainSettings {
    seed: 7,
    hidden: 8,
    batch: 32,
    steps: 130,
    rate: 0.5,
};
