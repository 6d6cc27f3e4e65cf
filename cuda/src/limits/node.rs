//! Trees of budgets: a [`TreeNode`] is one budget, shared by everybody who charges to it; a [`Charge`] is the
//! bytes charged for one holder of memory.
//!
//! CHARGE1 The bytes of a [`Charge`] are charged from before the driver is asked for the memory until after
//! the memory has been freed: the holder of the memory, even a deferred free, also holds the charge.
//! CHARGE2 A node is in the tree as long as it is held; each node holds the one above it.
//! CHARGE3 The tree's lock is held for bookkeeping only, and no lock is taken under it.

use core::fmt;
use std::sync::{Arc, Mutex, Weak};

use larder_core::limits::{BudgetConfig, BudgetError, BudgetId, BudgetUse, LimitAnswer, LimitTree};
use larder_core::sync::{AtomicU8, Ordering};
use larder_core::{AllocError, ByteCount, Cause, Locked};

use super::LimitedPool;
use super::loans::Loans;
use super::watch::{LimitEvent, Watchers};
use crate::driver::locked;
use crate::lock_wait::Yield;

/// A budget's name, of which at most the first 23 bytes are kept.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct BudgetName {
    bytes: [u8; Self::MAX_BYTES],
    len: u8,
}

impl BudgetName {
    const MAX_BYTES: usize = 23;

    pub(super) fn new(name: &str) -> Self {
        let mut len = name.len().min(Self::MAX_BYTES);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; Self::MAX_BYTES];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Self {
            bytes,
            // Lossless, since it is at most 23.
            len: len as u8,
        }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        let name = self.bytes.get(..usize::from(self.len));
        name.and_then(|name| core::str::from_utf8(name).ok())
            .unwrap_or_default()
    }
}

impl fmt::Display for BudgetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for BudgetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// A budget has too little room for the memory. The driver was not asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the budget `{budget}` of {:#} has no room for {:#} more, {:#} are used: free and release memory there, or raise its \
     limit",
    ByteCount(*limit_bytes),
    ByteCount(*wanted_bytes),
    ByteCount(*used_bytes)
)]
#[non_exhaustive]
pub struct OverBudget {
    /// Name of the budget.
    pub budget: BudgetName,
    /// Its hard limit.
    pub limit_bytes: u64,
    /// Bytes held under it.
    pub used_bytes: u64,
    /// Bytes requested by one call, in whole pages or regions.
    pub wanted_bytes: u64,
    /// Whether the limit is the requesting pool's own, which the core knows too.
    pub(crate) own: bool,
    /// The budget itself.
    pub(super) id: BudgetId,
    /// Bytes that the whole request needed beyond the pool's free memory.
    pub(super) needed_bytes: u64,
}

/// A tree of budgets and the names in it.
pub(super) struct BudgetTable {
    pub(super) tree: LimitTree,
    /// Names by index in the tree; `None` if no budget has the index.
    names: Vec<Option<BudgetName>>,
}

impl BudgetTable {
    pub(super) fn name(&self, index: u32) -> BudgetName {
        let name = self.names.get(index as usize).copied();
        name.flatten().unwrap_or_default()
    }

    /// Adds a name and returns its index.
    fn enter(&mut self, name: BudgetName) -> u32 {
        let vacant = self.names.iter().position(Option::is_none);
        let index = vacant.unwrap_or(self.names.len());
        match self.names.get_mut(index) {
            Some(place) => *place = Some(name),
            None => self.names.push(Some(name)),
        }
        // Lossless, since it is at most the number of budgets.
        index as u32
    }
}

/// The state that a tree's budgets share.
pub(crate) struct SharedTree {
    pub(super) table: Locked<BudgetTable, Yield>,
    /// Whether events may be waiting for the watchers.
    has_events: AtomicU8,
    pub(super) watchers: Watchers,
    /// The pools, which obey lowered limits.
    pub(super) pools: Mutex<Vec<Weak<dyn LimitedPool>>>,
    pub(super) loans: Loans,
}

impl SharedTree {
    /// Makes a tree of at most `budgets` budgets, including its root.
    pub(super) fn new(budgets: usize, name: &str, root: BudgetConfig) -> Result<Self, BudgetError> {
        let config = BudgetConfig { name: 0, ..root };
        let tree = LimitTree::new(budgets, config)?;
        let names = vec![Some(BudgetName::new(name))];
        Ok(Self {
            table: Locked::new(BudgetTable { tree, names }),
            has_events: AtomicU8::new(0),
            watchers: Watchers::default(),
            pools: Mutex::default(),
            loans: Loans::default(),
        })
    }

    fn with<R>(&self, f: impl FnOnce(&mut BudgetTable) -> R) -> R {
        self.table.with(|table| {
            let answer = f(table);
            if table.tree.has_events() {
                self.has_events.store(1, Ordering::Relaxed);
            }
            answer
        })
    }

    /// Returns the budget above all others.
    pub(super) fn root(&self) -> BudgetId {
        self.table.with(|table| table.tree.root())
    }

    /// Returns the pools that charge to a budget or to a budget below it.
    pub(super) fn pools_within(&self, budget: BudgetId) -> Vec<Arc<dyn LimitedPool>> {
        let mut list = locked(&self.pools);
        list.retain(|pool| pool.strong_count() > 0);
        let all: Vec<_> = list.iter().filter_map(Weak::upgrade).collect();
        drop(list);
        // A pool that has lost its last other owner is dropped here, without a lock.
        let mut pools = all;
        pools.retain(|pool| pool.node().is_within(budget));
        pools
    }

    /// Calls the watchers with all events so far. The caller must hold none of our locks, and none is held
    /// while a watcher runs. O(1) if there are no events.
    ///
    /// Does nothing while the thread unwinds, since a second panic in a callback would end the process. If a
    /// callback panics, the remaining events are left for the next call.
    pub(crate) fn notify(&self) {
        if self.has_events.load(Ordering::Relaxed) == 0
            || std::thread::panicking()
            || self.has_events.swap(0, Ordering::Relaxed) == 0
        {
            return;
        }
        let rest = EventsLeft(&self.has_events);
        let next = || {
            self.table.with(|table| {
                let event = table.tree.take_event()?;
                Some((event, table.name(event.name)))
            })
        };
        while let Some((event, name)) = next() {
            self.watchers.call(
                event.budget,
                &LimitEvent {
                    budget: name,
                    kind: event.kind,
                    used_bytes: event.used_bytes,
                    limit_bytes: event.limit_bytes,
                },
            );
        }
        core::mem::forget(rest);
    }
}

/// Notes, when dropped, that events may be left. It is dropped only if a callback unwinds.
struct EventsLeft<'a>(&'a AtomicU8);

impl Drop for EventsLeft<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Relaxed);
    }
}

/// One budget of a tree, shared by all who charge to it.
pub(crate) struct TreeNode {
    pub(super) shared: Arc<SharedTree>,
    pub(super) id: BudgetId,
    /// Index of the budget's name.
    name: u32,
    /// The budget above; `None` for the root.
    above: Option<Arc<Self>>,
}

impl TreeNode {
    pub(super) fn root(shared: SharedTree) -> Arc<Self> {
        let id = shared.root();
        Arc::new(Self {
            shared: Arc::new(shared),
            id,
            name: 0,
            above: None,
        })
    }

    /// Adds a budget below this one.
    pub(super) fn add(
        self: &Arc<Self>,
        name: &str,
        config: BudgetConfig,
    ) -> Result<Arc<Self>, BudgetError> {
        let name = BudgetName::new(name);
        let added = self.shared.table.with(|table| {
            let index = table.enter(name);
            let config = BudgetConfig {
                name: index,
                ..config
            };
            match table.tree.add(self.id, config) {
                Ok(id) => Ok((id, index)),
                Err(error) => {
                    table.names[index as usize] = None;
                    Err(error)
                }
            }
        });
        let (id, name) = added?;
        Ok(Arc::new(Self {
            shared: self.shared.clone(),
            id,
            name,
            above: Some(self.clone()),
        }))
    }

    /// Charges bytes, before the driver is asked for them.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge, OverBudget> {
        let charged = self.shared.with(|table| {
            table
                .tree
                .charge(self.id, bytes)
                .map_err(|error| match error {
                    BudgetError::NoRoom(refusal) => OverBudget {
                        own: refusal.budget == self.id,
                        ..over(table, refusal)
                    },
                    // Unreachable, since a node is in the tree (CHARGE2).
                    _ => OverBudget {
                        budget: BudgetName::default(),
                        limit_bytes: 0,
                        used_bytes: 0,
                        wanted_bytes: bytes,
                        own: true,
                        id: self.id,
                        needed_bytes: bytes,
                    },
                })
        });
        charged.map(|()| Charge {
            node: self.clone(),
            bytes,
        })
    }

    /// Returns the refusal of a budget above this one, at any level, whose lowered limit forbids granting memory
    /// under it.
    pub(crate) fn above_in_excess(&self, wanted_bytes: u64) -> Option<OverBudget> {
        let above = self.above.as_ref()?;
        self.shared.table.with(|table| {
            let refusal = table.tree.in_excess(above.id, wanted_bytes)?;
            Some(over(table, refusal))
        })
    }

    /// Returns whether this budget, or one above it, is charged more than its limit.
    pub(crate) fn is_in_excess(&self) -> bool {
        let excess = self
            .shared
            .table
            .with(|table| table.tree.in_excess(self.id, 0));
        excess.is_some()
    }

    /// Returns the maximum number of live bytes that a pool charging here may have now.
    pub(crate) fn live_limit(&self) -> u64 {
        let tree = &self.shared.table;
        let limit = tree.with(|table| table.tree.live_limit(self.id));
        limit.unwrap_or(0)
    }

    /// Returns a budget's refusal, if that is the reason why an allocator that charges here got no memory.
    /// `refused` returns the refusal of the newest charge.
    pub(crate) fn refusal_behind(
        &self,
        reason: &AllocError,
        refused: impl FnOnce() -> Option<OverBudget>,
    ) -> Option<OverBudget> {
        let AllocError::OutOfMemory(out) = reason else {
            return None;
        };
        let refused = match out.cause {
            Cause::Limit => self.above_in_excess(out.rounded_bytes),
            _ => refused().filter(|refused| !refused.own),
        };
        let needed_bytes = out.rounded_bytes.saturating_sub(out.free_bytes);
        refused.map(|refused| OverBudget {
            needed_bytes: needed_bytes.max(refused.wanted_bytes),
            ..refused
        })
    }

    /// Sets the limits of this budget, without calling watchers or informing pools. Without `soft_bytes` the
    /// budget keeps its soft limit.
    pub(super) fn set(&self, hard_bytes: u64, soft_bytes: Option<u64>) -> LimitAnswer {
        self.shared
            .with(|table| table.tree.set(self.id, hard_bytes, soft_bytes))
    }

    pub(crate) fn usage(&self) -> BudgetUse {
        let usage = self.shared.table.with(|table| table.tree.usage(self.id));
        // Unreachable, since a node is in the tree (CHARGE2).
        usage.unwrap_or(BudgetUse {
            config: BudgetConfig::new(0),
            used_bytes: 0,
            own_bytes: 0,
            excess_bytes: 0,
        })
    }

    pub(crate) fn name(&self) -> BudgetName {
        self.shared.table.with(|table| table.name(self.name))
    }

    pub(crate) fn shared(&self) -> &SharedTree {
        &self.shared
    }

    /// Returns the bytes by which a budget would be above its limit if so many more were charged to it.
    pub(super) fn excess_with(&self, budget: BudgetId, bytes: u64) -> u64 {
        let usage = self.shared.table.with(|table| table.tree.usage(budget));
        usage.map_or(0, |usage| {
            let charged = usage.used_bytes.saturating_add(bytes);
            charged.saturating_sub(usage.config.hard_bytes)
        })
    }

    pub(super) fn is_within(&self, above: BudgetId) -> bool {
        self.shared
            .table
            .with(|table| table.tree.is_within(self.id, above))
    }
}

fn over(table: &BudgetTable, refusal: larder_core::limits::BudgetRefusal) -> OverBudget {
    OverBudget {
        budget: table.name(refusal.name),
        limit_bytes: refusal.limit_bytes,
        used_bytes: refusal.used_bytes,
        wanted_bytes: refusal.wanted_bytes,
        own: false,
        id: refusal.budget,
        needed_bytes: refusal.wanted_bytes,
    }
}

impl Drop for TreeNode {
    fn drop(&mut self) {
        if self.above.is_none() {
            return;
        }
        self.shared.table.with(|table| {
            // Charges and lower budgets hold this node, so there are none now.
            let removed = table.tree.remove(self.id);
            debug_assert_eq!(removed, Ok(()), "a budget that nobody has");
            if let Some(name) = table.names.get_mut(self.name as usize) {
                *name = None;
            }
        });
    }
}

impl fmt::Debug for TreeNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("name", &self.name())
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}

/// Bytes charged to a budget; dropping the charge credits them.
pub(crate) struct Charge {
    node: Arc<TreeNode>,
    bytes: u64,
}

impl Charge {
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Merges a charge of the same budget.
    pub(super) fn join(&mut self, mut other: Self) {
        self.bytes += core::mem::take(&mut other.bytes);
    }

    /// Sets the charge to the bytes held, even above a limit. If a sum would overflow, nothing changes.
    pub(super) fn set(&mut self, bytes: u64) {
        let (id, now) = (self.node.id, self.bytes);
        let changed = self.node.shared.with(|table| match bytes.checked_sub(now) {
            Some(more) => table.tree.hold(id, more),
            None => table.tree.credit(id, now - bytes),
        });
        if changed.is_ok() {
            self.bytes = bytes;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let credited = self
            .node
            .shared
            .with(|table| table.tree.credit(self.node.id, self.bytes));
        debug_assert_eq!(credited, Ok(()), "what was charged");
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("bytes", &self.bytes)
            .finish()
    }
}
