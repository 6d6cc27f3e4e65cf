//! [`TrainDevice`]: the streams, the memory and the kernels. Each function queues work on the compute stream
//! and returns. A result is a new buffer, whose memory is freed in stream order when the program drops it.
//!
//! A [`Launch`] orders the compute stream after earlier uses of its arguments on other streams.
//!
//! KERNEL1 A kernel touches `count`, or `rows` times `cols`, values of its arguments; the functions check that
//!    these exist.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use larder_cuda::driver::Driver;
use larder_cuda::{
    BufferView, BufferViewMut, Context, DeviceAllocator, DeviceBuffer, Launch, PinnedAllocator,
};

use crate::{Failure, host};

/// A device as the example uses it.
pub(crate) struct TrainDevice {
    pub(crate) memory: DeviceAllocator,
    pub(crate) pinned: PinnedAllocator,
    /// Stream of the kernels.
    pub(crate) compute: Arc<CudaStream>,
    /// Stream of the copies of batches, which overlap the kernels.
    pub(crate) copy: Arc<CudaStream>,
    kernels: Kernels,
}

struct Kernels {
    matmul: CudaFunction,
    bias_tanh: CudaFunction,
    logistic_loss: CudaFunction,
    tanh_back: CudaFunction,
    sum_rows: CudaFunction,
    descend: CudaFunction,
}

/// A matrix in a part of a buffer, stored row by row, or its transpose.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: BufferView<'a, f32>,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Makes a matrix of `cols` columns, and as many rows as the values fill.
    pub(crate) fn new(values: BufferView<'a, f32>, cols: usize) -> Result<Self, Failure> {
        let rows = values.len().checked_div(cols).ok_or("no columns")?;
        same(rows * cols, values.len())?;
        Ok(Self {
            values,
            rows,
            cols,
            row_stride: cols,
            col_stride: 1,
        })
    }

    /// Returns the transpose, over the same memory.
    pub(crate) const fn transposed(self) -> Self {
        Self {
            values: self.values,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }
}

impl TrainDevice {
    /// Opens the driver's first device.
    pub(crate) fn new(driver: &Driver) -> Result<Self, Failure> {
        if let Some(stand_in) = driver.stand_in() {
            host::register(stand_in)?;
        }
        let context = Context::new(0)?;
        let text = Ptx::from_src(include_str!("kernels.ptx"));
        let module = context.cudarc().load_module(text)?;
        Ok(Self {
            memory: DeviceAllocator::new(&context)?,
            pinned: PinnedAllocator::new(&context)?,
            compute: context.cudarc().new_stream()?,
            copy: context.cudarc().new_stream()?,
            kernels: Kernels {
                matmul: module.load_function("matmul")?,
                bias_tanh: module.load_function("bias_tanh")?,
                logistic_loss: module.load_function("logistic_loss")?,
                tanh_back: module.load_function("tanh_back")?,
                sum_rows: module.load_function("sum_rows")?,
                descend: module.load_function("descend")?,
            },
        })
    }

    /// Returns the product, stored row by row.
    pub(crate) fn matmul(
        &self,
        left: Matrix<'_>,
        right: Matrix<'_>,
    ) -> Result<DeviceBuffer<f32>, Failure> {
        same(left.cols, right.rows)?;
        let count = left.rows * right.cols;
        // SAFETY: the kernel writes all of it before anything else sees it.
        let mut out = unsafe { self.memory.buffer(&self.compute, count) }?;
        let sizes = [
            left.rows,
            right.cols,
            left.cols,
            left.row_stride,
            left.col_stride,
            right.row_stride,
            right.col_stride,
        ];
        let sizes = numbers(sizes)?;
        let mut launch = Launch::on(&self.compute, &self.kernels.matmul);
        launch.arg(&mut out).arg(&left.values).arg(&right.values);
        for size in &sizes {
            launch.arg(size);
        }
        // SAFETY: these are the kernel's parameters; KERNEL1.
        unsafe { launch.launch(threads(count)?) }?;
        Ok(out)
    }

    /// Adds the bias to each row and applies tanh, in place.
    pub(crate) fn bias_tanh(
        &self,
        values: &mut DeviceBuffer<f32>,
        bias: BufferView<'_, f32>,
    ) -> Result<(), Failure> {
        let [count, width] = numbers([values.len(), bias.len()])?;
        let config = threads(values.len())?;
        let mut launch = Launch::on(&self.compute, &self.kernels.bias_tanh);
        launch.arg(values).arg(&bias).arg(&count).arg(&width);
        // SAFETY: these are the kernel's parameters; it indexes the bias modulo its length.
        unsafe { launch.launch(config) }?;
        Ok(())
    }

    /// Returns each sample's part of the mean loss, and the part's derivative with respect to the sample's
    /// logit.
    pub(crate) fn logistic_loss(
        &self,
        logits: &DeviceBuffer<f32>,
        bias: BufferView<'_, f32>,
        labels: BufferView<'_, f32>,
    ) -> Result<(DeviceBuffer<f32>, DeviceBuffer<f32>), Failure> {
        let len = logits.len();
        same(len, labels.len())?;
        same(1, bias.len())?;
        // SAFETY: the kernel writes all of it before anything else sees it.
        let mut losses = unsafe { self.memory.buffer(&self.compute, len) }?;
        // SAFETY: the kernel writes all of it before anything else sees it.
        let mut delta = unsafe { self.memory.buffer(&self.compute, len) }?;
        let [count] = numbers([len])?;
        let mut launch = Launch::on(&self.compute, &self.kernels.logistic_loss);
        launch.arg(&mut losses).arg(&mut delta).arg(logits);
        launch.arg(&bias).arg(&labels).arg(&count);
        // SAFETY: these are the kernel's parameters; KERNEL1.
        unsafe { launch.launch(threads(len)?) }?;
        Ok((losses, delta))
    }

    /// Turns the derivative with respect to tanh's result into the one with respect to its argument, in place.
    pub(crate) fn tanh_back(
        &self,
        delta: &mut DeviceBuffer<f32>,
        hidden: &DeviceBuffer<f32>,
    ) -> Result<(), Failure> {
        same(delta.len(), hidden.len())?;
        let [count] = numbers([delta.len()])?;
        let config = threads(delta.len())?;
        let mut launch = Launch::on(&self.compute, &self.kernels.tanh_back);
        launch.arg(delta).arg(hidden).arg(&count);
        // SAFETY: these are the kernel's parameters; KERNEL1.
        unsafe { launch.launch(config) }?;
        Ok(())
    }

    /// Writes the sum of all rows into a part of a buffer.
    pub(crate) fn sum_rows_into(
        &self,
        mut out: BufferViewMut<'_, f32>,
        values: Matrix<'_>,
    ) -> Result<(), Failure> {
        same(out.len(), values.cols)?;
        same(values.col_stride, 1)?;
        let [rows, cols] = numbers([values.rows, values.cols])?;
        let mut launch = Launch::on(&self.compute, &self.kernels.sum_rows);
        launch
            .arg(&mut out)
            .arg(&values.values)
            .arg(&rows)
            .arg(&cols);
        // SAFETY: these are the kernel's parameters; KERNEL1.
        unsafe { launch.launch(threads(values.cols)?) }?;
        Ok(())
    }

    /// Returns the sum of all rows.
    pub(crate) fn sum_rows(&self, values: Matrix<'_>) -> Result<DeviceBuffer<f32>, Failure> {
        // SAFETY: the kernel writes all of it before anything else sees it.
        let mut out = unsafe { self.memory.buffer(&self.compute, values.cols) }?;
        self.sum_rows_into(out.as_view_mut(), values)?;
        Ok(out)
    }

    /// Takes a step down the gradient, in place.
    pub(crate) fn descend(
        &self,
        mut weights: BufferViewMut<'_, f32>,
        gradient: &DeviceBuffer<f32>,
        rate: f32,
    ) -> Result<(), Failure> {
        same(weights.len(), gradient.len())?;
        let [count] = numbers([gradient.len()])?;
        let mut launch = Launch::on(&self.compute, &self.kernels.descend);
        launch
            .arg(&mut weights)
            .arg(gradient)
            .arg(&count)
            .arg(&rate);
        // SAFETY: these are the kernel's parameters; KERNEL1.
        unsafe { launch.launch(threads(gradient.len())?) }?;
        Ok(())
    }
}

/// Returns a launch of one thread for each value.
fn threads(count: usize) -> Result<LaunchConfig, Failure> {
    Ok(LaunchConfig::for_num_elems(u32::try_from(count)?))
}

/// Converts sizes to the type that kernels take.
fn numbers<const N: usize>(sizes: [usize; N]) -> Result<[u32; N], Failure> {
    let mut numbers = [0; N];
    for (number, size) in numbers.iter_mut().zip(sizes) {
        *number = u32::try_from(size)?;
    }
    Ok(numbers)
}

fn same(left: usize, right: usize) -> Result<(), Failure> {
    if left == right {
        Ok(())
    } else {
        Err(format!("{left} values where {right} are needed").into())
    }
}
