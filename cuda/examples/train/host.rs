//! The kernels of `kernels.ptx` as functions of the host, for the stand-in driver.
//!
//! No kernel here is launched with a result that overlaps its inputs: `TrainDevice` takes results as `&mut`.

use larder_cuda::driver::abi::stand_in::{KernelBody, KernelCall};
use larder_cuda::driver::{DriverError, HostLaunch, StandIn};

/// Registers the bodies with the stand-in.
pub(crate) fn register(stand_in: &StandIn) -> Result<(), DriverError> {
    let bodies: [(&str, KernelBody); 6] = [
        ("matmul", matmul),
        ("bias_tanh", bias_tanh),
        ("logistic_loss", logistic_loss),
        ("tanh_back", tanh_back),
        ("sum_rows", sum_rows),
        ("descend", descend),
    ];
    for (name, body) in bodies {
        // SAFETY: the only kernels of these names in the program; the bodies call no driver.
        unsafe { stand_in.register_kernel(name, body) }?;
    }
    Ok(())
}

/// `out[i, j]` = sum over k of `left[i, k] * right[k, j]`.
unsafe extern "C" fn matmul(call: *const KernelCall) {
    // SAFETY: the driver calls this with a launch of this kernel.
    let launch = unsafe { HostLaunch::of(call) };
    let [rows, cols, depth] = [3, 4, 5].map(|index| launch.count(index));
    let [left_row, left_col, right_row, right_col] = [6, 7, 8, 9].map(|index| launch.count(index));
    let body = || {
        let left = launch.read::<f32>(1, rows * depth)?;
        let right = launch.read::<f32>(2, depth * cols)?;
        for (index, out) in launch.write::<f32>(0, rows * cols)?.iter_mut().enumerate() {
            let (row, col) = (index / cols, index % cols);
            let left = left.iter().skip(row * left_row).step_by(left_col);
            let right = right.iter().skip(col * right_col).step_by(right_row);
            *out = left.zip(right).take(depth).map(|(a, b)| a * b).sum();
        }
        Some(())
    };
    // Without its memory the launch fails, and the driver reports it.
    let _ = body();
}

/// `values[i] = tanh(values[i] + bias[i % width])`.
unsafe extern "C" fn bias_tanh(call: *const KernelCall) {
    // SAFETY: the driver calls this with a launch of this kernel.
    let launch = unsafe { HostLaunch::of(call) };
    let (count, width) = (launch.count(2), launch.count(3));
    let body = || {
        let bias = launch.read::<f32>(1, width)?;
        let values = launch.write::<f32>(0, count)?;
        for (value, bias) in values.iter_mut().zip(bias.iter().cycle()) {
            *value = (*value + bias).tanh();
        }
        Some(())
    };
    let _ = body();
}

/// With `z = logits[i] + bias[0]`: `losses[i] = (ln(1 + exp(z)) - labels[i] * z) / count`, and
/// `delta[i] = (1 / (1 + exp(-z)) - labels[i]) / count`.
unsafe extern "C" fn logistic_loss(call: *const KernelCall) {
    // SAFETY: the driver calls this with a launch of this kernel.
    let launch = unsafe { HostLaunch::of(call) };
    let count = launch.count(5);
    let body = || {
        let logits = launch.read::<f32>(2, count)?;
        let bias = launch.read::<f32>(3, 1)?.first()?;
        let labels = launch.read::<f32>(4, count)?;
        let results = launch
            .write::<f32>(0, count)?
            .iter_mut()
            .zip(launch.write::<f32>(1, count)?);
        for ((loss, delta), (logit, label)) in results.zip(logits.iter().zip(labels)) {
            let z = logit + bias;
            let e = (-z.abs()).exp();
            *loss = (z.max(0.0) + e.ln_1p() - label * z) / count as f32;
            let likely = if z >= 0.0 { 1.0 } else { e } / (1.0 + e);
            *delta = (likely - label) / count as f32;
        }
        Some(())
    };
    let _ = body();
}

/// `delta[i] *= 1 - hidden[i]^2`.
unsafe extern "C" fn tanh_back(call: *const KernelCall) {
    // SAFETY: the driver calls this with a launch of this kernel.
    let launch = unsafe { HostLaunch::of(call) };
    let count = launch.count(2);
    let body = || {
        let hidden = launch.read::<f32>(1, count)?;
        for (delta, hidden) in launch.write::<f32>(0, count)?.iter_mut().zip(hidden) {
            *delta *= 1.0 - hidden * hidden;
        }
        Some(())
    };
    let _ = body();
}

/// `out[j]` = sum over i of `values[i, j]`.
unsafe extern "C" fn sum_rows(call: *const KernelCall) {
    // SAFETY: the driver calls this with a launch of this kernel.
    let launch = unsafe { HostLaunch::of(call) };
    let (rows, cols) = (launch.count(2), launch.count(3));
    let body = || {
        let values = launch.read::<f32>(1, rows * cols)?;
        for (col, out) in launch.write::<f32>(0, cols)?.iter_mut().enumerate() {
            *out = values.iter().skip(col).step_by(cols).sum();
        }
        Some(())
    };
    let _ = body();
}

/// `weights[i] -= rate * gradient[i]`.
unsafe extern "C" fn descend(call: *const KernelCall) {
    // SAFETY: the driver calls this with a launch of this kernel.
    let launch = unsafe { HostLaunch::of(call) };
    let (count, rate) = (launch.count(2), launch.parameter::<f32>(3));
    let body = || {
        let gradient = launch.read::<f32>(1, count)?;
        for (weight, gradient) in launch.write::<f32>(0, count)?.iter_mut().zip(gradient) {
            *weight -= rate * gradient;
        }
        Some(())
    };
    let _ = body();
}
