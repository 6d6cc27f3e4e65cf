//! The limits of devices.

use std::collections::BTreeMap;

/// The limits that the control files so far have given. A GPU that a later file does not name keeps
/// its limit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Orders(BTreeMap<String, u64>);

impl Orders {
    /// Takes the limits of a file. Returns all that are adjusted then: each that is known, changed
    /// or not, if the file names a GPU.
    pub fn read(&mut self, limits: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
        self.0.extend(limits.clone());
        match limits.is_empty() {
            true => Vec::new(),
            false => self.0.clone().into_iter().collect(),
        }
    }
}

/// A device whose limit can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitedDevice {
    /// The name of its GPU.
    pub gpu: String,
    /// The limit it began with, which no later one exceeds.
    pub first_bytes: u64,
    /// Its limit now.
    pub limit_bytes: u64,
    /// Bytes that cannot be given back now.
    pub held_bytes: u64,
}

/// Sets the limit of the first device of the GPU; others keep theirs. What the device holds above
/// it raises the limit to that, and nothing remembers the lower one. Returns false if no device has
/// the name.
pub fn adjust(devices: &mut [LimitedDevice], gpu: &str, bytes: u64) -> bool {
    let Some(device) = devices.iter_mut().find(|device| device.gpu == gpu) else {
        return false;
    };
    device.limit_bytes = bytes.min(device.first_bytes).max(device.held_bytes);
    true
}
