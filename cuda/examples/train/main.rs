//! Trains a small network on a GPU: two spirals, two layers, kernels as PTX text, plain descent.
//!
//! ```text
//! cargo run --release -p larder-cuda --example train
//! LARDER_CUDA_DRIVER=stand-in cargo run -p larder-cuda --example train     # also where there is a GPU
//! ```
//!
//! It prints:
//!
//! * `model`: weights are `SyncedMemory`, written by the host, trained by the device, read by the host.
//!   Activations and gradients are `DeviceBuffer`, allocated in every step and dropped where they are not
//!   needed any more; from the second or third step on they lie where a plan puts them.
//! * `train`: the next batch is copied on a stream of its own while the kernels use the present one. There is
//!   no event in the program: the buffers put the streams in order.
//! * `gpu`: kernels through cudarc, with buffers and views as arguments. `host` is the same kernels for the
//!   stand-in driver.
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
