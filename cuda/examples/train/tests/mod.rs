//! What the example claims, on the driver there is; what needs the stand-in says so where there is none.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

#[path = "../../../tests/all/common/mod.rs"]
mod common;
mod gradients;
mod ptx;
mod refusals;
mod runs;

use crate::gpu::Gpu;
use crate::train::Settings;

fn gpu() -> Gpu {
    Gpu::new(common::driver()).unwrap()
}

/// A network that trains in no time.
const SMALL: Settings = Settings {
    seed: 7,
    hidden: 8,
    batch: 32,
    steps: 130,
    rate: 0.5,
};
