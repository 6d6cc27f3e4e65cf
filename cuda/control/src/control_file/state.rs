//! [`ControlState`]: the values in force after all control files so far.

use std::collections::BTreeMap;

use super::ControlFile;
use crate::BusId;

/// The values in force. Files come one after another; each changes the values it has and nothing else.
///
/// A GPU that a later file does not name keeps its limit, also upstream: a file that lost a line cannot lift
/// a limit. To lift a limit, a file gives a large number; [`UsageAdjustment`](crate::UsageAdjustment) clamps
/// it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlState {
    limits: BTreeMap<BusId, u64>,
    perf_control: i32,
}

/// What a file changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Changes {
    /// The changed limits, in bytes.
    pub limits: Vec<(BusId, u64)>,
    /// The new `perfControl`.
    pub perf_control: Option<i32>,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.perf_control.is_none()
    }
}

impl Default for ControlState {
    fn default() -> Self {
        Self::new()
    }
}

impl ControlState {
    /// A state without limits, at the full share of the time.
    pub const fn new() -> Self {
        Self {
            limits: BTreeMap::new(),
            perf_control: 100,
        }
    }

    /// The share of the time that the job may use, in percent; 100 until a file changes it.
    pub const fn perf_control(&self) -> i32 {
        self.perf_control
    }

    /// The limit of a GPU in bytes, if a file named one.
    pub fn limit_bytes(&self, gpu: BusId) -> Option<u64> {
        self.limits.get(&gpu).copied()
    }

    /// All limits, by GPU.
    pub fn limits(&self) -> impl Iterator<Item = (BusId, u64)> + '_ {
        self.limits.iter().map(|(id, bytes)| (*id, *bytes))
    }

    /// Takes the values of a file and answers what changed. It cannot fail half way: the parser has found
    /// everything that is wrong with the file.
    pub fn apply(&mut self, file: &ControlFile) -> Changes {
        let mut changes = Changes::default();
        for (id, gpu) in &file.gpus {
            if let Some(bytes) = gpu.max_device_mem
                && self.limits.insert(*id, bytes) != Some(bytes)
            {
                changes.limits.push((*id, bytes));
            }
        }
        if let Some(perf) = file.perf_control
            && perf != self.perf_control
        {
            self.perf_control = perf;
            changes.perf_control = Some(perf);
        }
        changes
    }
}
