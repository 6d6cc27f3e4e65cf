//! [`ManagedPools`]: the allocators of a job, the limits ordered for them, and the numbers that they report.
//!
//! A job keeps no allocator alive: it has weak references, and forgets allocators that were dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

use larder_control::{BusId, Ceiling, ControlFile, DeviceUsage, divide_limit};
use larder_core::PoolStats;
use larder_core::limits::LimitAnswer;
use larder_core::sync::{AtomicU64, Ordering};

use crate::DeviceAllocator;
use crate::device::WeakDevice;
use crate::driver::locked;
use crate::limits::{LimitWatch, LimitedPool, LoanSums};

pub(super) type Adjusted = Result<Adjustment, NoDevice>;

/// The outcome of setting a GPU's limit.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Adjustment {
    /// The GPU.
    pub gpu: BusId,
    /// The limit in the control file, in bytes.
    pub limit_bytes: u64,
    /// The ceiling, if it is lower than the control file's limit and is used instead.
    pub ceiling_bytes: Option<u64>,
    /// Each allocator's part of the limit, in the order in which the allocators were added; never empty.
    pub parts: Vec<LimitPart>,
}

/// An allocator's part of a GPU's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LimitPart {
    /// The allocator's limit, in bytes.
    pub limit_bytes: u64,
    /// Whether the allocator holds more than its limit.
    pub answer: LimitAnswer,
}

impl Adjustment {
    /// Returns whether every allocator holds no more than its limit.
    pub fn is_met(&self) -> bool {
        let is_met = |part: &LimitPart| part.answer == LimitAnswer::Applied;
        self.parts.iter().all(is_met)
    }
}

/// A control file limits a GPU on which the job manages no allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the job manages no allocator on GPU {gpu}: add one, or correct the control file")]
#[non_exhaustive]
pub struct NoDevice {
    /// The GPU that the file names.
    pub gpu: BusId,
}

type WeakPool = Weak<dyn LimitedPool>;

/// A device's allocator, and its host side if it has one.
#[derive(Clone)]
struct JobPool {
    gpu: BusId,
    device: WeakPool,
    /// The allocator's limit when it was added.
    first_limit: u64,
    /// The allocator. `None` for memory that the program gets directly from the driver.
    memory: Option<WeakDevice>,
    /// Rings the bell when deferred bytes have been released.
    _watch: Arc<LimitWatch>,
    device_peak: Arc<PeakInterval>,
    host: Option<JobHost>,
}

/// Host memory counted for a GPU: a device's host side, or pinned memory.
#[derive(Clone)]
struct JobHost {
    pool: WeakPool,
    peak: Arc<PeakInterval>,
}

/// The reason for a check of the status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StatusCheck {
    /// The check is due. It ends the interval of the peak.
    Due,
    /// Something has changed before a check is due. The interval continues. Since it may still be short, the
    /// previous interval's peak is reported if it is higher.
    Early,
}

/// The peak between two due checks. Only the thread that has the statistics changes it.
#[derive(Default)]
struct PeakInterval {
    last: AtomicU64,
    since: AtomicU64,
}

impl PeakInterval {
    /// Returns the peak to report; `taken` is the peak since the last call.
    fn peak(&self, taken: u64, check: StatusCheck) -> u64 {
        // Relaxed, all: one thread at a time (CTRL1).
        let since = self.since.load(Ordering::Relaxed).max(taken);
        match check {
            StatusCheck::Due => {
                self.since.store(0, Ordering::Relaxed);
                self.last.store(since, Ordering::Relaxed);
                since
            }
            StatusCheck::Early => {
                self.since.store(since, Ordering::Relaxed);
                since.max(self.last.load(Ordering::Relaxed))
            }
        }
    }
}

/// The allocators that a job manages.
#[derive(Default)]
pub(super) struct ManagedPools(Mutex<PoolLists>);

#[derive(Default)]
struct PoolLists {
    pools: Vec<JobPool>,
    pinned: Vec<(BusId, JobHost)>,
    /// The limits ordered by control files so far. A GPU that a later file does not name keeps its limit, so
    /// that a file that has lost a line lifts no limit.
    limits: BTreeMap<BusId, u64>,
    /// GPUs whose limit is not set yet.
    waiting: BTreeSet<BusId>,
    /// The newest file's `controlVersion`.
    version: Option<u64>,
    /// Whether a limit was set that may have recalled memory.
    recalls: bool,
}

impl ManagedPools {
    /// Adds an allocator. Its GPU's limit then waits to be divided again. Returns false if the allocator is
    /// already managed; a new host's side is still added to it.
    pub(super) fn add(
        &self,
        gpu: BusId,
        device: &Arc<dyn LimitedPool>,
        memory: Option<&DeviceAllocator>,
        host: Option<WeakPool>,
        watch: LimitWatch,
    ) -> bool {
        let first_limit = device.limit_bytes();
        let device = Arc::downgrade(device);
        let mut lists = locked(&self.0);
        let same = |pool: &&mut JobPool| pool.device.ptr_eq(&device);
        if let Some(pool) = lists.pools.iter_mut().find(same) {
            // A host's side that is already known keeps its peaks.
            if let Some(host) = host {
                let known = pool.host.take().filter(|known| known.pool.ptr_eq(&host));
                pool.host = Some(known.unwrap_or_else(|| JobHost::new(host)));
            }
            drop(lists);
            drop(watch);
            return false;
        }
        lists.pools.push(JobPool {
            gpu,
            device,
            first_limit,
            memory: memory.map(DeviceAllocator::downgrade),
            _watch: Arc::new(watch),
            device_peak: Arc::default(),
            host: host.map(JobHost::new),
        });
        if lists.limits.contains_key(&gpu) {
            lists.waiting.insert(gpu);
        }
        true
    }

    /// Adds pinned memory, unless it is already there.
    pub(super) fn add_pinned(&self, gpu: BusId, pool: WeakPool) {
        let mut lists = locked(&self.0);
        let mut known = lists.pinned.iter();
        if !known.any(|(_, known)| known.pool.ptr_eq(&pool)) {
            lists.pinned.push((gpu, JobHost::new(pool)));
        }
    }

    /// Forgets all allocators, and drops their watches.
    pub(super) fn end(&self) {
        let pools = core::mem::take(&mut locked(&self.0).pools);
        drop(pools);
    }

    /// Returns the seven numbers of each allocator for the status.
    pub(super) fn usage(&self, check: StatusCheck) -> Vec<(BusId, DeviceUsage)> {
        let mut usage = self.each(|pool, device| Some((pool.gpu, pool.usage(&*device, check))));
        let pinned = locked(&self.0).pinned.clone();
        let pinned = pinned.iter().filter_map(|(gpu, pinned)| {
            let mut usage = DeviceUsage::default();
            pinned.add_to(&mut usage, check)?;
            Some((*gpu, usage))
        });
        usage.extend(pinned);
        usage
    }

    /// Returns the allocators, without memory that the program gets directly from the driver.
    pub(super) fn memories(&self) -> Vec<DeviceAllocator> {
        self.each(|pool, _| pool.memory.as_ref()?.upgrade())
    }

    /// Returns whether the program may get memory directly from the driver.
    pub(super) fn has_foreign(&self) -> bool {
        let lists = locked(&self.0);
        lists.pools.iter().any(|pool| pool.memory.is_none())
    }

    /// Returns the number of bytes that the program got directly from the driver.
    pub(super) fn foreign_bytes(&self) -> u64 {
        let held = |pool: &JobPool, device: Arc<dyn LimitedPool>| {
            let is_foreign = pool.memory.is_none();
            is_foreign.then(|| device.pool_stats().pool_bytes)
        };
        self.each(held).into_iter().sum()
    }

    /// Returns the GPU and the limit of each allocator, what it holds, and its loans.
    pub(super) fn limits(&self) -> Vec<(BusId, u64, PoolStats, LoanSums)> {
        self.each(|pool, device| {
            let held = device.pool_stats();
            Some((
                pool.gpu,
                device.limit_bytes(),
                held,
                device.node().loan_sums(),
            ))
        })
    }

    /// Calls the callbacks of loans of which bytes are recalled, if limits were set since the last call. The caller has
    /// no lock, and not the statistics.
    pub(super) fn call_back_loans(&self) {
        if !core::mem::take(&mut locked(&self.0).recalls) {
            return;
        }
        self.each(|_, device| {
            device.node().call_back_loans();
            Some(())
        });
    }

    /// Takes the limits of a control file. Changed limits wait to be set.
    pub(super) fn take(&self, file: &ControlFile) {
        let mut lists = locked(&self.0);
        for (gpu, control) in &file.gpus {
            if let Some(bytes) = control.max_device_mem
                && lists.limits.insert(*gpu, bytes) != Some(bytes)
            {
                lists.waiting.insert(*gpu);
            }
        }
        lists.version = file.control_version;
    }

    /// Sets the waiting limits. Returns their outcomes, and the newest file's `controlVersion`.
    pub(super) fn obey(&self, ceiling: Ceiling) -> (Vec<Adjusted>, Option<u64>) {
        let mut lists = locked(&self.0);
        let waiting = core::mem::take(&mut lists.waiting);
        let limits = waiting.into_iter().map(|gpu| (gpu, lists.limits[&gpu]));
        let limits: Vec<_> = limits.collect();
        let version = lists.version;
        drop(lists);
        let set = |(gpu, bytes)| self.set_limit(gpu, bytes, ceiling);
        let adjusted: Vec<_> = limits.into_iter().map(set).collect();
        locked(&self.0).recalls |= !adjusted.is_empty();
        (adjusted, version)
    }

    /// Divides a GPU's limit among the allocators on it.
    fn set_limit(&self, gpu: BusId, limit_bytes: u64, ceiling: Ceiling) -> Adjusted {
        let on_gpu =
            self.each(|pool, device| (pool.gpu == gpu).then_some((pool.first_limit, device)));
        let (first_limits, devices): (Vec<_>, Vec<_>) = on_gpu.into_iter().unzip();
        if devices.is_empty() {
            return Err(NoDevice { gpu });
        }
        let ceiling_bytes = ceiling.bytes(&first_limits);
        let parts = divide_limit(limit_bytes.min(ceiling_bytes), &first_limits);
        let parts = devices.iter().zip(parts).map(|(device, bytes)| LimitPart {
            limit_bytes: bytes,
            answer: device.set_limit(bytes),
        });
        Ok(Adjustment {
            gpu,
            limit_bytes,
            ceiling_bytes: (limit_bytes > ceiling_bytes).then_some(ceiling_bytes),
            parts: parts.collect(),
        })
    }

    /// Releases idle memory of each allocator that holds more than its limit.
    pub(super) fn shrink(&self) {
        let set = self.each(|_, device| {
            let usage = device.node().usage();
            let is_over = usage.excess_bytes > 0;
            is_over.then(|| device.set_limit(usage.config.hard_bytes))
        });
        locked(&self.0).recalls |= !set.is_empty();
    }

    /// Calls `f` with each allocator, without holding the lock, and forgets dropped allocators.
    fn each<T>(&self, f: impl Fn(&JobPool, Arc<dyn LimitedPool>) -> Option<T>) -> Vec<T> {
        let mut lists = locked(&self.0);
        let is_gone = |pool: &mut JobPool| pool.device.strong_count() == 0;
        let gone: Vec<_> = lists.pools.extract_if(.., is_gone).collect();
        let pools = lists.pools.clone();
        drop(lists);
        // Dropped after the lock is released, since dropping a watch takes another lock.
        drop(gone);
        let pools = pools.iter();
        pools
            .filter_map(|pool| f(pool, pool.device.upgrade()?))
            .collect()
    }
}

impl JobPool {
    fn usage(&self, device: &dyn LimitedPool, check: StatusCheck) -> DeviceUsage {
        let (stats, held) = (device.stats(), device.pool_stats());
        let mut usage = DeviceUsage {
            device_peak_bytes: self.device_peak.peak(device.take_peak(), check),
            device_live_bytes: stats.live_bytes,
            device_reserved_bytes: held.pool_bytes,
            device_stable_bytes: held.stable_bytes,
            ..DeviceUsage::default()
        };
        if let Some(host) = &self.host {
            host.add_to(&mut usage, check);
        }
        usage
    }
}

impl JobHost {
    fn new(pool: WeakPool) -> Self {
        let peak = Arc::default();
        Self { pool, peak }
    }

    /// Adds the host's numbers. Returns `None` if the pool was dropped.
    fn add_to(&self, usage: &mut DeviceUsage, check: StatusCheck) -> Option<()> {
        let pool = self.pool.upgrade()?;
        let stats = pool.stats();
        usage.host_peak_bytes = self.peak.peak(pool.take_peak(), check);
        usage.host_live_bytes = stats.live_bytes;
        usage.host_limit_bytes = stats.limit_bytes;
        Some(())
    }
}
