//! The limits of devices.

use std::collections::BTreeMap;

/// The limits read from control files so far. A GPU that a later file does not name keeps its limit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Orders(BTreeMap<String, u64>);

impl Orders {
    /// Accepts the limits of a file. Returns the limits to adjust: if the file names a GPU, all known limits, changed
    /// or not; otherwise none.
    pub fn read(&mut self, limits: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
        self.0.extend(limits.clone());
        match limits.is_empty() {
            true => Vec::new(),
            false => self.0.clone().into_iter().collect(),
        }
    }
}

/// A device with an adjustable limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitedDevice {
    /// The name of its GPU.
    pub gpu: String,
    /// Its first limit, which is also the maximum.
    pub first_bytes: u64,
    /// Its limit now.
    pub limit_bytes: u64,
    /// Bytes that cannot be released now.
    pub held_bytes: u64,
}

/// Sets the limit of the GPU's first device; its other devices keep theirs. If more than `bytes` bytes cannot be
/// released, their number is the limit, and `bytes` is forgotten. Returns false if the GPU has no device.
pub fn adjust(devices: &mut [LimitedDevice], gpu: &str, bytes: u64) -> bool {
    let Some(device) = devices.iter_mut().find(|device| device.gpu == gpu) else {
        return false;
    };
    device.limit_bytes = bytes.min(device.first_bytes).max(device.held_bytes);
    true
}
