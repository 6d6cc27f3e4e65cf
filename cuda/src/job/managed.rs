//! The allocators of a job: [`JobPool`]s, whose limits change, and the numbers that they report.
//!
//! A job keeps none of them alive: it knows them weakly, and forgets those that are gone.

use std::sync::{Arc, Mutex, Weak};

use larder_control::{AdjustableDevice, BusId, DeviceUsage, GpuLimit};
use larder_core::limits::LimitAnswer;
use larder_core::sync::{AtomicU64, Ordering};

use crate::DeviceAllocator;
use crate::device::WeakDevice;
use crate::driver::locked;
use crate::limits::{LimitWatch, LimitedPool, set_own};

type WeakPool = Weak<dyn LimitedPool>;

/// A device's allocator, with the host's side behind it if it has one.
#[derive(Clone)]
pub(super) struct JobPool {
    pub(super) gpu: BusId,
    pub(super) device: WeakPool,
    /// None where the program takes memory from the driver by itself.
    memory: Option<WeakDevice>,
    device_peak: Arc<Interval>,
    host: Option<JobHost>,
}

/// Memory of the host, counted for a GPU: the side behind a device, or pinned memory.
#[derive(Clone)]
struct JobHost {
    pool: WeakPool,
    peak: Arc<Interval>,
}

/// How numbers are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// When it is time for it: this ends an interval of peaks.
    Due,
    /// Outside of its time, because something has changed: the interval goes on, and the peak is that of
    /// the last one if that was higher. The time since then may have been short.
    Between,
}

/// A peak over the time between two looks that were due. Changed only by the thread that has the
/// [`FileState`](super::file_state::FileState).
#[derive(Default)]
struct Interval {
    last: AtomicU64,
    since: AtomicU64,
}

impl Interval {
    /// The peak to report, given the peak since this was last asked.
    fn peak(&self, taken: u64, look: Look) -> u64 {
        // Relaxed, all: one thread at a time (CTRL1).
        let since = self.since.load(Ordering::Relaxed).max(taken);
        match look {
            Look::Due => {
                self.since.store(0, Ordering::Relaxed);
                self.last.store(since, Ordering::Relaxed);
                since
            }
            Look::Between => {
                self.since.store(since, Ordering::Relaxed);
                since.max(self.last.load(Ordering::Relaxed))
            }
        }
    }
}

/// What a job manages.
#[derive(Default)]
pub(super) struct ManagedPools(Mutex<PoolLists>);

#[derive(Default)]
struct PoolLists {
    pools: Vec<(JobPool, Arc<LimitWatch>)>,
    pinned: Vec<(BusId, JobHost)>,
}

impl ManagedPools {
    /// One more; `None` if it is managed already, which may have got its host's side.
    pub(super) fn add(
        &self,
        gpu: BusId,
        device: WeakPool,
        memory: Option<&DeviceAllocator>,
        host: Option<WeakPool>,
        watch: LimitWatch,
    ) -> Option<JobPool> {
        let mut lists = locked(&self.0);
        let same = |(pool, _): &&mut (JobPool, _)| pool.device.ptr_eq(&device);
        if let Some((pool, _)) = lists.pools.iter_mut().find(same) {
            // What was seen of a host's side that is known goes on.
            if let Some(host) = host
                && !pool
                    .host
                    .as_ref()
                    .is_some_and(|known| known.pool.ptr_eq(&host))
            {
                pool.host = Some(JobHost::new(host));
            }
            drop(lists);
            drop(watch);
            return None;
        }
        let pool = JobPool {
            gpu,
            device,
            memory: memory.map(DeviceAllocator::downgrade),
            device_peak: Arc::default(),
            host: host.map(JobHost::new),
        };
        lists.pools.push((pool.clone(), Arc::new(watch)));
        Some(pool)
    }

    /// Pinned memory counts from now on, once.
    pub(super) fn add_pinned(&self, gpu: BusId, pool: WeakPool) {
        let mut lists = locked(&self.0);
        if !lists
            .pinned
            .iter()
            .any(|(_, other)| other.pool.ptr_eq(&pool))
        {
            lists.pinned.push((gpu, JobHost::new(pool)));
        }
    }

    /// Drops the watches: no callback about completed limits runs any more.
    pub(super) fn end(&self) {
        let watches = core::mem::take(&mut locked(&self.0).pools);
        drop(watches);
    }

    /// The seven numbers of each allocator that is still there.
    pub(super) fn usage(&self, look: Look) -> Vec<(BusId, DeviceUsage)> {
        let (pools, pinned) = self.now();
        let pools = pools.iter().filter_map(|pool| pool.usage(look));
        let pinned = pinned.iter().filter_map(|(gpu, pinned)| {
            let mut usage = DeviceUsage::default();
            pinned.add_to(&mut usage, look)?;
            Some((*gpu, usage))
        });
        pools.chain(pinned).collect()
    }

    /// The devices' allocators that are still there.
    pub(super) fn memories(&self) -> Vec<DeviceAllocator> {
        let (pools, _) = self.now();
        let memories = pools
            .iter()
            .filter_map(|pool| pool.memory.as_ref()?.upgrade());
        memories.collect()
    }

    /// Whether the program may take memory from the driver by itself.
    pub(super) fn has_foreign(&self) -> bool {
        let lists = locked(&self.0);
        lists.pools.iter().any(|(pool, _)| pool.memory.is_none())
    }

    /// Bytes that the program took from the driver by itself.
    pub(super) fn foreign_bytes(&self) -> u64 {
        let (pools, _) = self.now();
        let foreign = pools.iter().filter(|pool| pool.memory.is_none());
        let held = foreign.filter_map(|pool| Some(pool.device.upgrade()?.pool_stats().pool_bytes));
        held.sum()
    }

    /// Limits and what is held, of each allocator.
    pub(super) fn limits(&self) -> Vec<(BusId, GpuLimit)> {
        let (pools, _) = self.now();
        pools.iter().filter_map(JobPool::limit).collect()
    }

    /// What is there, without the lock.
    fn now(&self) -> (Vec<JobPool>, Vec<(BusId, JobHost)>) {
        let mut lists = locked(&self.0);
        let gone: Vec<_> = lists
            .pools
            .extract_if(.., |(pool, _)| pool.device.strong_count() == 0)
            .collect();
        let pools = lists.pools.iter().map(|(pool, _)| pool.clone()).collect();
        let pinned = lists.pinned.clone();
        drop(lists);
        // Their watches.
        drop(gone);
        (pools, pinned)
    }
}

impl JobPool {
    fn usage(&self, look: Look) -> Option<(BusId, DeviceUsage)> {
        let device = self.device.upgrade()?;
        let (stats, held) = (device.stats(), device.pool_stats());
        let mut usage = DeviceUsage {
            device_peak_bytes: self.device_peak.peak(device.take_peak(), look),
            device_live_bytes: stats.live_bytes,
            device_reserved_bytes: held.pool_bytes,
            device_stable_bytes: held.stable_bytes,
            ..DeviceUsage::default()
        };
        if let Some(host) = &self.host {
            host.add_to(&mut usage, look);
        }
        Some((self.gpu, usage))
    }

    fn limit(&self) -> Option<(BusId, GpuLimit)> {
        let device = self.device.upgrade()?;
        let limit_bytes = device.node().usage().config.hard_bytes;
        let held_bytes = device.pool_stats().pool_bytes;
        let mut limit = GpuLimit::default();
        limit.limit_bytes = limit_bytes;
        limit.held_bytes = held_bytes;
        limit.deferred_bytes = held_bytes.saturating_sub(limit_bytes);
        Some((self.gpu, limit))
    }
}

impl JobHost {
    fn new(pool: WeakPool) -> Self {
        let peak = Arc::default();
        Self { pool, peak }
    }

    /// Enters the host's numbers; `None` if the pool is gone.
    fn add_to(&self, usage: &mut DeviceUsage, look: Look) -> Option<()> {
        let pool = self.pool.upgrade()?;
        let stats = pool.stats();
        usage.host_peak_bytes = self.peak.peak(pool.take_peak(), look);
        usage.host_live_bytes = stats.live_bytes;
        usage.host_limit_bytes = stats.limit_bytes;
        Some(())
    }
}

impl AdjustableDevice for JobPool {
    fn bus_id(&self) -> BusId {
        self.gpu
    }

    fn limit_bytes(&self) -> u64 {
        self.device
            .upgrade()
            .map_or(0, |device| device.node().usage().config.hard_bytes)
    }

    fn set_limit(&self, bytes: u64) -> LimitAnswer {
        match self.device.upgrade() {
            Some(device) => set_own(&*device, bytes),
            // Nothing is held any more.
            None => LimitAnswer::Applied,
        }
    }
}
