//! The allocators of a job: [`JobPool`]s, and the numbers that they report.
//!
//! A job keeps none of them alive: it knows them weakly, and forgets those that are gone.

use std::sync::{Arc, Mutex, Weak};

use larder_control::{BusId, DeviceUsage};
use larder_core::sync::{AtomicU64, Ordering};

use crate::DeviceAllocator;
use crate::device::WeakDevice;
use crate::driver::locked;
use crate::limits::{LimitWatch, LimitedPool};

type WeakPool = Weak<dyn LimitedPool>;

/// A device's allocator, with the host's side behind it if it has one.
#[derive(Clone)]
struct JobPool {
    gpu: BusId,
    device: WeakPool,
    /// The limit that it began with.
    first_limit: u64,
    /// None where the program takes memory from the driver by itself.
    memory: Option<WeakDevice>,
    /// Rings the bell when what was deferred has gone back.
    _watch: Arc<LimitWatch>,
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

/// A peak over the time between two looks that were due. Changed only by the thread that has the state.
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
    pools: Vec<JobPool>,
    pinned: Vec<(BusId, JobHost)>,
}

impl ManagedPools {
    /// Adds an allocator. Returns false if it is there already; then it may get its host's side.
    pub(super) fn add(
        &self,
        gpu: BusId,
        device: &Arc<dyn LimitedPool>,
        memory: Option<&DeviceAllocator>,
        host: Option<WeakPool>,
        watch: LimitWatch,
    ) -> bool {
        let first_limit = device.node().usage().config.hard_bytes;
        let device = Arc::downgrade(device);
        let mut lists = locked(&self.0);
        let same = |pool: &&mut JobPool| pool.device.ptr_eq(&device);
        if let Some(pool) = lists.pools.iter_mut().find(same) {
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
        true
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

    /// Forgets all allocators, and drops their watches.
    pub(super) fn end(&self) {
        let pools = core::mem::take(&mut locked(&self.0).pools);
        drop(pools);
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
        lists.pools.iter().any(|pool| pool.memory.is_none())
    }

    /// Bytes that the program took from the driver by itself.
    pub(super) fn foreign_bytes(&self) -> u64 {
        let (pools, _) = self.now();
        let foreign = pools.iter().filter(|pool| pool.memory.is_none());
        let held = foreign.filter_map(|pool| Some(pool.device.upgrade()?.pool_stats().pool_bytes));
        held.sum()
    }

    /// The limit of each allocator, and what it holds.
    pub(super) fn limits(&self) -> Vec<(BusId, u64, u64)> {
        let (pools, _) = self.now();
        let limit = |pool: &JobPool| {
            let device = pool.device.upgrade()?;
            let limit_bytes = device.node().usage().config.hard_bytes;
            Some((pool.gpu, limit_bytes, device.pool_stats().pool_bytes))
        };
        pools.iter().filter_map(limit).collect()
    }

    /// The allocators on a GPU, each behind the limit that it began with.
    pub(super) fn on_gpu(&self, gpu: BusId) -> Vec<(u64, Arc<dyn LimitedPool>)> {
        let (pools, _) = self.now();
        let here = pools.iter().filter(|pool| pool.gpu == gpu);
        here.filter_map(|pool| Some((pool.first_limit, pool.device.upgrade()?)))
            .collect()
    }

    /// The allocators that hold more than their limit, each with it.
    pub(super) fn over_limit(&self) -> Vec<(u64, Arc<dyn LimitedPool>)> {
        let (pools, _) = self.now();
        let over = |pool: &JobPool| {
            let device = pool.device.upgrade()?;
            let usage = device.node().usage();
            (usage.excess_bytes > 0).then_some((usage.config.hard_bytes, device))
        };
        pools.iter().filter_map(over).collect()
    }

    /// What is there, without the lock.
    fn now(&self) -> (Vec<JobPool>, Vec<(BusId, JobHost)>) {
        let mut lists = locked(&self.0);
        let is_gone = |pool: &mut JobPool| pool.device.strong_count() == 0;
        let gone: Vec<_> = lists.pools.extract_if(.., is_gone).collect();
        let (pools, pinned) = (lists.pools.clone(), lists.pinned.clone());
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
