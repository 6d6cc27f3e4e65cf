//! Charges of each device for memory that the program takes directly, and the owners of the charges.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::sync::{Arc, LazyLock, Mutex, Once, OnceLock};

use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{ContextHandle, DevicePtr, MemoryHandle, PoolHandle};
use larder_cuda::{DeviceAllocError, ForeignCharge, ForeignMemory};

use super::acts;
use super::driver::NextDriver;
use super::pools::ChargedPool;
use crate::device::{MAX_DEVICES, locked};
use crate::job::{self, Patience};
use crate::outcome::{Refusal, say_once};

/// A device whose memory is charged.
pub(super) struct ChargedDevice {
    pub(super) ordinal: c_int,
    pub(super) memory: ForeignMemory,
}

/// Owner of the charge for the memory at an address.
pub(super) enum ChargedBlock {
    /// Plain or managed memory, which is freed with its context.
    Plain {
        context: ContextHandle,
        _charge: ForeignCharge,
    },
    /// Memory of a pool, which is charged until its last block is freed.
    Pooled { _pool: Arc<ChargedPool> },
}

impl ChargedBlock {
    /// Returns the context with which the memory is freed.
    pub(super) const fn context(&self) -> Option<ContextHandle> {
        match self {
            Self::Plain { context, .. } => Some(*context),
            Self::Pooled { .. } => None,
        }
    }
}

/// Physical memory, charged as long as it has a handle or a mapping.
pub(super) struct ChargedMemory {
    /// Number of releases that the program still has to make.
    pub(super) held: u32,
    pub(super) charge: Arc<ForeignCharge>,
}

/// Memory that the program holds.
#[derive(Default)]
pub(super) struct ChargeTables {
    pub(super) blocks: HashMap<DevicePtr, ChargedBlock>,
    pub(super) physical: HashMap<MemoryHandle, ChargedMemory>,
    /// For each address, the length of the mapping and the charge for its memory.
    pub(super) mappings: BTreeMap<DevicePtr, (u64, Arc<ForeignCharge>)>,
    /// Pools by handle, each charged for the memory that it holds; `None` for a host pool.
    pub(super) pools: HashMap<PoolHandle, Option<Arc<ChargedPool>>>,
    /// The devices' primary contexts.
    pub(super) primaries: HashMap<c_int, ContextHandle>,
}

static TABLES: LazyLock<Mutex<ChargeTables>> = LazyLock::new(Mutex::default);

static GPUS: [OnceLock<Option<ChargedDevice>>; MAX_DEVICES] =
    [const { OnceLock::new() }; MAX_DEVICES];

/// Runs `act` on the tables, under their lock.
pub(super) fn with<R>(act: impl FnOnce(&mut ChargeTables) -> R) -> R {
    act(&mut locked(&TABLES))
}

/// Returns the pools that are charged.
pub(super) fn pools() -> Vec<Arc<ChargedPool>> {
    with(|tables| tables.pools.values().flatten().cloned().collect())
}

/// Returns the device with its charges; `None` for a device unknown to the driver.
///
/// # Errors
/// The driver's code for missing memory if the environment is invalid. The reason is reported once.
pub(super) fn gpu(
    driver: &NextDriver,
    ordinal: c_int,
) -> Result<Option<&'static ChargedDevice>, Code> {
    static SAID: Once = Once::new();
    let place = usize::try_from(ordinal).ok();
    let Some(slot) = place.and_then(|place| GPUS.get(place)) else {
        return Ok(None);
    };
    if slot.get().is_none() && !driver.has_device(ordinal) {
        return Ok(None);
    }
    let made = slot.get_or_init(|| {
        let made = ChargedDevice::new(driver, ordinal);
        made.inspect_err(|refused| say_once(&SAID, refused)).ok()
    });
    made.as_ref().map(Some).ok_or(Code::OUT_OF_MEMORY)
}

impl ChargedDevice {
    fn new(driver: &NextDriver, ordinal: c_int) -> Result<Self, Refusal> {
        job::joined()?;
        let limit_bytes = job::first_limit_bytes()?;
        let memory = ForeignMemory::new(limit_bytes).map_err(DeviceAllocError::Budgets)?;
        if let Some(job) = job::job() {
            let place = driver.bus_id_of(ordinal).unwrap_or_default();
            let gpu = place
                .parse()
                .map_err(|_| Refusal::Start(format!("{place:?} is not a place on a bus")))?;
            job.manage_foreign(gpu, &memory);
        }
        Ok(Self { ordinal, memory })
    }

    /// Charges memory. If there is no room, retries after trimming the device's pools, and for a while if the
    /// job's limit may rise.
    fn charge(&self, driver: &NextDriver, bytes: u64) -> Result<ForeignCharge, Refusal> {
        let mut patience = Patience::default();
        let mut is_trimmed = false;
        loop {
            let over = match self.memory.charge(bytes) {
                Ok(charge) => return Ok(charge),
                Err(over) => over,
            };
            if !is_trimmed {
                self.trim_pools(driver);
                is_trimmed = true;
                continue;
            }
            let usage = self.memory.usage();
            // Programs that cache memory free it when a request is refused.
            let waits = usage.used_bytes == 0 || job::is_patient();
            if !waits || !patience.waits() {
                return Err(Refusal::OverLimit {
                    device: self.ordinal,
                    over,
                });
            }
        }
    }

    fn trim_pools(&self, driver: &NextDriver) {
        let is_here = |pool: &Arc<ChargedPool>| pool.device == self.ordinal;
        for pool in pools().into_iter().filter(is_here) {
            pool.trim(driver);
            pool.refresh(driver, self, None);
        }
    }
}

/// Charges memory of a device before the driver is called. Returns `None` if nothing is charged.
///
/// # Errors
/// The driver's code for missing memory.
pub(super) fn charge(
    driver: &NextDriver,
    ordinal: Option<c_int>,
    bytes: u64,
) -> Result<Option<ForeignCharge>, Code> {
    static SAID: Once = Once::new();
    // The driver refuses a call without a context, or for a device that does not exist.
    let Some(ordinal) = ordinal.filter(|_| acts()) else {
        return Ok(None);
    };
    let Some(gpu) = gpu(driver, ordinal)? else {
        return Ok(None);
    };
    match gpu.charge(driver, bytes) {
        Ok(charge) => Ok(Some(charge)),
        Err(refused) => {
            if crate::memory::says() {
                say_once(&SAID, &refused);
            }
            Err(Code::OUT_OF_MEMORY)
        }
    }
}
