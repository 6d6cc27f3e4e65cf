//! The limits of a job: those that its control files give, and how its allocators come to have
//! them.

use std::collections::{BTreeMap, BTreeSet};

use larder_control::{BusId, Ceiling, ControlFile, divide_limit};
use larder_core::limits::LimitAnswer;

use super::JobShared;
use super::managed::ManagedPools;
use crate::driver::locked;

pub(super) type Adjusted = Result<Adjustment, NoDevice>;

/// What became of a GPU's limit.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Adjustment {
    /// The GPU.
    pub gpu: BusId,
    /// The limit that the control file gives, in bytes.
    pub limit_bytes: u64,
    /// The ceiling, where it is lower than that and is the limit instead.
    pub ceiling_bytes: Option<u64>,
    /// What each allocator on the GPU has of it, in the order in which the job manages them; never
    /// empty.
    pub parts: Vec<LimitPart>,
}

/// An allocator's part of a GPU's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LimitPart {
    /// The allocator's limit, in bytes.
    pub limit_bytes: u64,
    /// Whether it holds more.
    pub answer: LimitAnswer,
}

impl Adjustment {
    /// Whether every allocator holds no more than its limit.
    pub fn is_met(&self) -> bool {
        let is_met = |part: &LimitPart| part.answer == LimitAnswer::Applied;
        self.parts.iter().all(is_met)
    }
}

/// A control file limits a GPU on which the job manages no allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no device at {gpu}: add it, or correct the control file")]
#[non_exhaustive]
pub struct NoDevice {
    /// The GPU that the file names.
    pub gpu: BusId,
}

/// What the control files so far have said of limits. A GPU that a later file does not name keeps
/// its limit: a file that lost a line lifts none.
#[derive(Default)]
pub(super) struct Orders {
    limits: BTreeMap<BusId, u64>,
    /// GPUs whose allocators do not have their limit yet.
    waiting: BTreeSet<BusId>,
    /// The newest file's number.
    version: Option<u64>,
}

impl Orders {
    /// Takes the limits of a file; those that it changes wait.
    pub(super) fn take(&mut self, file: &ControlFile) {
        for (gpu, control) in &file.gpus {
            if let Some(bytes) = control.max_device_mem
                && self.limits.insert(*gpu, bytes) != Some(bytes)
            {
                self.waiting.insert(*gpu);
            }
        }
        self.version = file.control_version;
    }

    /// The GPU has one allocator more: its limit is divided anew.
    pub(super) fn divide_again(&mut self, gpu: BusId) {
        if self.limits.contains_key(&gpu) {
            self.waiting.insert(gpu);
        }
    }
}

impl JobShared {
    /// Sets the limits that wait, and returns what became of them. The caller has the statistics
    /// (CTRL1).
    pub(super) fn obey(&self) -> Vec<Adjusted> {
        let mut orders = locked(&self.orders);
        let waiting = core::mem::take(&mut orders.waiting);
        let limits = waiting.into_iter().map(|gpu| (gpu, orders.limits[&gpu]));
        let limits: Vec<_> = limits.collect();
        let version = orders.version;
        drop(orders);
        let set = |(gpu, bytes)| self.managed.set_limit(gpu, bytes, self.config.ceiling);
        let adjusted: Vec<_> = limits.into_iter().map(set).collect();
        let before = core::mem::replace(&mut locked(&self.report).version, version);
        if !adjusted.is_empty() || before != version {
            self.bell.ring();
        }
        adjusted
    }
}

impl ManagedPools {
    /// Divides a GPU's limit among the allocators on it.
    fn set_limit(&self, gpu: BusId, limit_bytes: u64, ceiling: Ceiling) -> Adjusted {
        let (first_limits, devices): (Vec<_>, Vec<_>) = self.on_gpu(gpu).into_iter().unzip();
        if devices.is_empty() {
            return Err(NoDevice { gpu });
        }
        let ceiling_bytes = ceiling.bytes(&first_limits);
        let parts = divide_limit(limit_bytes.min(ceiling_bytes), &first_limits);
        let parts = devices.iter().zip(parts).map(|(device, bytes)| LimitPart {
            limit_bytes: bytes,
            answer: device.set_limit(bytes),
        });
        Ok(Adjustment {
            gpu,
            limit_bytes,
            ceiling_bytes: (limit_bytes > ceiling_bytes).then_some(ceiling_bytes),
            parts: parts.collect(),
        })
    }
}
