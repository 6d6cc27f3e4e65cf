//! [`ForeignMemory`]: memory that a program gets directly from the driver, without an allocator of this crate.
//! The code that sees the allocations charges them here.

use core::fmt;
use std::sync::Arc;

use larder_core::limits::{BudgetError, BudgetUse, LimitAnswer};
use larder_core::sync::{AtomicU64, Ordering};
use larder_core::{PoolStats, Stats};

use super::{Budget, Charge, LimitEvent, LimitWatch, LimitedPool, OverBudget, TreeNode};
use super::{enter, pool_node};

/// Device memory that a program gets directly from the driver. It has a limit, and a
/// [`Job`](crate::job::Job) that [manages](crate::job::Job::manage_foreign) it limits and reports it like the
/// memory of an allocator. Clones share the memory.
///
/// Nothing is released automatically. Under a lowered limit new charges are refused, and the excess shrinks as
/// the program frees memory.
///
/// ```
/// use larder_cuda::ForeignMemory;
///
/// let memory = ForeignMemory::new(1 << 30)?;
/// let first = memory.charge(600 << 20)?; // before the driver is asked
/// assert!(memory.charge(600 << 20).is_err());
/// drop(first); // after the driver took it back
/// assert_eq!(memory.usage().used_bytes, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ForeignMemory(pub(crate) Arc<Foreign>);

/// The state shared by clones.
pub(crate) struct Foreign {
    node: Arc<TreeNode>,
    charges: AtomicU64,
    peak: AtomicU64,
    /// The peak since it was last taken.
    recent_peak: AtomicU64,
}

/// Foreign memory that is charged until this is dropped.
#[must_use = "the memory is no longer charged when this is dropped"]
pub struct ForeignCharge {
    /// Dropped first, since the watchers are notified after it.
    charge: Charge,
    foreign: Tells,
}

/// Notifies the watchers when dropped.
struct Tells(Arc<Foreign>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.node.shared().notify();
    }
}

impl Foreign {
    fn note_peak(&self) {
        let used = self.node.usage().used_bytes;
        // Relaxed: both are only statistics.
        self.peak.fetch_max(used, Ordering::Relaxed);
        self.recent_peak.fetch_max(used, Ordering::Relaxed);
    }
}

impl ForeignMemory {
    /// Makes memory with a limit of its own; [`u64::MAX`] for none.
    ///
    /// # Errors
    /// [`BudgetError::Heap`] if the host has no memory for the budget's record.
    pub fn new(limit_bytes: u64) -> Result<Self, BudgetError> {
        Self::made(None, limit_bytes)
    }

    /// Makes memory that is also charged to a budget.
    ///
    /// # Errors
    /// [`BudgetError::Full`] if there are 4096 budgets.
    pub fn in_budget(limit_bytes: u64, budget: &Budget) -> Result<Self, BudgetError> {
        Self::made(Some(budget), limit_bytes)
    }

    fn made(budget: Option<&Budget>, limit_bytes: u64) -> Result<Self, BudgetError> {
        let foreign = Arc::new(Foreign {
            node: pool_node(budget, "foreign memory", limit_bytes)?,
            charges: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            recent_peak: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&foreign);
        enter(weak, &foreign.node);
        Ok(Self(foreign))
    }

    /// Charges memory. Call this before the driver is asked for the memory.
    ///
    /// # Errors
    /// [`OverBudget`] if the limit or a budget above has no room.
    pub fn charge(&self, bytes: u64) -> Result<ForeignCharge, OverBudget> {
        let charge = self.0.node.charge(bytes)?;
        // Relaxed: only a statistic.
        self.0.charges.fetch_add(1, Ordering::Relaxed);
        self.0.note_peak();
        Ok(ForeignCharge {
            charge,
            foreign: Tells(self.0.clone()),
        })
    }

    /// Returns the limit, and the bytes charged now.
    pub fn usage(&self) -> BudgetUse {
        self.0.node.usage()
    }

    /// Sets the limit. Returns immediately; from then on nothing is charged above it.
    pub fn set_limit(&self, bytes: u64) -> LimitAnswer {
        self.0.set_limit(bytes)
    }

    /// Calls `callback` when the excess above a lowered [limit](Self::set_limit) has been freed, under the
    /// rules of [`Limits::watch`](crate::Limits::watch).
    pub fn watch_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> LimitWatch {
        self.0.watch_limit(callback)
    }
}

impl ForeignCharge {
    /// Returns the bytes of the charge.
    pub const fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Merges another charge of the same memory into this one.
    pub fn join(&mut self, other: Self) {
        let Self { charge, foreign } = other;
        if Arc::ptr_eq(&foreign.0, &self.foreign.0) {
            self.charge.join(charge);
        }
    }

    /// Sets the bytes held, even above the limit. This is for a pool of the driver, which holds more than was
    /// requested and releases memory on its own.
    pub fn set_bytes(&mut self, bytes: u64) {
        let is_less = bytes < self.bytes();
        self.charge.set(bytes);
        match is_less {
            true => self.foreign.0.node.shared().notify(),
            false => self.foreign.0.note_peak(),
        }
    }
}

/// Each charge is checked against the limit when it is made, so there is no live limit to refresh and no idle
/// memory.
impl LimitedPool for Foreign {
    fn node(&self) -> &Arc<TreeNode> {
        &self.node
    }

    fn refresh_limit(&self) {}

    fn pool_stats(&self) -> PoolStats {
        let used = self.node.usage().used_bytes;
        PoolStats {
            pool_bytes: used,
            stable_bytes: used,
        }
    }

    fn shrink(&self) {}

    fn stats(&self) -> Stats {
        let usage = self.node.usage();
        // Relaxed: all are only statistics.
        let peak = self.peak.load(Ordering::Relaxed);
        Stats {
            allocations: self.charges.load(Ordering::Relaxed),
            live_bytes: usage.used_bytes,
            requested_bytes: usage.used_bytes,
            reserved_bytes: usage.used_bytes,
            peak_live_bytes: peak,
            peak_reserved_bytes: peak,
            limit_bytes: usage.config.hard_bytes,
            ..Stats::default()
        }
    }

    fn take_peak(&self) -> u64 {
        let now = self.node.usage().used_bytes;
        self.recent_peak.swap(now, Ordering::Relaxed)
    }
}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForeignMemory").field(&self.usage()).finish()
    }
}

impl fmt::Debug for ForeignCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.charge.fmt(f)
    }
}
