//! [`StatusFile`]: what a job tells of itself, AntMan's format, and a part of our own that AntMan's
//! readers pass over.

use core::fmt;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::BusId;

/// A job's status. Fields that are not known here are kept and written back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StatusFile {
    /// Memory by GPU. None at all is written as `null`, as upstream.
    #[serde(
        rename = "gpuUsageInfo",
        default,
        serialize_with = "or_null",
        deserialize_with = "from_null"
    )]
    pub gpus: BTreeMap<BusId, GpuStatus>,
    /// The longest of the fresh averages, in microseconds.
    #[serde(rename = "miniBatchDuration", default)]
    pub mini_batch_micros: u64,
    /// The average run of each graph in microseconds, by `graph_` and its number. None is `null`.
    #[serde(
        rename = "Durations",
        default,
        serialize_with = "or_null",
        deserialize_with = "from_null"
    )]
    pub durations: BTreeMap<String, u64>,
    /// What AntMan's format has no place for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub larder: Option<JobStatus>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// Memory of a job on one GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GpuStatus {
    /// The seven numbers.
    #[serde(flatten)]
    pub usage: DeviceUsage,
    /// Why blocks went to the host.
    #[serde(rename = "swapReason", default)]
    pub swap_reason: SwapReason,
    /// Upstream writes -1 and nothing else.
    #[serde(rename = "deviceMemUsedNvidia", default = "unknown")]
    pub used_by_driver: i64,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// Memory of a job on one GPU, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceUsage {
    /// The most that was in blocks on the device.
    #[serde(rename = "deviceMemUsedMax")]
    pub device_peak_bytes: u64,
    /// In blocks on the device now.
    #[serde(rename = "deviceMemUsedMin")]
    pub device_live_bytes: u64,
    /// Held from the device.
    #[serde(rename = "deviceMemPoolSize")]
    pub device_reserved_bytes: u64,
    /// Held from the device in regions with something in use: what a limit can be lowered to now.
    #[serde(rename = "deviceMemStable")]
    pub device_stable_bytes: u64,
    /// The most that was in blocks on the host.
    #[serde(rename = "hostMemUsedMax")]
    pub host_peak_bytes: u64,
    /// In blocks on the host now.
    #[serde(rename = "hostMemUsedMin")]
    pub host_live_bytes: u64,
    /// The host's *limit*, whatever the field's name says.
    #[serde(rename = "hostMemPoolSize")]
    pub host_limit_bytes: u64,
}

/// Why blocks went to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SwapReason {
    /// None did.
    #[default]
    #[serde(rename = "")]
    None,
    /// There was room, in pieces.
    #[serde(rename = "FRAGMENT")]
    Fragment,
    /// There was no room.
    #[serde(rename = "OOM")]
    Oom,
}

/// A job's own words: what is in force, and since when.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// The process.
    pub pid: u32,
    /// The job's name.
    pub name: String,
    /// The limit in force.
    pub limit_bytes: u64,
    /// Held above the limit, and on its way back.
    #[serde(default)]
    pub deferred_bytes: u64,
    /// Held in all.
    #[serde(default)]
    pub held_bytes: u64,
    /// The same of each GPU, and what is wanted there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<BusId, GpuLimit>,
    /// The newest `controlVersion` whose limits are in force, and whose share of the time is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_version: Option<u64>,
    /// From here on the job is asked to give memory back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_limit_bytes: Option<u64>,
    /// The `perfControl` in force.
    pub perf_control: i32,
    /// When this was written, in milliseconds since 1970.
    #[serde(default)]
    pub written_at_unix_ms: u64,
    /// The job has ended by itself. Its memory may outlive it, but not its process.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub ended: bool,
    /// Whose wishes come first; larger is more important.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// A job's limit on one GPU, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuLimit {
    /// The limit in force.
    pub limit_bytes: u64,
    /// Held, physical memory.
    #[serde(default)]
    pub held_bytes: u64,
    /// Held above the limit, and on its way back.
    #[serde(default)]
    pub deferred_bytes: u64,
    /// What the job would like to hold; not said if it does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_bytes: Option<u64>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// A status file could not be read: torn, not JSON, or values of other kinds. Read it again later.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StatusError {
    /// What was found, and where.
    pub message: String,
}

impl StatusFile {
    /// A file with more bytes is not read.
    pub const MAX_BYTES: usize = 1 << 20;

    /// Reads a file's text. Fields that are missing are 0, none or `null`.
    ///
    /// # Errors
    /// If it is no status, or too large.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, StatusError> {
        let text = text.as_ref();
        if text.len() > Self::MAX_BYTES {
            let message = format!("{} bytes, at most {} are read", text.len(), Self::MAX_BYTES);
            return Err(StatusError { message });
        }
        serde_json::from_slice(text).map_err(|error| StatusError {
            message: error.to_string(),
        })
    }

    /// The file's text, in JSON.
    pub fn to_text(&self) -> String {
        // Maps with text for keys and numbers: nothing that could be refused.
        let value = serde_json::to_value(self).unwrap_or_default();
        format!("{value:#}\n")
    }
}

impl DeviceUsage {
    /// Both together; numbers that would not fit stay at the largest.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let sum = u64::saturating_add;
        Self {
            device_peak_bytes: sum(self.device_peak_bytes, other.device_peak_bytes),
            device_live_bytes: sum(self.device_live_bytes, other.device_live_bytes),
            device_reserved_bytes: sum(self.device_reserved_bytes, other.device_reserved_bytes),
            device_stable_bytes: sum(self.device_stable_bytes, other.device_stable_bytes),
            host_peak_bytes: sum(self.host_peak_bytes, other.host_peak_bytes),
            host_live_bytes: sum(self.host_live_bytes, other.host_live_bytes),
            host_limit_bytes: sum(self.host_limit_bytes, other.host_limit_bytes),
        }
    }
}

impl JobStatus {
    /// Whether both say the same, whenever they were written.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let mut timed = self.clone();
        timed.written_at_unix_ms = other.written_at_unix_ms;
        timed == *other
    }
}

impl GpuStatus {
    /// What is known of one GPU; the driver's own figure is not.
    pub fn new(usage: DeviceUsage, swap_reason: SwapReason) -> Self {
        Self {
            usage,
            swap_reason,
            used_by_driver: unknown(),
            other: Map::new(),
        }
    }
}

fn unknown() -> i64 {
    -1
}

fn or_null<K: Serialize + Ord, V: Serialize, S: Serializer>(
    map: &BTreeMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if map.is_empty() {
        return serializer.serialize_none();
    }
    map.serialize(serializer)
}

fn from_null<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "not a job's status: {}; read it again later",
            self.message
        )
    }
}

impl core::error::Error for StatusError {}
