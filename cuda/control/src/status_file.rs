//! [`StatusFile`]: the status that a job writes, in AntMan's format, with Larder's own part, which AntMan's
//! readers ignore.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{BusId, Life, ParseError};

/// A job's status. Unknown fields are kept and written back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StatusFile {
    /// Memory by GPU. An empty map is written as `null`, as upstream does.
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
    /// The average duration of each graph's runs in microseconds, by `graph_` and the graph's number. An
    /// empty map is written as `null`.
    #[serde(
        rename = "Durations",
        default,
        serialize_with = "or_null",
        deserialize_with = "from_null"
    )]
    pub durations: BTreeMap<String, u64>,
    /// Larder's own part, which AntMan's format does not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub larder: Option<JobStatus>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// Memory of a job on one GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GpuStatus {
    /// The memory in seven numbers.
    #[serde(flatten)]
    pub usage: DeviceUsage,
    /// The reason why blocks went to the host.
    #[serde(rename = "swapReason", default)]
    pub swap_reason: SwapReason,
    /// Bytes in use according to the driver; upstream always writes -1.
    #[serde(rename = "deviceMemUsedNvidia", default = "unknown")]
    pub used_by_driver: i64,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// Memory of a job on one GPU, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceUsage {
    /// Maximum number of bytes in blocks on the device.
    #[serde(rename = "deviceMemUsedMax")]
    pub device_peak_bytes: u64,
    /// Bytes in blocks on the device now.
    #[serde(rename = "deviceMemUsedMin")]
    pub device_live_bytes: u64,
    /// Bytes held from the device.
    #[serde(rename = "deviceMemPoolSize")]
    pub device_reserved_bytes: u64,
    /// Bytes held from the device in regions with a block in use; a limit can now be lowered to this.
    #[serde(rename = "deviceMemStable")]
    pub device_stable_bytes: u64,
    /// Maximum number of bytes in blocks on the host.
    #[serde(rename = "hostMemUsedMax")]
    pub host_peak_bytes: u64,
    /// Bytes in blocks on the host now.
    #[serde(rename = "hostMemUsedMin")]
    pub host_live_bytes: u64,
    /// The host's *limit*, despite the field's name.
    #[serde(rename = "hostMemPoolSize")]
    pub host_limit_bytes: u64,
}

/// The reason why blocks went to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SwapReason {
    /// No block went to the host.
    #[default]
    #[serde(rename = "")]
    None,
    /// The device had enough free memory, but it was fragmented.
    #[serde(rename = "FRAGMENT")]
    Fragment,
    /// The device had too little free memory.
    #[serde(rename = "OOM")]
    Oom,
}

/// Larder's own part of a status: the limits and the share in force, and the time of the write.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// The PID of the job.
    pub pid: u32,
    /// The process itself, distinguished from a later process with the same PID; absent if the system does
    /// not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<Life>,
    /// The job's name.
    pub name: String,
    /// The limit in force over all GPUs, in bytes.
    pub limit_bytes: u64,
    /// Bytes above the limit that are still to be released.
    #[serde(default)]
    pub deferred_bytes: u64,
    /// Bytes held on all GPUs.
    #[serde(default)]
    pub held_bytes: u64,
    /// The limit and the memory of each GPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<BusId, GpuLimit>,
    /// The newest `controlVersion` whose limits and share of the time are in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_version: Option<u64>,
    /// Bytes above which the job is requested to release memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_limit_bytes: Option<u64>,
    /// The `perfControl` in force.
    pub perf_control: i32,
    /// Time of the write, in milliseconds since 1970.
    #[serde(default)]
    pub written_at_unix_ms: u64,
    /// Whether the job has ended by itself. Its memory may outlive it, but not its process.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub ended: bool,
    /// The job's priority; larger is more important.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The job's sleep; absent for jobs that do not support sleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<SleepStatus>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// The sleep of a job, in bytes over all GPUs. The device memory that the job still holds is in
/// [`held_bytes`](JobStatus::held_bytes), as always.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SleepStatus {
    /// Whether the job is awake, asleep or about to wake.
    pub state: SleepState,
    /// Bytes in copies on the host, which are pinned if the host can pin that much memory.
    #[serde(default)]
    pub copied_bytes: u64,
    /// Maximum bytes of device memory that the job needs to wake.
    #[serde(default)]
    pub wake_bytes: u64,
    /// The reason why the job does not sleep although it is ordered to, or does not wake yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// Whether a job sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SleepState {
    /// The job runs, or may run.
    #[default]
    Awake,
    /// The job has released its memory, and takes none before it has reported [`Waking`](Self::Waking) and
    /// has read its control file once more.
    Asleep,
    /// The job still sleeps but has been ordered to be awake: from now on it takes memory as soon as there
    /// is enough.
    Waking,
}

/// A job's limit on one GPU, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuLimit {
    /// The limit in force.
    pub limit_bytes: u64,
    /// Physical bytes that the job holds.
    #[serde(default)]
    pub held_bytes: u64,
    /// Bytes above the limit that are still to be released.
    #[serde(default)]
    pub deferred_bytes: u64,
    /// Bytes that the job would like to hold; absent if it does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_bytes: Option<u64>,
    /// Bytes that the job does not return on request, whether it holds them already or not; absent if it gives
    /// nothing back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guaranteed_bytes: Option<u64>,
    /// Bytes that the job holds and returns on request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lent_bytes: u64,
    #[serde(flatten)]
    other: Map<String, Value>,
}

impl StatusFile {
    /// Maximum size of a file in bytes; larger files are not read.
    pub const MAX_BYTES: usize = 1 << 20;

    /// Parses a file's text. These fields may be absent: the fields of the file itself, a GPU's swap reason
    /// and driver number, and all fields of [`JobStatus`] except PID, name, limit and share. A GPU that
    /// lacks one of the seven numbers is an error, since its memory would count as nothing.
    ///
    /// # Errors
    /// [`ParseError::Status`] if the text is not a status, or is larger than [`Self::MAX_BYTES`].
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, ParseError> {
        let text = text.as_ref();
        if text.len() > Self::MAX_BYTES {
            let message = format!("{} bytes; at most {} are read", text.len(), Self::MAX_BYTES);
            return Err(ParseError::Status { message });
        }
        serde_json::from_slice(text).map_err(|error| ParseError::Status {
            message: error.to_string(),
        })
    }

    /// Drops unknown fields, which may be as large as the file.
    pub fn forget_unknown(&mut self) {
        self.other = Map::new();
        self.gpus
            .values_mut()
            .for_each(|gpu| gpu.other = Map::new());
        if let Some(job) = &mut self.larder {
            job.other = Map::new();
            job.gpus.values_mut().for_each(|gpu| gpu.other = Map::new());
            if let Some(sleep) = &mut job.sleep {
                sleep.other = Map::new();
            }
        }
    }

    /// Returns the file's text in JSON.
    pub fn to_text(&self) -> String {
        // The value has only text keys and numbers, so the conversion cannot fail.
        let value = serde_json::to_value(self).unwrap_or_default();
        format!("{value:#}\n")
    }
}

impl DeviceUsage {
    /// Returns the saturating sum of both, field by field.
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
    /// Returns whether both are equal except for the time of the write.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let mut timed = self.clone();
        timed.written_at_unix_ms = other.written_at_unix_ms;
        timed == *other
    }
}

impl GpuStatus {
    /// Makes the status of a GPU, without the driver's number.
    pub fn new(usage: DeviceUsage, swap_reason: SwapReason) -> Self {
        Self {
            usage,
            swap_reason,
            used_by_driver: unknown(),
            other: Map::new(),
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
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
