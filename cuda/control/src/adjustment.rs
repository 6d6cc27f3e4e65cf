//! [`UsageAdjustment`]: applies the limit of a GPU, named by bus id, to the devices on it.
//!
//! A control file limits a GPU; a program may have several allocators on it (logical devices). They divide
//! the file's number in proportion to the limits they began with.
//!
//! ADJUST1: the limits of a GPU's devices add up to no more than was asked for and no more than the ceiling.
//! ADJUST2: a limit that was asked for and is not met stays in `wanted` until the device answers
//! [`LimitAnswer::Applied`].

use larder_core::limits::LimitAnswer;

use crate::{BusId, Changes};

/// A device whose limit can be changed.
pub trait AdjustableDevice {
    /// The bus id of its GPU.
    fn bus_id(&self) -> BusId;

    /// The limit in force, in bytes.
    fn limit_bytes(&self) -> u64;

    /// Changes the limit. Must answer at once.
    fn set_limit(&self, bytes: u64) -> LimitAnswer;
}

/// How high a control file may raise a GPU's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Ceiling {
    /// To the sum of the limits that its devices had when they were added; upstream does this.
    #[default]
    Initial,
    /// To this number of bytes.
    Bytes(u64),
    /// Without a ceiling.
    None,
}

/// Sets the limits of devices to what control files say.
#[derive(Debug)]
pub struct UsageAdjustment<D> {
    devices: Vec<Adjusted<D>>,
    ceiling: Ceiling,
}

#[derive(Debug)]
struct Adjusted<D> {
    device: D,
    bus_id: BusId,
    /// The limit that the device was added with.
    initial: u64,
    /// The limit in force that was set here; `None` before the first one.
    current: Option<u64>,
    /// The limit that was asked for and is not met yet (ADJUST2).
    wanted: Option<u64>,
}

/// The result of an adjustment for one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The device's index in the order of [`UsageAdjustment::add`], from 0.
    pub device: usize,
    /// Its share of the limit, in bytes.
    pub limit_bytes: u64,
    /// The device's answer; `None` if it was not asked, since the limit is in force already.
    pub answer: Option<LimitAnswer>,
}

/// The result of an adjustment for a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Adjustment {
    /// The GPU.
    pub gpu: BusId,
    /// The limit that was asked for, in bytes.
    pub asked_bytes: u64,
    /// The ceiling, if it was lower than the limit asked for. The caller should report it.
    pub clamped_to_bytes: Option<u64>,
    /// The results of the devices on the GPU; never empty.
    pub outcomes: Vec<Outcome>,
}

impl Adjustment {
    /// Whether every device holds no more than its limit.
    pub fn is_met(&self) -> bool {
        self.outcomes
            .iter()
            .all(|outcome| matches!(outcome.answer, None | Some(LimitAnswer::Applied)))
    }
}

/// The error that no device has the bus id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no device at {gpu}: add it, or correct the control file")]
#[non_exhaustive]
pub struct NoDevice {
    /// The bus id that was named.
    pub gpu: BusId,
}

impl<D: AdjustableDevice> UsageAdjustment<D> {
    /// An adjustment without devices.
    pub const fn new(ceiling: Ceiling) -> Self {
        Self {
            devices: Vec::new(),
            ceiling,
        }
    }

    /// Adds a device; its present limit counts as its initial one.
    pub fn add(&mut self, device: D) {
        self.devices.push(Adjusted {
            bus_id: device.bus_id(),
            initial: device.limit_bytes(),
            current: None,
            wanted: None,
            device,
        });
    }

    /// Removes the devices for which `keep` is false. The other devices of a GPU divide its limit the next
    /// time that it is applied.
    pub fn retain(&mut self, mut keep: impl FnMut(&D) -> bool) {
        self.devices.retain(|adjusted| keep(&adjusted.device));
    }

    /// Applies the limit of a GPU to its devices. O(devices), besides the devices' own work.
    ///
    /// # Errors
    /// No device has this bus id.
    pub fn adjust(&mut self, gpu: BusId, bytes: u64) -> Result<Adjustment, NoDevice> {
        let places: Vec<usize> = (0..self.devices.len())
            .filter(|index| self.devices[*index].bus_id == gpu)
            .collect();
        if places.is_empty() {
            return Err(NoDevice { gpu });
        }
        let initials: Vec<u64> = places
            .iter()
            .map(|index| self.devices[*index].initial)
            .collect();
        let ceiling = match self.ceiling {
            Ceiling::Initial => initials
                .iter()
                .fold(0, |sum: u64, initial| sum.saturating_add(*initial)),
            Ceiling::Bytes(max) => max,
            Ceiling::None => u64::MAX,
        };
        let total = bytes.min(ceiling);
        let outcomes = places
            .iter()
            .zip(shares(total, &initials))
            .map(|(index, share)| self.put(*index, share))
            .collect();
        Ok(Adjustment {
            gpu,
            asked_bytes: bytes,
            clamped_to_bytes: (bytes > ceiling).then_some(ceiling),
            outcomes,
        })
    }

    /// Applies all limits of a file. Each GPU has a result of its own, an error if it has no device.
    pub fn apply(&mut self, changes: &Changes) -> Vec<Result<Adjustment, NoDevice>> {
        let limits = changes.limits.iter();
        limits
            .map(|(gpu, bytes)| self.adjust(*gpu, *bytes))
            .collect()
    }

    /// Asks the devices with an unmet limit again, for example after a step. It does not ask a device that
    /// has met its limit.
    pub fn retry(&mut self) -> Vec<Outcome> {
        let unmet: Vec<(usize, u64)> = self.pending().collect();
        unmet
            .into_iter()
            .map(|(index, bytes)| self.ask(index, bytes))
            .collect()
    }

    /// The unmet limits: the devices' indexes in the order of [`Self::add`], and the bytes asked for.
    pub fn pending(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let devices = self.devices.iter().enumerate();
        devices.filter_map(|(index, device)| Some((index, device.wanted?)))
    }

    fn put(&mut self, index: usize, bytes: u64) -> Outcome {
        let device = &self.devices[index];
        if device.current == Some(bytes) && device.wanted.is_none() {
            return Outcome {
                device: index,
                limit_bytes: bytes,
                answer: None,
            };
        }
        self.ask(index, bytes)
    }

    fn ask(&mut self, index: usize, bytes: u64) -> Outcome {
        let device = &mut self.devices[index];
        let answer = device.device.set_limit(bytes);
        device.wanted = (answer != LimitAnswer::Applied).then_some(bytes);
        if !matches!(answer, LimitAnswer::Refused(_)) {
            device.current = Some(bytes);
        }
        Outcome {
            device: index,
            limit_bytes: bytes,
            answer: Some(answer),
        }
    }
}

/// Divides `total` in proportion to the initial limits, rounded down (ADJUST1): at most a byte less for each.
fn shares(total: u64, initials: &[u64]) -> impl Iterator<Item = u64> {
    let sum: u128 = initials.iter().copied().map(u128::from).sum();
    let count = initials.len() as u128;
    initials.iter().map(move |initial| {
        let share = match sum {
            0 => u128::from(total) / count,
            sum => u128::from(total) * u128::from(*initial) / sum,
        };
        u64::try_from(share).unwrap_or(total)
    })
}
