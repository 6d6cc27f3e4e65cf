//! [`ControlFile`]: a coordinator's orders to a job, in AntMan's format.
//!
//! ```json
//! { "name": "free text",
//!   "gpuConfigInfo": { "00:1e.0": { "maxDeviceMem": 1073741824 } },
//!   "perfControl": 100 }
//! ```
//! Four fields are Larder's own, and AntMan's jobs ignore them: `controlVersion`, a number; `life`, a text;
//! `asleep`, true or false; and, for each GPU, `mayHold`, a number.
//!
//! This file has the values and writes them. `parse` reads them.

mod parse;

use std::collections::BTreeMap;

pub use parse::{Parsed, Problem, ProblemKind};
use serde_json::{Map, Value};

use crate::{BusId, Life};

pub(crate) const NAME: &str = "name";
pub(crate) const VERSION: &str = "version";
pub(crate) const CONTROL_VERSION: &str = "controlVersion";
pub(crate) const LIFE: &str = "life";
pub(crate) const GPUS: &str = "gpuConfigInfo";
pub(crate) const LIMIT: &str = "maxDeviceMem";
pub(crate) const MAY_HOLD: &str = "mayHold";
pub(crate) const PERF: &str = "perfControl";
pub(crate) const ASLEEP: &str = "asleep";

/// The values of a control file. A value that is `None` or not in a map is absent from the file, and changes
/// nothing.
///
/// Unknown fields of the file and of each GPU are kept and written back. Values with a problem are dropped,
/// so a written file has no problems.
///
/// ```
/// use larder_control::{BusId, ControlFile};
///
/// let gpu: BusId = "00:1e.0".parse()?;
/// let mut file = ControlFile::default();
/// file.limit(gpu, 1 << 30);
/// file.perf_control = Some(50);
/// let parsed = ControlFile::parse(file.to_text())?;
/// assert!(parsed.problems.is_empty());
/// assert_eq!(parsed.file, file);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControlFile {
    /// A free text without effect.
    pub name: Option<String>,
    /// The version of the format. AntMan's files have none, which means version 1.
    pub version: Option<u64>,
    /// The number of a coordinator's order, counted from 1. A job repeats the number in its status once the
    /// file's limits are in force. AntMan's files have none. It is not the version of the format.
    pub control_version: Option<u64>,
    /// The life for which the file is meant. Another run of the same job does not obey the file. A file
    /// without a life is for any run.
    pub life: Option<Life>,
    /// The orders for each GPU.
    pub gpus: BTreeMap<BusId, GpuControl>,
    /// The share of the time that the job may use, in percent: 0 to 100, where 0 suspends the job.
    pub perf_control: Option<i32>,
    /// Whether the job is to sleep: it then releases all of the device's memory between two runs, and does
    /// not run again until it is ordered to be awake. AntMan's jobs and those of older versions ignore this.
    pub asleep: Option<bool>,
    other: Map<String, Value>,
}

/// The orders of a control file for one GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GpuControl {
    /// Bytes of device memory that the job may hold.
    pub max_device_mem: Option<u64>,
    /// Bytes that the job may hold until it has obeyed, according to this order and to earlier orders that it
    /// may still be obeying. This is a note for the next coordinator; jobs ignore it.
    pub may_hold: Option<u64>,
    other: Map<String, Value>,
}

impl ControlFile {
    /// The newest version of the format that this crate reads.
    pub const VERSION: u64 = 1;

    /// Maximum size of a file in bytes; larger files are refused. Real files have a few hundred bytes.
    pub const MAX_BYTES: usize = 1 << 20;

    /// Sets the number of bytes that the job may hold on a GPU.
    pub fn limit(&mut self, gpu: BusId, bytes: u64) {
        self.gpus.entry(gpu).or_default().max_device_mem = Some(bytes);
    }

    /// Returns whether a job with this life obeys the file. A job that does not know its life obeys any file.
    pub fn is_for(&self, life: Option<Life>) -> bool {
        self.life.is_none() || life.is_none() || self.life == life
    }

    /// Drops unknown fields, which may be as large as the file.
    pub fn forget_unknown(&mut self) {
        self.other = Map::new();
        self.gpus
            .values_mut()
            .for_each(|gpu| gpu.other = Map::new());
    }

    /// Removes all orders and the life from the file. Unknown fields stay.
    pub fn forget_orders(&mut self) {
        (self.control_version, self.life) = (None, None);
        (self.perf_control, self.asleep) = (None, None);
        for gpu in self.gpus.values_mut() {
            (gpu.max_device_mem, gpu.may_hold) = (None, None);
        }
    }

    /// Returns the file's text in JSON.
    pub fn to_text(&self) -> String {
        let mut root = Map::new();
        if let Some(name) = &self.name {
            root.insert(NAME.into(), name.as_str().into());
        }
        if let Some(version) = self.version {
            root.insert(VERSION.into(), version.into());
        }
        if let Some(version) = self.control_version {
            root.insert(CONTROL_VERSION.into(), version.into());
        }
        if let Some(life) = self.life {
            root.insert(LIFE.into(), life.to_string().into());
        }
        if !self.gpus.is_empty() {
            let gpus = self
                .gpus
                .iter()
                .map(|(id, gpu)| (id.to_string(), gpu.to_value()));
            root.insert(GPUS.into(), Value::Object(gpus.collect()));
        }
        if let Some(perf) = self.perf_control {
            root.insert(PERF.into(), perf.into());
        }
        if let Some(asleep) = self.asleep {
            root.insert(ASLEEP.into(), asleep.into());
        }
        root.extend(self.other.clone());
        format!("{:#}\n", Value::Object(root))
    }
}

impl GpuControl {
    fn to_value(&self) -> Value {
        let mut entry = Map::new();
        if let Some(bytes) = self.max_device_mem {
            entry.insert(LIMIT.into(), bytes.into());
        }
        if let Some(bytes) = self.may_hold {
            entry.insert(MAY_HOLD.into(), bytes.into());
        }
        entry.extend(self.other.clone());
        Value::Object(entry)
    }
}
