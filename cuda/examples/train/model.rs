//! [`Network`]: two layers, `logit = tanh(point * w1 + b1) * w2 + b2`, and [`Batch`], the data that they are
//! trained on.
//!
//! Weights and batches are values that the host and the device use in turn. Activations and gradients live only
//! within a step, in buffers that are allocated anew each time: each step is planned from the previous ones.

use larder_cuda::synced::HostMemory;
use larder_cuda::{BufferView, BufferViewMut, DeviceBuffer, SyncedMemory};

use crate::Failure;
use crate::data::{self, Random};
use crate::gpu::{Matrix, TrainDevice};

/// Coordinates of a point.
const INPUTS: usize = 2;

/// Samples that are copied to the device on a stream of their own.
pub(crate) struct Batch {
    /// All points, then all labels.
    memory: SyncedMemory<'static, f32>,
    /// Number of values before the labels.
    points: usize,
}

impl Batch {
    pub(crate) fn new(gpu: &TrainDevice, samples: usize) -> Result<Self, Failure> {
        let host = HostMemory::Pinned(gpu.pinned.clone());
        let len = (INPUTS + 1) * samples;
        Ok(Self {
            memory: SyncedMemory::new(&gpu.memory, &gpu.copy, host, len)?,
            points: INPUTS * samples,
        })
    }

    /// Draws new samples. The host waits for the last copy of this batch, and not for kernels.
    pub(crate) fn draw(&mut self, random: &mut Random) -> Result<(), Failure> {
        data::fill(self.memory.cpu_mut()?, random);
        Ok(())
    }

    /// Copies the batch to the device while `act` does other things. On the device, the copy waits for the
    /// kernels that read the former samples.
    pub(crate) fn push_beside(
        &mut self,
        gpu: &TrainDevice,
        act: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let flight = self.memory.push_async(&gpu.copy)?;
        act()?;
        Ok(flight.wait()?)
    }

    /// Returns the points and labels on the host.
    pub(crate) fn on_host(&mut self) -> Result<(&[f32], &[f32]), Failure> {
        Ok(self.memory.cpu()?.split_at(self.points))
    }

    fn on_device(&mut self) -> Result<Samples<'_>, Failure> {
        let all = self.memory.gpu()?;
        Ok(Samples {
            points: Matrix::new(all.slice(..self.points), INPUTS)?,
            labels: all.slice(self.points..),
        })
    }
}

/// A batch on the device.
struct Samples<'a> {
    points: Matrix<'a>,
    labels: BufferView<'a, f32>,
}

/// The trained network.
pub(crate) struct Network {
    pub(crate) w1: SyncedMemory<'static, f32>,
    pub(crate) b1: SyncedMemory<'static, f32>,
    pub(crate) w2: SyncedMemory<'static, f32>,
    pub(crate) b2: SyncedMemory<'static, f32>,
    hidden: usize,
}

/// The derivatives of a batch's mean loss.
pub(crate) struct Gradients {
    pub(crate) w1: DeviceBuffer<f32>,
    pub(crate) b1: DeviceBuffer<f32>,
    pub(crate) w2: DeviceBuffer<f32>,
    pub(crate) b2: DeviceBuffer<f32>,
}

impl Network {
    /// Draws weights and puts them on the device, where they outlive every step.
    pub(crate) fn new(
        gpu: &TrainDevice,
        hidden: usize,
        random: &mut Random,
    ) -> Result<Self, Failure> {
        let mut weights = |len: usize, scale: f32| -> Result<_, Failure> {
            let mut weights =
                SyncedMemory::new(&gpu.memory, &gpu.compute, HostMemory::Pageable, len)?;
            weights.cpu_mut()?.fill_with(|| scale * random.signed());
            weights.gpu()?;
            Ok(weights)
        };
        Ok(Self {
            w1: weights(INPUTS * hidden, 4.0)?,
            b1: weights(hidden, 2.0)?,
            w2: weights(hidden, (hidden as f32).sqrt().recip())?,
            b2: weights(1, 0.0)?,
            hidden,
        })
    }

    /// Queues one step, which writes the batch's loss to `loss` and changes the weights to reduce it.
    pub(crate) fn step(
        &mut self,
        gpu: &TrainDevice,
        batch: &mut Batch,
        rate: f32,
        loss: BufferViewMut<'_, f32>,
    ) -> Result<(), Failure> {
        let _step = gpu.memory.step(&gpu.compute)?;
        let gradients = self.gradients(gpu, batch, loss)?;
        gpu.descend(self.w1.gpu_mut()?, &gradients.w1, rate)?;
        gpu.descend(self.b1.gpu_mut()?, &gradients.b1, rate)?;
        gpu.descend(self.w2.gpu_mut()?, &gradients.w2, rate)?;
        gpu.descend(self.b2.gpu_mut()?, &gradients.b2, rate)
    }

    /// Returns the derivatives, and writes the mean loss to `loss`.
    pub(crate) fn gradients(
        &mut self,
        gpu: &TrainDevice,
        batch: &mut Batch,
        loss: BufferViewMut<'_, f32>,
    ) -> Result<Gradients, Failure> {
        let samples = batch.on_device()?;
        let (hidden, logits) = self.forward(gpu, samples.points)?;
        let (losses, delta) = gpu.logistic_loss(&logits, self.b2.gpu()?, samples.labels)?;
        drop(logits);
        gpu.sum_rows_into(loss, Matrix::new(losses.as_view(), 1)?)?;
        drop(losses);

        let delta_matrix = Matrix::new(delta.as_view(), 1)?;
        let hidden_matrix = Matrix::new(hidden.as_view(), self.hidden)?;
        let w2 = gpu.matmul(hidden_matrix.transposed(), delta_matrix)?;
        let b2 = gpu.sum_rows(delta_matrix)?;
        let forward = Matrix::new(self.w2.gpu()?, 1)?;
        let mut back = gpu.matmul(delta_matrix, forward.transposed())?;
        gpu.tanh_back(&mut back, &hidden)?;
        drop((delta, hidden));

        let back = Matrix::new(back.as_view(), self.hidden)?;
        let w1 = gpu.matmul(samples.points.transposed(), back)?;
        let b1 = gpu.sum_rows(back)?;
        Ok(Gradients { w1, b1, w2, b2 })
    }

    /// Returns the results of tanh, and logits without the last bias.
    fn forward(
        &mut self,
        gpu: &TrainDevice,
        points: Matrix<'_>,
    ) -> Result<(DeviceBuffer<f32>, DeviceBuffer<f32>), Failure> {
        let mut hidden = gpu.matmul(points, Matrix::new(self.w1.gpu()?, self.hidden)?)?;
        gpu.bias_tanh(&mut hidden, self.b1.gpu()?)?;
        let matrix = Matrix::new(hidden.as_view(), self.hidden)?;
        let logits = gpu.matmul(matrix, Matrix::new(self.w2.gpu()?, 1)?)?;
        Ok((hidden, logits))
    }

    /// Returns the logit of each sample of a batch, without the last bias. The host waits for them.
    pub(crate) fn logits(
        &mut self,
        gpu: &TrainDevice,
        batch: &mut Batch,
    ) -> Result<Vec<f32>, Failure> {
        let (_, logits) = self.forward(gpu, batch.on_device()?.points)?;
        Ok(gpu.compute.clone_dtoh(&logits)?)
    }

    /// Returns the model on the host, copied from the device if that one is newer.
    pub(crate) fn on_host(&mut self) -> Result<HostModel<'_>, Failure> {
        Ok(HostModel {
            w1: self.w1.cpu()?,
            b1: self.b1.cpu()?,
            w2: self.w2.cpu()?,
            b2: self.b2.cpu()?,
        })
    }
}

/// The weights on the host.
pub(crate) struct HostModel<'a> {
    pub(crate) w1: &'a [f32],
    pub(crate) b1: &'a [f32],
    pub(crate) w2: &'a [f32],
    pub(crate) b2: &'a [f32],
}

impl HostModel<'_> {
    /// Returns the logit of a point, which is above 0 for the second arm.
    pub(crate) fn logit(&self, point: [f32; 2]) -> f64 {
        let [x, y] = point.map(f64::from);
        let (w_x, w_y) = self.w1.split_at(self.b1.len());
        let hidden = w_x.iter().zip(w_y).zip(self.b1).map(|((w_x, w_y), b)| {
            (x * f64::from(*w_x) + y * f64::from(*w_y) + f64::from(*b)).tanh()
        });
        let product = hidden.zip(self.w2).map(|(h, w)| h * f64::from(*w));
        product.sum::<f64>() + self.b2.iter().copied().map(f64::from).sum::<f64>()
    }
}
