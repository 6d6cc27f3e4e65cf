//! A small tensor library whose operations know only cudarc's slices, over memory from Larder.
//!
//! ```text
//! cargo run --release -p larder-cuda --example slices
//! LARDER_CUDA_DRIVER=stand-in cargo run -p larder-cuda --example slices     # even if there is a GPU
//! ```
//!
//! This is how a library that keeps a `CudaSlice` in each tensor, and launches with cudarc's builder, moves to
//! Larder: only `TensorDevice::tensor` and `TensorDevice::upload` allocate, and all other code sees their
//! `BufferSlice` as a `CudaSlice`. Weights stay; an activation is freed when it is dropped, and the next one
//! gets its memory.
//!
//! It ends with an error if a layer's result differs from the host's, or if a request after the first asked the
//! driver for memory.

#[path = "train/host.rs"]
mod host;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use larder_cuda::driver::{Driver, load_from_env};
use larder_cuda::{BufferSlice, Context, DeviceAllocator};

type Failure = Box<dyn Error>;

/// Values in a row of a request, and of each layer's result.
const WIDTHS: [usize; 4] = [32, 64, 64, 8];
/// Rows of a request.
const ROWS: usize = 16;
const REQUESTS: usize = 20;

/// A matrix on the device, row by row.
struct DeviceMatrix {
    values: BufferSlice<f32>,
    cols: usize,
}

/// The memory of tensors, and the streams and kernels that compute with them.
struct TensorDevice {
    memory: DeviceAllocator,
    /// Stream of the copies of weights and requests, which overlap the kernels.
    copies: Arc<CudaStream>,
    kernels: Arc<CudaStream>,
    matmul: CudaFunction,
    bias_tanh: CudaFunction,
}

impl TensorDevice {
    fn new(driver: &Driver) -> Result<Self, Failure> {
        if let Some(stand_in) = driver.stand_in() {
            host::register(stand_in)?;
        }
        let context = Context::new(0)?;
        let text = Ptx::from_src(include_str!("train/kernels.ptx"));
        let module = context.cudarc().load_module(text)?;
        Ok(Self {
            memory: DeviceAllocator::new(&context)?,
            copies: context.cudarc().new_stream()?,
            kernels: context.cudarc().new_stream()?,
            matmul: module.load_function("matmul")?,
            bias_tanh: module.load_function("bias_tanh")?,
        })
    }

    fn upload(&self, values: &[f32], cols: usize) -> Result<DeviceMatrix, Failure> {
        let values = self.memory.upload(&self.copies, values)?.into_slice()?;
        Ok(DeviceMatrix { values, cols })
    }

    /// Allocates a result of the kernels.
    fn tensor(&self, rows: usize, cols: usize) -> Result<DeviceMatrix, Failure> {
        // SAFETY: the only caller's kernel writes all of it.
        let values = unsafe { self.memory.buffer(&self.kernels, rows * cols) }?;
        let values = values.into_slice()?;
        Ok(DeviceMatrix { values, cols })
    }

    /// Returns the product of two matrices, through ordinary slices.
    fn matmul(&self, left: &DeviceMatrix, right: &DeviceMatrix) -> Result<DeviceMatrix, Failure> {
        let (depth, cols) = (left.cols, right.cols);
        let rows = left.values.len() / depth;
        if right.values.len() != depth * cols {
            return Err("the matrices do not fit".into());
        }
        let mut out = self.tensor(rows, cols)?;
        let sizes = numbers([rows, cols, depth, depth, 1, cols, 1])?;
        let count = u32::try_from(out.values.len())?;
        let [left, right]: [&CudaSlice<f32>; 2] = [&left.values, &right.values];
        let into: &mut CudaSlice<f32> = &mut out.values;
        let mut launch = self.kernels.launch_builder(&self.matmul);
        launch.arg(into).arg(left).arg(right);
        for size in &sizes {
            launch.arg(size);
        }
        // SAFETY: these are the kernel's parameters, and the matrices have that many values.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }?;
        Ok(out)
    }

    /// Adds the bias to each row and applies tanh, in place.
    fn bias_tanh(&self, values: &mut CudaSlice<f32>, bias: &CudaSlice<f32>) -> Result<(), Failure> {
        let [count, width] = numbers([values.len(), bias.len()])?;
        let mut launch = self.kernels.launch_builder(&self.bias_tanh);
        launch.arg(values).arg(bias).arg(&count).arg(&width);
        // SAFETY: these are the kernel's parameters; it indexes the bias modulo its length.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }?;
        Ok(())
    }
}

/// Converts sizes to the type that kernels take.
fn numbers<const N: usize>(sizes: [usize; N]) -> Result<[u32; N], Failure> {
    let mut numbers = [0; N];
    for (number, size) in numbers.iter_mut().zip(sizes) {
        *number = u32::try_from(size)?;
    }
    Ok(numbers)
}

/// Numbers between -0.5 and 0.5 that look like weights.
fn values(seed: usize, count: usize) -> Vec<f32> {
    let value = |index| (((index * 7919 + seed * 104_729) % 1009) as f32) / 1009.0 - 0.5;
    (0..count).map(value).collect()
}

/// A layer's weights, on the device and on the host.
struct Linear {
    weight: DeviceMatrix,
    bias: DeviceMatrix,
    host: (Vec<f32>, Vec<f32>),
}

impl Linear {
    fn new(device: &TensorDevice, seed: usize, width: usize, cols: usize) -> Result<Self, Failure> {
        let host = (values(seed, width * cols), values(seed + 50, cols));
        Ok(Self {
            weight: device.upload(&host.0, cols)?,
            bias: device.upload(&host.1, cols)?,
            host,
        })
    }

    fn forward(
        &self,
        device: &TensorDevice,
        input: &DeviceMatrix,
    ) -> Result<DeviceMatrix, Failure> {
        let mut out = device.matmul(input, &self.weight)?;
        device.bias_tanh(&mut out.values, &self.bias.values)?;
        Ok(out)
    }

    /// Returns the result expected of the device.
    fn on_host(&self, input: &[f32]) -> Vec<f32> {
        let (weight, bias) = &self.host;
        let cols = bias.len();
        let rows = input.chunks_exact(weight.len() / cols);
        rows.flat_map(|row| {
            (0..cols).map(move |col| {
                let column = weight.iter().skip(col).step_by(cols);
                let sum: f32 = row.iter().zip(column).map(|(a, b)| a * b).sum();
                (sum + bias[col]).tanh()
            })
        })
        .collect()
    }
}

fn main() -> ExitCode {
    match load_from_env().map_err(Failure::from).and_then(run) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("slices: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Passes all requests through all layers.
fn run(driver: &Driver) -> Result<String, Failure> {
    let device = TensorDevice::new(driver)?;
    let mut layers = Vec::new();
    for (index, widths) in WIDTHS.windows(2).enumerate() {
        layers.push(Linear::new(&device, index, widths[0], widths[1])?);
    }
    let (mut calls, mut worst) = (None, 0.0_f32);
    for request in 0..REQUESTS {
        let input = values(1000 + request, ROWS * WIDTHS[0]);
        let mut there = device.upload(&input, WIDTHS[0])?;
        let mut expected = input;
        for layer in &layers {
            // This frees the former activation, although the kernel that reads it may not even have begun.
            there = layer.forward(&device, &there)?;
            expected = layer.on_host(&expected);
        }
        let out = device.kernels.clone_dtoh(&*there.values)?;
        for (value, expected) in out.iter().zip(&expected) {
            worst = worst.max((value - expected).abs());
        }
        // The first request has allocated all the memory that the others need.
        let now = device.memory.driver_calls();
        if *calls.get_or_insert(now) != now {
            return Err(format!("request {request} asked the driver for memory: {now:?}").into());
        }
    }
    if worst > 1e-4 {
        return Err(format!("the device is {worst} away from the host").into());
    }
    device.memory.context().cudarc().check_err()?;
    let stats = device.memory.stats();
    Ok(format!(
        "{REQUESTS} requests through {} layers, within {worst:.1e} of the host; {} bytes of weights, {} at most",
        layers.len(),
        stats.live_bytes,
        stats.peak_live_bytes,
    ))
}

#[cfg(test)]
mod tests {
    use larder_cuda::driver::load_from_env;

    #[test]
    fn layers_over_slices_compute_what_the_host_does() {
        let driver = load_from_env().unwrap();
        super::run(driver).unwrap();
        let Some(control) = driver.stand_in() else {
            return;
        };
        for seed in 0..16 {
            control.reset(1, 1 << 30);
            control.schedule_deferred(seed);
            super::run(driver).unwrap();
            control.schedule_eagerly();
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
            let left = control.alive().into_iter();
            let left: Vec<_> = left.filter(|alive| alive.kind != "context").collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}
