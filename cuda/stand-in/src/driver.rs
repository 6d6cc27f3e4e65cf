//! The process's only driver, behind one lock.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_cuda_abi::Code;
use larder_cuda_abi::stand_in::KernelBody;

use crate::calls::Calls;
use crate::capture::{CaptureRules, Captures};
use crate::clock::VectorClock;
use crate::config::StandInConfig;
use crate::context::{SimContext, SimDevice};
use crate::findings::Findings;
use crate::forget_streams::Sweeps;
use crate::graph::{Exec, Graph};
use crate::module::{Function, Module};
use crate::pool::PoolSet;
use crate::queue::{SimEvent, SimStream, WorkQueue};
use crate::space::Space;
use crate::table::{Handles, Names, ObjectTable};

/// The state of the driver.
pub(crate) struct SimDriver {
    /// Whether `cuInit` was called.
    pub(crate) initialised: bool,
    pub(crate) version: u32,
    /// Whether `cuMemUnmap` and `cuMemSetAccess` wait for work that may use the mappings. The
    /// documentation does not say whether they do, so a program must be correct either way.
    pub(crate) mapping_waits: bool,
    pub(crate) capture_rules: CaptureRules,
    /// Whether the devices have virtual memory.
    pub(crate) virtual_memory: bool,
    /// Whether host and devices may use managed memory at the same time. If not, all managed memory
    /// is on the device, and limited by the device's memory.
    pub(crate) managed_concurrently: bool,
    pub(crate) calls: Calls,
    pub(crate) findings: Findings,
    pub(crate) handles: Handles,
    pub(crate) devices: Vec<SimDevice>,
    pub(crate) contexts: ObjectTable<SimContext>,
    pub(crate) streams: ObjectTable<SimStream>,
    pub(crate) stream_names: Names,
    pub(crate) events: ObjectTable<SimEvent>,
    pub(crate) event_names: Names,
    pub(crate) modules: ObjectTable<Module>,
    pub(crate) functions: ObjectTable<Function>,
    /// Kernel bodies by name.
    pub(crate) bodies: BTreeMap<String, KernelBody>,
    pub(crate) pools: PoolSet,
    pub(crate) captures: Captures,
    pub(crate) graphs: ObjectTable<Graph>,
    pub(crate) execs: ObjectTable<Exec>,
    pub(crate) queue: WorkQueue,
    pub(crate) space: Space,
    /// Clock of the operations that the host has waited for.
    pub(crate) host: VectorClock,
    pub(crate) sweeps: Sweeps,
    /// The settings with which the driver was created.
    config: StandInConfig,
}

/// The driver, created at its first use.
static DRIVER: LazyLock<Mutex<SimDriver>> = LazyLock::new(|| {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    Mutex::new(SimDriver::new(&StandInConfig::from_env()))
});
static CHANGED: Condvar = Condvar::new();

/// Number of threads that wait for [`CHANGED`]. Modified only under the lock.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// PID of the process that created the driver; 0 if none has.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Returns whether this process is a child, made by `fork` alone, of the process that created the
/// driver. CUDA does not work in such a child, and the lock may be held forever by a thread that
/// the child does not have.
pub(crate) fn is_of_another_process() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process != std::process::id()
}

impl SimDriver {
    /// Creates a driver in its initial state.
    pub(crate) fn new(config: &StandInConfig) -> Self {
        Self {
            initialised: false,
            version: config.version,
            mapping_waits: config.mapping_waits,
            capture_rules: config.capture_rules,
            virtual_memory: config.virtual_memory,
            managed_concurrently: true,
            calls: Calls::default(),
            findings: Findings::default(),
            devices: (0..config.devices).map(SimDevice::new).collect(),
            contexts: ObjectTable::new(Code::INVALID_CONTEXT),
            streams: ObjectTable::new(Code::INVALID_HANDLE),
            stream_names: Names::new(),
            events: ObjectTable::new(Code::INVALID_HANDLE),
            event_names: Names::new(),
            modules: ObjectTable::new(Code::INVALID_HANDLE),
            functions: ObjectTable::new(Code::INVALID_HANDLE),
            bodies: BTreeMap::new(),
            pools: PoolSet::default(),
            captures: Captures::default(),
            graphs: ObjectTable::new(Code::INVALID_VALUE),
            execs: ObjectTable::new(Code::INVALID_VALUE),
            queue: WorkQueue::new(config.seed),
            space: Space::new(config),
            host: VectorClock::default(),
            sweeps: Sweeps::default(),
            handles: Handles::default(),
            config: config.clone(),
        }
    }

    /// Resets everything except the addresses and handles already used, the kernel bodies, the
    /// version and whether mapping waits. The arguments give the number of devices and their
    /// memory; other settings return to those of the environment.
    pub(crate) fn reset(&mut self, devices: usize, bytes: u64) {
        let config = StandInConfig {
            devices,
            bytes,
            version: self.version,
            mapping_waits: self.mapping_waits,
            ..self.config.clone()
        };
        let mut next = Self::new(&config);
        std::mem::swap(&mut next.handles, &mut self.handles);
        std::mem::swap(&mut next.bodies, &mut self.bodies);
        next.queue.continue_from(&self.queue);
        next.space.continue_from(&self.space);
        next.initialised = self.initialised;
        self.space.close();
        *self = next;
    }
}

/// Exclusive access to the driver, which holds its lock.
pub(crate) struct Session {
    /// The lock's guard; `None` only inside [`Self::wait`].
    guard: Option<MutexGuard<'static, SimDriver>>,
}

impl Session {
    /// Takes the lock and creates the driver at its first use.
    pub(crate) fn begin() -> Self {
        let guard = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
        Self { guard: Some(guard) }
    }

    /// Releases the lock until another thread reports a change, for at most `max`.
    pub(crate) fn wait(&mut self, max: Duration) {
        if let Some(guard) = self.guard.take() {
            WAITING.fetch_add(1, Ordering::Relaxed);
            let (guard, _) = CHANGED
                .wait_timeout(guard, max)
                .unwrap_or_else(PoisonError::into_inner);
            WAITING.fetch_sub(1, Ordering::Relaxed);
            self.guard = Some(guard);
        }
    }

    /// Wakes the threads in [`Self::wait`]. Makes no system call in the common case, in which there
    /// are none.
    pub(crate) fn changed(&self) {
        // Relaxed: this thread has the lock.
        if WAITING.load(Ordering::Relaxed) > 0 {
            CHANGED.notify_all();
        }
    }
}

impl Deref for Session {
    type Target = SimDriver;

    fn deref(&self) -> &SimDriver {
        let driver = self.guard.as_deref();
        driver.unwrap_or_else(|| unreachable!("a session holds the lock"))
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut SimDriver {
        let driver = self.guard.as_deref_mut();
        driver.unwrap_or_else(|| unreachable!("a session holds the lock"))
    }
}

#[cfg(test)]
mod tests {
    use super::SimDriver;
    use crate::capture::CaptureRules;
    use crate::config::StandInConfig;
    use crate::queue::Schedule;

    #[test]
    fn a_reset_keeps_what_the_environment_said() {
        let file = std::env::temp_dir().join(format!("larder-reset-{}", std::process::id()));
        let config = StandInConfig {
            devices: 1,
            bytes: 4 << 20,
            seed: Some(7),
            shared: file.to_str().map(str::to_owned),
            version: 12_080,
            pinned_bytes: 3 << 20,
            mapping_waits: true,
            capture_rules: CaptureRules::Strict,
            virtual_memory: false,
            stale_aliases: true,
            late_memory: true,
            address_bytes: 5 << 20,
        };
        let (mut driver, mut other) = (SimDriver::new(&config), SimDriver::new(&config));
        assert_eq!(other.space.usage.take(0, 1 << 20), Ok(()));
        for _ in 0..2 {
            assert!(matches!(driver.queue.schedule, Schedule::Deferred(_)));
            assert_eq!(driver.space.pinned.limit, 3 << 20);
            assert_eq!(driver.space.usage.free(0), 3 << 20);
            assert!(driver.mapping_waits && !driver.virtual_memory);
            assert_eq!(driver.capture_rules, CaptureRules::Strict);
            assert_eq!(driver.space.vmm.address_limit, 5 << 20);
            assert!(driver.space.vmm.stale_aliases && driver.space.usage.is_late());
            driver.reset(1, 4 << 20);
        }
        std::fs::remove_file(file).expect("it was made");
    }
}
