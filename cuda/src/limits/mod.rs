//! [`Limits`]: how much memory a program, its tenants and their pools may hold, changed while it runs.
//!
//! A tree of budgets: the process, tenants in it, tenants of these, and under each the pools that were made
//! in it: [`DeviceAllocator::in_budget`](crate::DeviceAllocator::in_budget) and
//! [`PinnedAllocator::in_budget`](crate::PinnedAllocator::in_budget). Physical memory is charged to the pool
//! and to all budgets above it before the driver is asked, and credited after the driver took it back, also
//! where that comes late. Windows, steps and arenas hold memory of their allocator, so they are counted.
//! What a program has set aside (a window, a tensor pool) was granted when it was set aside; arenas grant
//! nothing while a limit is not met.
//! A pool without a budget has a tree of its own, of itself alone, for its limit.
//!
//! # A limit is lowered
//! 1. The tree has it, under its lock: from here on no budget above its limit is charged.
//! 2. Each pool below refreshes its live limit, the most that it may have live
//!    ([`LimitTree::live_limit`]). It is read under the pool's own lock, so of two threads that do
//!    this the later one has the newer limit.
//! 3. Without a lock, idle memory goes back: first of the pool that has just enough, else of those that
//!    have most. What queued work still uses stays; nothing is waited for.
//! 4. The answer: what is held above the limit still.
//!
//! After the answer nothing is granted above the lower limit. A block whose allocation was under
//! way may still be given, out of memory that the answer counted. The rest goes back to the driver
//! as the program frees blocks: while a pool is over its limit, a free looks for idle memory, and
//! so do an allocation that needs the driver and the end of a step; what is freed in the order of a
//! stream goes when its events have passed.
//!
//! # Locks
//! The tree's lock is the innermost: it is taken under a pool's core and takes no other. The locks of the
//! lists of pools and of watchers are held for a look. Callbacks run without any.
//!
//! (From the limits at run time of AntMan, whose adjustable allocator refused what could not be freed at
//! once and was asked again at each step.)

mod foreign;
pub(crate) mod node;
pub(crate) mod over_limit;
mod watch;

use core::fmt;
use std::sync::{Arc, Weak};

#[cfg(doc)]
use larder_core::limits::LimitTree;
use larder_core::limits::{BudgetConfig, BudgetError, BudgetUse, LimitAnswer};
use larder_core::{PoolStats, Stats};

use crate::driver::locked;
pub use foreign::{ForeignCharge, ForeignMemory};
use node::SharedTree;
pub use node::{BudgetName, OverBudget};
pub(crate) use node::{Charge, TreeNode};
pub use watch::{LimitEvent, LimitWatch};

/// Budgets of one process, at most, pools among them.
const BUDGETS: usize = 1 << 12;

/// What holds memory under a budget.
pub(crate) trait LimitedPool: Send + Sync {
    /// The budget that it charges to.
    fn node(&self) -> &Arc<TreeNode>;

    /// Reads the [live limit](TreeNode::live_limit) anew, which has changed.
    fn refresh_limit(&self);

    /// How far its limit could be lowered now.
    fn pool_stats(&self) -> PoolStats;

    /// Refreshes the live limit, then gives back what is idle above it. Nothing is waited for.
    fn shrink(&self);

    /// Counters now.
    fn stats(&self) -> Stats;

    /// The most live bytes since this was last asked for, or since the beginning; now the next interval begins.
    fn take_peak(&self) -> u64;

    /// Sets its own limit, and gives back at once what is idle above it.
    fn set_limit(&self, bytes: u64) -> LimitAnswer {
        let node = self.node();
        let answer = node.set(bytes, None);
        if let LimitAnswer::Refused(_) = answer {
            return answer;
        }
        self.shrink();
        let held = node.usage().used_bytes;
        node.shared().notify();
        LimitAnswer::with_excess(held.saturating_sub(bytes))
    }

    /// Its own limit; budgets above may allow less.
    fn limit_bytes(&self) -> u64 {
        self.node().usage().config.hard_bytes
    }

    /// Calls `callback` with every event of its own budget, as [`Budget::watch`] does.
    fn watch_limit(&self, callback: impl Fn(&LimitEvent) + Send + Sync + 'static) -> LimitWatch
    where
        Self: Sized,
    {
        Budget::of(self.node()).watch(callback)
    }
}

/// The budgets of a process. A clone shares them.
///
/// ```no_run
/// use larder_core::limits::LimitAnswer;
/// use larder_cuda::{Context, DeviceAllocator, DeviceConfig, Limits};
///
/// let limits = Limits::new(8 << 30)?;
/// let tenant = limits.process().tenant("first", 2 << 30)?;
/// let context = Context::new(0)?;
/// let memory = DeviceAllocator::in_budget(&context, DeviceConfig::new(), &tenant)?;
/// // later, while it allocates and frees
/// match tenant.set(1 << 30) {
///     LimitAnswer::Applied => println!("no more than 1 GiB is held"),
///     LimitAnswer::Deferred { bytes } => println!("{bytes} bytes go as blocks are freed"),
///     refused => println!("{refused:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limits(Budget);

impl Limits {
    /// A process that may hold so many bytes; [`u64::MAX`] for no limit.
    ///
    /// # Errors
    /// None today.
    pub fn new(limit_bytes: u64) -> Result<Self, BudgetError> {
        over_whole(BUDGETS, "process", limit_bytes).map(|node| Self(Budget(node)))
    }

    /// The budget above all others.
    pub const fn process(&self) -> &Budget {
        &self.0
    }

    /// Calls `callback` with every event of every budget, until the answer is dropped. It is called without
    /// a lock, by whichever thread allocates, frees or sets a limit next, and may use everything here. It
    /// should not hold a clone of what it watches: that would never go.
    pub fn watch(&self, callback: impl Fn(&LimitEvent) + Send + Sync + 'static) -> LimitWatch {
        let shared = &self.0.0.shared;
        shared.watchers.add(shared, None, callback)
    }

    /// Completes what lowered limits still want, as far as memory has become idle, and calls the watchers.
    /// For a program whose threads neither allocate nor free. Nothing is waited for.
    pub fn poll(&self) {
        self.0.settle();
    }
}

/// Makes a tree that has only its root.
fn over_whole(budgets: usize, name: &str, limit_bytes: u64) -> Result<Arc<TreeNode>, BudgetError> {
    SharedTree::new(budgets, name, BudgetConfig::new(limit_bytes)).map(TreeNode::root)
}

/// A budget: the process, or a tenant. A clone shares it; the budget goes with the last clone and the last
/// pool in it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<TreeNode>);

impl Budget {
    /// A tenant in this budget that may hold so many bytes, more than the budget above has too. Tenants may
    /// have tenants. The name is for people: the first 23 bytes of it are kept, and two may have the same.
    ///
    /// # Errors
    /// [`BudgetError::Full`] if there are 4096 budgets, pools among them.
    pub fn tenant(&self, name: &str, limit_bytes: u64) -> Result<Self, BudgetError> {
        self.tenant_with(name, BudgetConfig::new(limit_bytes))
    }

    /// Makes a tenant that also has a soft limit and a floor; `config.name` is ignored.
    ///
    /// # Errors
    /// [`BudgetError::Full`] if there are 4096 budgets, and if the numbers contradict each other or the
    /// budget above.
    pub fn tenant_with(&self, name: &str, config: BudgetConfig) -> Result<Self, BudgetError> {
        self.0.add(name, config).map(Self)
    }

    /// Its name.
    pub fn name(&self) -> BudgetName {
        self.0.name()
    }

    /// Its limits, and what is held under it now.
    pub fn usage(&self) -> BudgetUse {
        self.0.usage()
    }

    /// Sets the hard limit. The answer comes at once; from then on nothing is granted above the limit, and
    /// what is held above it goes back as blocks come back. O(pools), for each one O(chunks) and the calls
    /// for what goes back now.
    pub fn set(&self, hard_bytes: u64) -> LimitAnswer {
        self.set_both(hard_bytes, None)
    }

    /// Sets the hard limit and the soft one; [`u64::MAX`] is no soft limit.
    pub fn set_with_soft(&self, hard_bytes: u64, soft_bytes: u64) -> LimitAnswer {
        self.set_both(hard_bytes, Some(soft_bytes))
    }

    /// Calls `callback` with every event of this budget alone, until the answer is dropped, as
    /// [`Limits::watch`] does for all.
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
        self.settle();
        LimitAnswer::with_excess(self.usage().used_bytes.saturating_sub(hard_bytes))
    }

    /// Has all pools below refresh their live limits, then gives back what is idle above them.
    fn settle(&self) {
        let pools = self.pools();
        for pool in &pools {
            pool.refresh_limit();
        }
        if self.is_above_limits(&pools) {
            self.shrink(&pools);
            // What has gone back raises the live limits of all.
            for pool in &pools {
                pool.refresh_limit();
            }
        }
        drop(pools);
        self.0.shared.notify();
    }

    /// Gives back what is idle above the limits, of one pool after the other: of that with just enough
    /// first, else of that with most.
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

    /// Whether this budget or a pool's own is above its limit.
    fn is_above_limits(&self, pools: &[Arc<dyn LimitedPool>]) -> bool {
        let above = |node: &TreeNode| node.above_in_excess(0).is_some();
        self.usage().excess_bytes > 0
            || pools
                .iter()
                .any(|pool| pool.node().usage().excess_bytes > 0 || above(pool.node()))
    }

    /// The pools that charge to this budget or to one below it.
    fn pools(&self) -> Vec<Arc<dyn LimitedPool>> {
        let mut list = locked(&self.0.shared.pools);
        list.retain(|pool| pool.strong_count() > 0);
        let all: Vec<_> = list.iter().filter_map(Weak::upgrade).collect();
        drop(list);
        // A pool whose last owner goes meanwhile is dropped here, without a lock.
        let mut pools = all;
        pools.retain(|pool| pool.node().is_within(self.0.id));
        pools
    }
}

/// The budget that a pool charges to: in another one, or by itself.
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

/// Enters a pool, which obeys lowered limits from now on.
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
