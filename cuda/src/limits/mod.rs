//! [`Limits`]: limits on the memory of a program, its tenants and their pools, which can change while it runs.
//!
//! The budgets form a tree: the process, its tenants, their tenants, and under each the pools that were created
//! in it with [`DeviceAllocator::in_budget`](crate::DeviceAllocator::in_budget) or
//! [`PinnedAllocator::in_budget`](crate::PinnedAllocator::in_budget). Physical memory is charged to the pool
//! and to all budgets above it before the driver is asked for it, and credited after it has been freed, even
//! if the free is deferred. Windows, steps and arenas use memory of their allocator, so they are counted.
//! Memory that a program has set aside (a window, a tensor pool) was granted when it was set aside; arenas
//! grant nothing while a limit is exceeded. A pool without a budget has a tree that consists only of its own.
//!
//! # Lowering a limit
//! 1. The limit is set in the tree, under the tree's lock. From here on no budget is charged above its limit.
//! 2. Each pool below refreshes its live limit, the maximum of its live bytes ([`LimitTree::live_limit`]). The
//!    pool reads it under its own lock, so if two threads do this, the later one gets the newer limit.
//! 3. Idle memory is released, without a lock: first that of the pool that has just enough or, if none has
//!    enough, that of the pool that has most. Memory that queued work still uses stays; nothing is waited for.
//! 4. Memory that is [lent](Loan) to reserved buffers is recalled, up to the bytes still held above the limit.
//! 5. The answer contains the bytes still held above the limit.
//!
//! After the answer nothing is granted above the lower limit, except that an allocation under way may still
//! get a block from memory that the answer counted. The rest is released as the program frees blocks: while a
//! pool is over its limit, frees look for idle memory, and so do allocations that need the driver and the ends
//! of steps. Memory freed in stream order is released once its events are done.
//!
//! # Locks
//! The tree's lock is the innermost: it may be taken under the lock of a pool's core, and no lock is taken
//! under it. The locks of the lists of pools and of watchers are held only for a look-up. Callbacks run without
//! a lock.
//!
//! (After AntMan, which changes limits at run time. Its adjustable allocator refused a limit that could not be
//! reached immediately, and was asked again at each step.)

mod foreign;
mod loan;
mod loans;
pub(crate) mod node;
pub(crate) mod over_limit;
mod room;
mod watch;

use core::fmt;
use std::sync::{Arc, Weak};

#[cfg(doc)]
use larder_core::limits::LimitTree;
use larder_core::limits::{BudgetConfig, BudgetError, BudgetUse, LimitAnswer};
use larder_core::{PoolStats, Stats};

use crate::driver::locked;
pub use foreign::{ForeignCharge, ForeignMemory};
pub use loan::Loan;
pub(crate) use loans::Claimant;
use node::SharedTree;
pub use node::{BudgetName, OverBudget};
pub(crate) use node::{Charge, TreeNode};
#[cfg(feature = "job")]
pub(crate) use room::LoanSums;
pub use watch::{LimitEvent, LimitWatch};

/// Maximum number of budgets in one process, including pools.
const BUDGETS: usize = 1 << 12;

/// A holder of memory under a budget.
pub(crate) trait LimitedPool: Send + Sync {
    /// Returns the budget to which the pool charges.
    fn node(&self) -> &Arc<TreeNode>;

    /// Rereads the [live limit](TreeNode::live_limit), which has changed.
    fn refresh_limit(&self);

    /// Returns the pool's bytes, and those of them that no release could return now.
    fn pool_stats(&self) -> PoolStats;

    /// Refreshes the live limit, then releases idle memory above it. Does not wait.
    fn shrink(&self);

    /// Returns the pool's counters.
    fn stats(&self) -> Stats;

    /// Returns the peak of live bytes since the last call, or since the beginning, and begins the next
    /// interval.
    #[cfg_attr(not(feature = "job"), expect(dead_code, reason = "jobs report peaks"))]
    fn take_peak(&self) -> u64;

    /// Releases up to `bytes` bytes of idle memory, if it is on the given device. Waits for work that still uses freed
    /// memory. Returns the bytes released. Only allocators of devices do this.
    fn release(&self, _bytes: u64, _device: Option<i32>) -> u64 {
        0
    }

    /// Sets the pool's own limit, immediately releases idle memory above it, and recalls lent memory for the rest,
    /// without calling callbacks.
    fn set_limit(&self, bytes: u64) -> LimitAnswer {
        let node = self.node();
        let answer = node.set(bytes, None);
        if let LimitAnswer::Refused(_) = answer {
            return answer;
        }
        self.shrink();
        node.recall_excess(self.stats().live_bytes);
        let held = node.usage().used_bytes;
        node.shared().notify();
        LimitAnswer::with_excess(held.saturating_sub(bytes))
    }

    /// Returns the pool's own limit; budgets above may allow less.
    fn limit_bytes(&self) -> u64 {
        self.node().usage().config.hard_bytes
    }

    /// Calls `callback` with every event of the pool's own budget, as [`Budget::watch`] does.
    fn watch_limit(&self, callback: impl Fn(&LimitEvent) + Send + Sync + 'static) -> LimitWatch
    where
        Self: Sized,
    {
        Budget::of(self.node()).watch(callback)
    }
}

/// The budgets of a process. Clones share them.
///
/// ```no_run
/// use larder_core::limits::LimitAnswer;
/// use larder_cuda::{Context, DeviceAllocator, DeviceConfig, Limits};
///
/// let limits = Limits::new(8 << 30)?;
/// let tenant = limits.process().tenant("first", 2 << 30)?;
/// let context = Context::new(0)?;
/// let memory = DeviceAllocator::in_budget(&context, DeviceConfig::new(), &tenant)?;
/// // later, while the program allocates and frees
/// match tenant.set(1 << 30) {
///     LimitAnswer::Applied => println!("no more than 1 GiB is held"),
///     LimitAnswer::Deferred { bytes } => println!("{bytes} bytes will be released as blocks are freed"),
///     refused => println!("{refused:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limits(Budget);

impl Limits {
    /// Makes the budget of a process that may hold `limit_bytes`; [`u64::MAX`] for no limit.
    ///
    /// # Errors
    /// [`BudgetError::Heap`] if the host has no memory for the records of 4096 budgets.
    pub fn new(limit_bytes: u64) -> Result<Self, BudgetError> {
        over_whole(BUDGETS, "process", limit_bytes).map(|node| Self(Budget(node)))
    }

    /// Returns the budget above all others.
    pub const fn process(&self) -> &Budget {
        &self.0
    }

    /// Calls `callback` with every event of every budget, until the returned value is dropped. The callback
    /// runs without a lock, on the thread that next allocates, frees or sets a limit, and may use everything
    /// here. It should not hold a clone of an allocator or budget that it watches, since that would then never
    /// be dropped.
    pub fn watch(&self, callback: impl Fn(&LimitEvent) + Send + Sync + 'static) -> LimitWatch {
        let shared = &self.0.0.shared;
        shared.watchers.add(shared, None, callback)
    }

    /// Releases memory above lowered limits that has become idle since, and calls the watchers. Does not wait.
    /// This is for a program whose threads neither allocate nor free.
    pub fn poll(&self) {
        self.0.apply_limits();
    }
}

/// Makes a tree that has only its root.
fn over_whole(budgets: usize, name: &str, limit_bytes: u64) -> Result<Arc<TreeNode>, BudgetError> {
    SharedTree::new(budgets, name, BudgetConfig::new(limit_bytes)).map(TreeNode::root)
}

/// The budget of the process or of a tenant. Clones share it; it ends once its last clone and the last pool in
/// it are gone.
#[derive(Clone, Debug)]
pub struct Budget(Arc<TreeNode>);

impl Budget {
    /// Makes a tenant in this budget that may hold `limit_bytes`, which may be more than this budget's own
    /// limit. Tenants may have tenants. The name is for people: its first 23 bytes are kept, and two tenants
    /// may have the same name.
    ///
    /// # Errors
    /// [`BudgetError::Full`] if there are 4096 budgets, pools among them.
    pub fn tenant(&self, name: &str, limit_bytes: u64) -> Result<Self, BudgetError> {
        self.tenant_with(name, BudgetConfig::new(limit_bytes))
    }

    /// Makes a tenant that also has a soft limit and a floor; `config.name` is ignored.
    ///
    /// # Errors
    /// [`BudgetError::Full`] if there are 4096 budgets; another error if the numbers contradict each other or
    /// the budget above.
    pub fn tenant_with(&self, name: &str, config: BudgetConfig) -> Result<Self, BudgetError> {
        self.0.add(name, config).map(Self)
    }

    /// Returns the budget's name.
    pub fn name(&self) -> BudgetName {
        self.0.name()
    }

    /// Returns the budget's limits, and the bytes held under it now.
    pub fn usage(&self) -> BudgetUse {
        self.0.usage()
    }

    /// Sets the hard limit, without waiting for frees. From then on nothing is granted above the limit, and the
    /// excess is released as blocks are freed. O(pools), and for each pool O(chunks) and the driver calls that
    /// release memory now.
    pub fn set(&self, hard_bytes: u64) -> LimitAnswer {
        self.set_both(hard_bytes, None)
    }

    /// Sets the hard limit and the soft limit ([`u64::MAX`] for no soft limit).
    pub fn set_with_soft(&self, hard_bytes: u64, soft_bytes: u64) -> LimitAnswer {
        self.set_both(hard_bytes, Some(soft_bytes))
    }

    /// Calls `callback` with every event of this budget alone, until the returned value is dropped, as
    /// [`Limits::watch`] does for all budgets.
    pub fn watch(&self, callback: impl Fn(&LimitEvent) + Send + Sync + 'static) -> LimitWatch {
        let shared = &self.0.shared;
        shared.watchers.add(shared, Some(self.0.id), callback)
    }

    pub(crate) fn of(node: &Arc<TreeNode>) -> Self {
        Self(node.clone())
    }

    fn set_both(&self, hard_bytes: u64, soft_bytes: Option<u64>) -> LimitAnswer {
        let answer = self.0.set(hard_bytes, soft_bytes);
        if let LimitAnswer::Refused(_) = answer {
            return answer;
        }
        self.apply_limits();
        let live = self
            .pools()
            .iter()
            .map(|pool| pool.stats().live_bytes)
            .sum();
        self.0.recall_excess(live);
        self.0.call_back_loans();
        LimitAnswer::with_excess(self.usage().used_bytes.saturating_sub(hard_bytes))
    }

    /// Refreshes the live limits of all pools below, then releases idle memory above them.
    fn apply_limits(&self) {
        let pools = self.pools();
        for pool in &pools {
            pool.refresh_limit();
        }
        if self.is_above_limits(&pools) {
            self.shrink(&pools);
            // Released memory raises the live limit of every pool.
            for pool in &pools {
                pool.refresh_limit();
            }
        }
        drop(pools);
        self.0.shared.notify();
    }

    /// Releases idle memory above the limits, one pool after the other: first that of the pool with just enough
    /// or, if none has enough, that of the pool with most.
    fn shrink(&self, pools: &[Arc<dyn LimitedPool>]) {
        let idle = |pool: &Arc<dyn LimitedPool>| {
            let stats = pool.pool_stats();
            stats.pool_bytes.saturating_sub(stats.stable_bytes)
        };
        let mut left: Vec<_> = pools.iter().map(|pool| (idle(pool), pool)).collect();
        while !left.is_empty() && self.is_above_limits(pools) {
            let excess = self.usage().excess_bytes;
            let rank = |idle: u64| match idle.checked_sub(excess) {
                Some(more) => (false, more),
                None => (true, u64::MAX - idle),
            };
            let order = left.iter().map(|(idle, _)| rank(*idle)).enumerate();
            let first = order.min_by_key(|(_, rank)| *rank);
            let (_, pool) = left.swap_remove(first.map_or(0, |(at, _)| at));
            pool.shrink();
        }
    }

    /// Returns whether this budget, a pool's own budget or a budget above a pool is above its limit.
    fn is_above_limits(&self, pools: &[Arc<dyn LimitedPool>]) -> bool {
        let above = |node: &TreeNode| node.above_in_excess(0).is_some();
        self.usage().excess_bytes > 0
            || pools
                .iter()
                .any(|pool| pool.node().usage().excess_bytes > 0 || above(pool.node()))
    }

    /// Returns the pools that charge to this budget or to a budget below it.
    fn pools(&self) -> Vec<Arc<dyn LimitedPool>> {
        self.0.shared.pools_within(self.0.id)
    }
}

/// Makes the budget to which a pool charges, inside another budget or by itself.
pub(crate) fn pool_node(
    budget: Option<&Budget>,
    name: &str,
    limit_bytes: u64,
) -> Result<Arc<TreeNode>, BudgetError> {
    match budget {
        Some(budget) => budget.0.add(name, BudgetConfig::new(limit_bytes)),
        None => over_whole(1, name, limit_bytes),
    }
}

/// Registers a pool, which obeys lowered limits from now on.
pub(crate) fn enter(pool: Weak<dyn LimitedPool>, node: &TreeNode) {
    let mut pools = locked(&node.shared.pools);
    pools.retain(|pool| pool.strong_count() > 0);
    pools.push(pool);
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usage = self.usage();
        let (used, hard) = (usage.used_bytes, usage.config.hard_bytes);
        write!(f, "{}: {used} of {hard} bytes", self.name())
    }
}
