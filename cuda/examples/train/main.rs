//! Trains a small network on a GPU: two spirals, two layers, kernels as PTX text, plain gradient descent.
//!
//! ```text
//! cargo run --release -p larder-cuda --example train
//! LARDER_CUDA_DRIVER=stand-in cargo run -p larder-cuda --example train     # even if there is a GPU
//! ```
//!
//! Its modules show:
//!
//! * `model`: weights are `SyncedMemory`, written by the host, trained by the device, read by the host.
//!   Activations and gradients are `DeviceBuffer`, allocated in every step and dropped once they are no
//!   longer needed; from the second or third step on, they lie where a plan places them.
//! * `train`: the next batch is copied on a stream of its own while the kernels use the present one. The
//!   program has no events: the buffers order the streams.
//! * `gpu`: kernels are launched through cudarc, with buffers and views as arguments. `host` has the same
//!   kernels for the stand-in driver.
//!
//! It ends with an error if the loss did not fall, or if the last hundred steps asked the driver for memory.

mod data;
mod gpu;
mod host;
mod model;
#[cfg(test)]
mod tests;
mod train;

use std::process::ExitCode;

use gpu::TrainDevice;
use larder_cuda::driver::load_from_env;
use train::{TrainSettings, train};

/// Any error: of the driver, of an allocation, or of sizes that do not fit.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("train: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let gpu = TrainDevice::new(load_from_env()?)?;
    let report = train(&gpu, &TrainSettings::new(), || {})?;
    println!("{report}");
    report.wrong().map_or(Ok(()), |wrong| Err(wrong.into()))
}
