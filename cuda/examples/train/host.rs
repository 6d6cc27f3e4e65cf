//! The kernels of `kernels.ptx` as functions of the host, for the stand-in driver.
//!
//! BODY1 A body is called with a launch of its kernel, whose parameters have the types that the text gives
//!    them.
//! BODY2 Nothing else touches the memory that a launch asks for until its body returns, and no kernel here
//!    is launched with a result that overlaps what it reads: `Gpu` takes results as `&mut`.

use larder_cuda::driver::abi::stand_in::{KernelBody, KernelCall};
use larder_cuda::driver::{DriverError, StandIn};

/// Gives the stand-in the bodies.
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

/// A launch, whose memory is asked for piece by piece; `None` ends the body, and the launch fails as on a
/// device.
struct Launch<'a>(&'a KernelCall);

impl<'a> Launch<'a> {
    /// # Safety
    /// BODY1 and BODY2, and each parameter is asked for as the type it has.
    unsafe fn of(call: *const KernelCall) -> Self {
        // SAFETY: the stand-in lends it for the call.
        Self(unsafe { &*call })
    }

    fn parameter<T: Copy>(&self, index: usize) -> T {
        // SAFETY: BODY1: there are so many.
        let place = unsafe { *self.0.parameters.wrapping_add(index) };
        // SAFETY: BODY1: it is of that type.
        unsafe { place.cast::<T>().read_unaligned() }
    }

    fn count(&self, index: usize) -> usize {
        self.parameter::<u32>(index) as usize
    }

    fn memory(&self, index: usize, count: usize, write: bool) -> Option<*mut f32> {
        let (at, bytes) = (self.parameter::<u64>(index), 4 * count as u64);
        // SAFETY: the function is the launch's own.
        let memory = unsafe { (self.0.access)(self.0, at, bytes, u32::from(write)) };
        (!memory.is_null()).then_some(memory.cast())
    }

    fn read(&self, index: usize, count: usize) -> Option<&'a [f32]> {
        let memory = self.memory(index, count, false)?;
        // SAFETY: the driver gave access to so many bytes; BODY2.
        Some(unsafe { std::slice::from_raw_parts(memory, count) })
    }

    fn write(&self, index: usize, count: usize) -> Option<&'a mut [f32]> {
        let memory = self.memory(index, count, true)?;
        // SAFETY: the driver gave access to so many bytes; BODY2.
        Some(unsafe { std::slice::from_raw_parts_mut(memory, count) })
    }
}

/// `out[i, j]` = sum over k of `left[i, k] * right[k, j]`.
unsafe extern "C" fn matmul(call: *const KernelCall) {
    // SAFETY: the driver calls this with a launch of this kernel.
    let launch = unsafe { Launch::of(call) };
    let [rows, cols, depth] = [3, 4, 5].map(|index| launch.count(index));
    let [left_row, left_col, right_row, right_col] = [6, 7, 8, 9].map(|index| launch.count(index));
    let body = || {
        let left = launch.read(1, rows * depth)?;
        let right = launch.read(2, depth * cols)?;
        for (index, out) in launch.write(0, rows * cols)?.iter_mut().enumerate() {
            let (row, col) = (index / cols, index % cols);
            let left = left.iter().skip(row * left_row).step_by(left_col);
            let right = right.iter().skip(col * right_col).step_by(right_row);
            *out = left.zip(right).take(depth).map(|(a, b)| a * b).sum();
        }
        Some(())
    };
    // Without its memory the launch fails, and the driver says so.
    let _ = body();
}

/// `values[i] = tanh(values[i] + bias[i % width])`.
unsafe extern "C" fn bias_tanh(call: *const KernelCall) {
    // SAFETY: the driver calls this with a launch of this kernel.
    let launch = unsafe { Launch::of(call) };
    let (count, width) = (launch.count(2), launch.count(3));
    let body = || {
        let bias = launch.read(1, width)?;
        let values = launch.write(0, count)?;
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
    let launch = unsafe { Launch::of(call) };
    let count = launch.count(5);
    let body = || {
        let logits = launch.read(2, count)?;
        let bias = launch.read(3, 1)?.first()?;
        let labels = launch.read(4, count)?;
        let results = launch
            .write(0, count)?
            .iter_mut()
            .zip(launch.write(1, count)?);
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
    let launch = unsafe { Launch::of(call) };
    let count = launch.count(2);
    let body = || {
        let hidden = launch.read(1, count)?;
        for (delta, hidden) in launch.write(0, count)?.iter_mut().zip(hidden) {
            *delta *= 1.0 - hidden * hidden;
        }
        Some(())
    };
    let _ = body();
}

/// `out[j]` = sum over i of `values[i, j]`.
unsafe extern "C" fn sum_rows(call: *const KernelCall) {
    // SAFETY: the driver calls this with a launch of this kernel.
    let launch = unsafe { Launch::of(call) };
    let (rows, cols) = (launch.count(2), launch.count(3));
    let body = || {
        let values = launch.read(1, rows * cols)?;
        for (col, out) in launch.write(0, cols)?.iter_mut().enumerate() {
            *out = values.iter().skip(col).step_by(cols).sum();
        }
        Some(())
    };
    let _ = body();
}

/// `weights[i] -= rate * gradient[i]`.
unsafe extern "C" fn descend(call: *const KernelCall) {
    // SAFETY: the driver calls this with a launch of this kernel.
    let launch = unsafe { Launch::of(call) };
    let (count, rate) = (launch.count(2), launch.parameter::<f32>(3));
    let body = || {
        let gradient = launch.read(1, count)?;
        for (weight, gradient) in launch.write(0, count)?.iter_mut().zip(gradient) {
            *weight -= rate * gradient;
        }
        Some(())
    };
    let _ = body();
}
