//! [`UsageAdjustment`]: a limit by bus id, put in force on the devices there.
//!
//! A control file limits a GPU; a program may have several allocators on it (logical devices). All of them
//! together get the file's number, each in proportion to what it began with.
//!
//! G1: the limits of a GPU's devices add up to no more than was asked for and no more than the ceiling.
//! G2: what was asked for and not met stays in `wanted` until a device's answer is
//! [`LimitAnswer::Applied`].

use core::fmt;

use larder_core::limits::LimitAnswer;

use crate::{BusId, Changes, Compat};

/// A device whose limit can be moved.
pub trait AdjustableDevice {
    /// Where it is.
    fn bus_id(&self) -> BusId;

    /// The limit in force, in bytes.
    fn limit_bytes(&self) -> u64;

    /// Moves the limit. Must answer at once.
    fn set_limit(&self, bytes: u64) -> LimitAnswer;
}

/// How high a control file may raise a GPU's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Ceiling {
    /// To what its devices had when they were added, as upstream.
    #[default]
    Initial,
    /// To so many bytes.
    Bytes(u64),
    /// As high as it says.
    None,
}

/// Moves the limits of devices to what control files say.
#[derive(Debug)]
pub struct UsageAdjustment<D> {
    devices: Vec<Adjusted<D>>,
    ceiling: Ceiling,
    compat: Compat,
}

#[derive(Debug)]
struct Adjusted<D> {
    device: D,
    bus_id: BusId,
    /// The limit it was added with.
    initial: u64,
    /// The limit that is in force because of us; `None` before the first one.
    current: Option<u64>,
    /// Asked for and not met yet (G2).
    wanted: Option<u64>,
}

/// What became of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Which, in the order of [`UsageAdjustment::add`], from 0.
    pub device: usize,
    /// Its share of the limit, in bytes.
    pub limit_bytes: u64,
    /// What it said; `None` if it was not asked, since the limit is in force already.
    pub answer: Option<LimitAnswer>,
}

/// What became of a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Adjustment {
    /// The GPU.
    pub gpu: BusId,
    /// What was asked for, in bytes.
    pub asked_bytes: u64,
    /// If the ceiling was lower, what it is. Tell somebody.
    pub clamped_to_bytes: Option<u64>,
    /// Of each device there; never empty.
    pub outcomes: Vec<Outcome>,
}

impl Adjustment {
    /// Whether every device holds what it may, and no more.
    pub fn is_met(&self) -> bool {
        self.outcomes
            .iter()
            .all(|outcome| matches!(outcome.answer, None | Some(LimitAnswer::Applied)))
    }
}

/// No device at a bus id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NoDevice {
    /// The bus id that was named.
    pub gpu: BusId,
}

impl<D: AdjustableDevice> UsageAdjustment<D> {
    /// Of no devices yet. With [`Compat::AntMan`] only the first device of a GPU is adjusted, and what it
    /// cannot give back at once is forgotten until the next file.
    pub const fn new(ceiling: Ceiling, compat: Compat) -> Self {
        Self {
            devices: Vec::new(),
            ceiling,
            compat,
        }
    }

    /// One more device; the limit it has now is the one it began with.
    pub fn add(&mut self, device: D) {
        self.devices.push(Adjusted {
            bus_id: device.bus_id(),
            initial: device.limit_bytes(),
            current: None,
            wanted: None,
            device,
        });
    }

    /// Forgets devices that are no more. The others of their GPUs share its limit the next time that it is
    /// put in force.
    pub fn retain(&mut self, mut keep: impl FnMut(&D) -> bool) {
        self.devices.retain(|adjusted| keep(&adjusted.device));
    }

    /// Puts a GPU's limit in force. O(devices), and what they do.
    ///
    /// # Errors
    /// If no device is there.
    pub fn adjust(&mut self, gpu: BusId, bytes: u64) -> Result<Adjustment, NoDevice> {
        let mut places: Vec<usize> = (0..self.devices.len())
            .filter(|index| self.devices[*index].bus_id == gpu)
            .collect();
        if self.compat.is_antman() {
            places.truncate(1);
        }
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

    /// Puts all limits of a file in force; a GPU without a device is an error of its own.
    pub fn apply(&mut self, changes: &Changes) -> Vec<Result<Adjustment, NoDevice>> {
        let limits = changes.limits.iter();
        limits
            .map(|(gpu, bytes)| self.adjust(*gpu, *bytes))
            .collect()
    }

    /// Asks again for what was asked and not met: after a step, say. Nothing is asked of a device that has
    /// met its limit.
    pub fn retry(&mut self) -> Vec<Outcome> {
        let unmet: Vec<(usize, u64)> = self.pending().collect();
        unmet
            .into_iter()
            .map(|(index, bytes)| self.ask(index, bytes))
            .collect()
    }

    /// What was asked for and not met: devices in the order of [`Self::add`], and their bytes.
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
        if self.compat.is_antman() {
            device.forget(bytes, answer);
        }
        Outcome {
            device: index,
            limit_bytes: bytes,
            answer: Some(answer),
        }
    }
}

impl<D: AdjustableDevice> Adjusted<D> {
    /// A limit that is not met is raised to what is held, as upstream's is, and nobody comes back to it.
    fn forget(&mut self, bytes: u64, answer: LimitAnswer) {
        self.wanted = None;
        if let LimitAnswer::Deferred { bytes: above } = answer {
            let held = bytes.saturating_add(above);
            let raised = self.device.set_limit(held);
            self.current = matches!(raised, LimitAnswer::Applied).then_some(held);
        }
    }
}

/// `total` in proportion to what each began with, rounded down (G1): at most a byte less for each.
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

impl fmt::Display for NoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no device at {}: add it, or correct the control file",
            self.gpu
        )
    }
}

impl core::error::Error for NoDevice {}
