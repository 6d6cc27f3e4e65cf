//! [`LimitTree`]: nested budgets, which only count bytes.
//!
//! A charge is made to one budget and to all budgets above it, or to none of them. A limit can be lowered below the
//! charged bytes, and bytes that are already held can be charged beyond the limit. The budget is then in *excess*: it
//! refuses every charge, and the excess shrinks as bytes are credited. For pools that already hold memory,
//! [`live_limit`](LimitTree::live_limit) says how many live bytes a limit allows.
//!
//! The tree knows no pools, calls no other code and does not wait. Threads that share it put it behind a lock.
//!
//! # Invariants ([`LimitTree::check_invariants`] walks them)
//! * TREE1 the used bytes of a budget are the bytes charged to the budget itself plus the used bytes of its children.
//! * TREE2 a budget uses no more than its hard limit, unless a lowered limit or a hold left it in excess. A budget in
//!   excess is marked.
//! * TREE3 a budget is marked as past its soft limit exactly while it uses more than that.
//! * TREE4 the floor and the soft limit (if there is one) are at most the hard limit. So is the sum of the children's
//!   floors, which is kept in `promised`.
//! * TREE5 every budget except the root is in its parent's list once, and every vacant record that was ever used is in
//!   the list of vacant records once. The path upwards from a budget ends at the root.
//!
//! # Cost
//! A charge or a credit is O(depth). Adding a budget, removing it and setting its limits are O(1), and taking an event
//! is O(records). A budget takes 88 bytes.

use super::LimitAnswer;
use super::budget::{
    BudgetConfig, BudgetError, BudgetId, BudgetRefusal, BudgetUse, LimitEvent, LimitEventKind,
};
use crate::table::fixed_vec::FixedVec;

/// The index that names no record.
const NONE: u32 = u32::MAX;

/// The record of one budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct BudgetNode {
    pub(super) config: BudgetConfig,
    pub(super) used: u64,
    pub(super) own: u64,
    /// Sum of the children's floors (TREE4).
    pub(super) promised: u64,
    pub(super) generation: u32,
    pub(super) parent: u32,
    pub(super) child: u32,
    /// The next sibling, or the next vacant record; and the previous sibling.
    pub(super) next: u32,
    pub(super) prev: u32,
    pub(super) live: bool,
    pub(super) in_excess: bool,
    pub(super) past_soft: bool,
    /// Whether there are events that are not taken yet.
    pub(super) tell_soft: bool,
    pub(super) tell_done: bool,
}

impl BudgetNode {
    /// A record without a budget.
    const VACANT: Self = Self {
        config: BudgetConfig::new(0),
        used: 0,
        own: 0,
        promised: 0,
        generation: 0,
        parent: NONE,
        child: NONE,
        next: NONE,
        prev: NONE,
        live: false,
        in_excess: false,
        past_soft: false,
        tell_soft: false,
        tell_done: false,
    };

    pub(super) const fn excess(&self) -> u64 {
        self.used.saturating_sub(self.config.hard_bytes)
    }

    /// Updates the marks after a change of the used bytes or the limits.
    fn note(&mut self) {
        let past = self.used > self.config.soft_bytes;
        self.tell_soft = past && (self.tell_soft || !self.past_soft);
        self.past_soft = past;
    }
}

impl BudgetConfig {
    /// Checks that the limits do not contradict each other.
    pub(super) const fn check(&self) -> Result<(), BudgetError> {
        if self.hard_bytes < self.floor_bytes {
            return Err(BudgetError::BelowFloor {
                floor_bytes: self.floor_bytes,
            });
        }
        if self.soft_bytes != u64::MAX && self.hard_bytes < self.soft_bytes {
            return Err(BudgetError::BelowSoft {
                soft_bytes: self.soft_bytes,
            });
        }
        Ok(())
    }
}

/// A tree of budgets.
///
/// ```
/// use larder_core::limits::{BudgetConfig, LimitAnswer, LimitTree};
///
/// let mut tree = LimitTree::new(4, BudgetConfig::new(1000))?;
/// let tenant = tree.add(tree.root(), BudgetConfig::new(600))?;
/// let pool = tree.add(tenant, BudgetConfig::new(u64::MAX))?;
/// tree.charge(pool, 500)?;
/// assert!(tree.charge(pool, 200).is_err(), "the tenant has 600");
/// assert_eq!(tree.set(tenant, 300, None), LimitAnswer::Deferred { bytes: 200 });
/// assert_eq!(tree.live_limit(pool), Some(300));
/// tree.credit(pool, 200)?;
/// assert_eq!(tree.excess_bytes(tenant), Some(0));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct LimitTree {
    /// The records that were ever used.
    pub(super) nodes: FixedVec<BudgetNode>,
    pub(super) vacant: u32,
    /// Whether there may be an event to take.
    told: bool,
    /// Records examined.
    #[cfg(test)]
    looks: core::cell::Cell<usize>,
}

impl LimitTree {
    /// Creates a tree with only its root and room for `records` budgets.
    ///
    /// # Errors
    /// [`BudgetError::Full`] if `records` is 0; [`BudgetError::BelowSoft`] or [`BudgetError::BelowFloor`] if the root's
    /// limits contradict each other; [`BudgetError::Heap`] if the heap has no memory for the records.
    pub fn new(records: usize, root: BudgetConfig) -> Result<Self, BudgetError> {
        root.check()?;
        // Indices have 32 bits, and one of the numbers means no record.
        let nodes = FixedVec::new(records.min(NONE as usize));
        let mut tree = Self {
            nodes: nodes.map_err(|_| BudgetError::Heap)?,
            vacant: NONE,
            told: false,
            #[cfg(test)]
            looks: core::cell::Cell::new(0),
        };
        tree.take_record(root, NONE)?;
        Ok(tree)
    }

    /// Returns the budget above all others.
    pub const fn root(&self) -> BudgetId {
        BudgetId {
            index: 0,
            generation: 0,
        }
    }

    /// Adds a budget below another. Returns its id.
    ///
    /// # Errors
    /// [`BudgetError::Full`]; [`BudgetError::Unknown`] if there is no such parent; [`BudgetError::BelowSoft`] and
    /// [`BudgetError::BelowFloor`] if the limits contradict each other, or the floors below the parent would exceed
    /// its hard limit.
    pub fn add(&mut self, parent: BudgetId, config: BudgetConfig) -> Result<BudgetId, BudgetError> {
        let above = self.find(parent).ok_or(BudgetError::Unknown)?;
        config.check()?;
        let parent = self.node(above);
        let promised = parent.promised.checked_add(config.floor_bytes);
        let Some(promised) = promised.filter(|sum| *sum <= parent.config.hard_bytes) else {
            let floor_bytes = promised.unwrap_or(u64::MAX);
            return Err(BudgetError::BelowFloor { floor_bytes });
        };
        let index = self.take_record(config, above)?;
        let parent = self.node_mut(above);
        parent.promised = promised;
        let next = core::mem::replace(&mut parent.child, index);
        self.node_mut(index).next = next;
        if next != NONE {
            self.node_mut(next).prev = index;
        }
        Ok(self.id_of(index))
    }

    /// Removes a budget without charges and without budgets below it.
    ///
    /// # Errors
    /// [`BudgetError::InUse`] if it has any of these or is the root; [`BudgetError::Unknown`] if there is no such
    /// budget.
    pub fn remove(&mut self, id: BudgetId) -> Result<(), BudgetError> {
        let index = self.find(id).ok_or(BudgetError::Unknown)?;
        let node = *self.node(index);
        if node.parent == NONE || node.child != NONE || node.used > 0 {
            return Err(BudgetError::InUse);
        }
        // The floor is part of the sum (TREE4).
        self.node_mut(node.parent).promised -= node.config.floor_bytes;
        match node.prev {
            NONE => self.node_mut(node.parent).child = node.next,
            prev => self.node_mut(prev).next = node.next,
        }
        if node.next != NONE {
            self.node_mut(node.next).prev = node.prev;
        }
        *self.node_mut(index) = BudgetNode {
            generation: node.generation.wrapping_add(1),
            next: self.vacant,
            ..BudgetNode::VACANT
        };
        self.vacant = index;
        Ok(())
    }

    /// Charges bytes to a budget and all above it, or to none of them. O(depth).
    ///
    /// # Errors
    /// [`BudgetError::NoRoom`] with the lowest budget that has no room.
    pub fn charge(&mut self, id: BudgetId, bytes: u64) -> Result<(), BudgetError> {
        let first = self.find(id).ok_or(BudgetError::Unknown)?;
        if let Some(refusal) = self.refusal_at(first, bytes) {
            return Err(BudgetError::NoRoom(refusal));
        }
        // The sums are within the hard limits.
        self.add_used(first, bytes);
        Ok(())
    }

    /// Charges bytes that are held already, whether there is room or not. A budget whose hard limit they exceed is then
    /// in excess. O(depth).
    ///
    /// # Errors
    /// [`BudgetError::NoRoom`] if the sum of a budget would overflow; [`BudgetError::Unknown`] if there is no such
    /// budget.
    pub fn hold(&mut self, id: BudgetId, bytes: u64) -> Result<(), BudgetError> {
        let first = self.find(id).ok_or(BudgetError::Unknown)?;
        let mut index = first;
        while index != NONE {
            if self.node(index).used.checked_add(bytes).is_none() {
                return Err(BudgetError::NoRoom(self.refused_by(index, bytes)));
            }
            index = self.node(index).parent;
        }
        self.add_used(first, bytes);
        Ok(())
    }

    /// Adds bytes to the budget at `first` and to all budgets above it. The sums must not overflow.
    fn add_used(&mut self, first: u32, bytes: u64) {
        self.node_mut(first).own += bytes;
        let mut index = first;
        while index != NONE {
            let node = self.node_mut(index);
            node.used += bytes;
            node.note();
            if node.excess() > 0 {
                node.in_excess = true;
                node.tell_done = false;
            }
            let (tell, parent) = (node.tell_soft, node.parent);
            self.told |= tell;
            index = parent;
        }
    }

    /// Returns the refusal that a charge of `bytes` would get now. Returns `None` if the charge would be accepted, or
    /// if there is no such budget. O(depth).
    pub fn refusal(&self, id: BudgetId, bytes: u64) -> Option<BudgetRefusal> {
        self.refusal_at(self.find(id)?, bytes)
    }

    /// Subtracts bytes that were charged to a budget from this budget and all budgets above it. O(depth).
    ///
    /// # Errors
    /// [`BudgetError::NotCharged`] if fewer bytes are charged to the budget; nothing has changed then.
    /// [`BudgetError::Unknown`] if there is no such budget.
    pub fn credit(&mut self, id: BudgetId, bytes: u64) -> Result<(), BudgetError> {
        let first = self.find(id).ok_or(BudgetError::Unknown)?;
        let own = self.node(first).own.checked_sub(bytes);
        self.node_mut(first).own = own.ok_or(BudgetError::NotCharged)?;
        let mut index = first;
        while index != NONE {
            let node = self.node_mut(index);
            node.used = node.used.saturating_sub(bytes);
            node.note();
            if node.in_excess && node.excess() == 0 {
                node.in_excess = false;
                node.tell_done = true;
                self.told = true;
            }
            index = self.node(index).parent;
        }
        Ok(())
    }

    /// Sets the limits of a budget. If `soft_bytes` is `None`, the soft limit stays. Once this has returned,
    /// [`charge`](Self::charge) adds nothing above the new hard limit. A raised limit ends a pending shrink without an
    /// event. O(1).
    pub fn set(&mut self, id: BudgetId, hard_bytes: u64, soft_bytes: Option<u64>) -> LimitAnswer {
        match self.try_set(id, hard_bytes, soft_bytes) {
            Ok(excess) => LimitAnswer::with_excess(excess),
            Err(refusal) => LimitAnswer::Refused(refusal),
        }
    }

    fn try_set(
        &mut self,
        id: BudgetId,
        hard_bytes: u64,
        soft_bytes: Option<u64>,
    ) -> Result<u64, BudgetError> {
        let index = self.find(id).ok_or(BudgetError::Unknown)?;
        let mut config = self.node(index).config;
        config.hard_bytes = hard_bytes;
        config.soft_bytes = soft_bytes.unwrap_or(config.soft_bytes);
        config.check()?;
        let promised = self.node(index).promised;
        if hard_bytes < promised {
            return Err(BudgetError::BelowFloor {
                floor_bytes: promised,
            });
        }
        let node = self.node_mut(index);
        node.config = config;
        node.in_excess = node.excess() > 0;
        node.tell_done = false;
        node.note();
        let (excess, tell) = (node.excess(), node.tell_soft);
        self.told |= tell;
        Ok(excess)
    }

    /// Returns a budget's counters, or `None` if there is no such budget. O(1).
    pub fn usage(&self, id: BudgetId) -> Option<BudgetUse> {
        let node = self.node(self.find(id)?);
        Some(BudgetUse {
            config: node.config,
            used_bytes: node.used,
            own_bytes: node.own,
            excess_bytes: node.excess(),
        })
    }

    /// Returns the bytes charged above a budget's hard limit, or `None` if there is no such budget. O(1).
    pub fn excess_bytes(&self, id: BudgetId) -> Option<u64> {
        Some(self.node(self.find(id)?).excess())
    }

    /// Returns the maximum live bytes of a pool that charges to this budget: the hard limit. While the budget or one
    /// above it is in excess by E bytes, the maximum is also at most the bytes charged to the budget minus E. O(depth).
    ///
    /// This keeps the live bytes within a lowered limit L. Let the pools under a budget hold h1, h2, … bytes, so that E
    /// = h1 + h2 + … - L. After an allocation, the first pool has at most h1 - E live bytes, and every other pool has
    /// at most the bytes that it holds; together these are L. No pool needs to know which of them has to shrink. When a
    /// pool releases memory, its h and E fall by the same number of bytes, so its own maximum stays the same and those
    /// of the other pools rise. A maximum that was read earlier is therefore at worst too low. Only a lowered limit
    /// lowers a maximum, and the caller who lowers a limit informs the pools.
    pub fn live_limit(&self, id: BudgetId) -> Option<u64> {
        let mut index = self.find(id)?;
        let (held, hard) = (self.node(index).used, self.node(index).config.hard_bytes);
        let mut excess = 0;
        while index != NONE {
            excess = self.node(index).excess().max(excess);
            index = self.node(index).parent;
        }
        Some(match excess {
            0 => hard,
            excess => hard.min(held.saturating_sub(excess)),
        })
    }

    /// Returns a refusal of `wanted_bytes` by the first budget in excess, from `id` upwards, or `None` if none is in
    /// excess. O(depth).
    pub fn in_excess(&self, id: BudgetId, wanted_bytes: u64) -> Option<BudgetRefusal> {
        let mut index = self.find(id)?;
        while index != NONE && self.node(index).excess() == 0 {
            index = self.node(index).parent;
        }
        (index != NONE).then(|| self.refused_by(index, wanted_bytes))
    }

    /// Returns whether `id` is the budget `above` or lies below it. O(depth).
    pub fn is_within(&self, id: BudgetId, above: BudgetId) -> bool {
        let (Some(mut index), Some(above)) = (self.find(id), self.find(above)) else {
            return false;
        };
        while index != NONE && index != above {
            index = self.node(index).parent;
        }
        index == above
    }

    /// Returns whether there may be an event that was not taken yet. O(1).
    pub const fn has_events(&self) -> bool {
        self.told
    }

    /// Removes and returns the next event. A crossing of the soft limit yields no event once the bytes are below the
    /// limit again.
    pub fn take_event(&mut self) -> Option<LimitEvent> {
        if !self.told {
            return None;
        }
        let index = self
            .nodes
            .iter()
            .position(|node| node.tell_soft || node.tell_done);
        let Some(index) = index.and_then(|index| u32::try_from(index).ok()) else {
            self.told = false;
            return None;
        };
        let budget = self.id_of(index);
        let node = self.node_mut(index);
        let (kind, limit_bytes) = if node.tell_soft {
            node.tell_soft = false;
            (LimitEventKind::SoftCrossed, node.config.soft_bytes)
        } else {
            node.tell_done = false;
            (LimitEventKind::ShrinkDone, node.config.hard_bytes)
        };
        Some(LimitEvent {
            budget,
            name: node.config.name,
            kind,
            used_bytes: node.used,
            limit_bytes,
        })
    }

    fn refusal_at(&self, index: u32, bytes: u64) -> Option<BudgetRefusal> {
        let mut index = index;
        while index != NONE {
            let node = self.node(index);
            let after = node.used.checked_add(bytes);
            if after.is_none_or(|after| after > node.config.hard_bytes) {
                return Some(self.refused_by(index, bytes));
            }
            index = node.parent;
        }
        None
    }

    fn refused_by(&self, index: u32, wanted_bytes: u64) -> BudgetRefusal {
        let node = self.node(index);
        BudgetRefusal {
            budget: self.id_of(index),
            name: node.config.name,
            limit_bytes: node.config.hard_bytes,
            used_bytes: node.used,
            wanted_bytes,
        }
    }

    fn take_record(&mut self, config: BudgetConfig, parent: u32) -> Result<u32, BudgetError> {
        let node = BudgetNode {
            config,
            parent,
            live: true,
            ..BudgetNode::VACANT
        };
        let index = self.vacant;
        if index == NONE {
            // Indices have 32 bits.
            let records = self.nodes.len() as u32;
            let has_room = self.nodes.push(node);
            return has_room
                .then_some(records)
                .ok_or(BudgetError::Full { records });
        }
        let vacant = self.node_mut(index);
        let (next, generation) = (vacant.next, vacant.generation);
        *vacant = BudgetNode { generation, ..node };
        self.vacant = next;
        Ok(index)
    }

    pub(super) fn find(&self, id: BudgetId) -> Option<u32> {
        let node = self.nodes.get(id.index as usize)?;
        (node.live && node.generation == id.generation).then_some(id.index)
    }

    fn id_of(&self, index: u32) -> BudgetId {
        let generation = self.node(index).generation;
        BudgetId { index, generation }
    }

    /// Returns the record at an index that came from `find` or a link (TREE5), so it is inside the table.
    pub(super) fn node(&self, index: u32) -> &BudgetNode {
        #[cfg(test)]
        self.looks.update(|looks| looks + 1);
        &self.nodes[index as usize]
    }

    fn node_mut(&mut self, index: u32) -> &mut BudgetNode {
        &mut self.nodes[index as usize]
    }
}

impl core::fmt::Debug for LimitTree {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LimitTree")
            .field("root", &self.usage(self.root()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_and_removing_a_budget_looks_at_no_siblings() {
        let mut tree = LimitTree::new(500, BudgetConfig::new(1000)).unwrap();
        let config = BudgetConfig {
            floor_bytes: 2,
            ..BudgetConfig::new(100)
        };
        let root = tree.root();
        let children = [(); 499].map(|()| tree.add(root, config).unwrap());
        let most = 20 * children.len();
        assert!(tree.looks.get() < most, "{} looks", tree.looks.get());
        assert_eq!(
            tree.set(root, 997, None),
            LimitAnswer::Refused(BudgetError::BelowFloor { floor_bytes: 998 })
        );
        tree.looks.set(0);
        for (number, child) in children.into_iter().enumerate() {
            tree.remove(child).unwrap();
            if number % 50 == 0 {
                let looks = tree.looks.replace(0);
                assert!(looks < 50 * 20, "{looks} looks");
                tree.check_invariants().unwrap();
                tree.looks.set(0);
            }
        }
        let all = BudgetConfig {
            floor_bytes: 1000,
            ..BudgetConfig::new(1000)
        };
        assert!(tree.add(root, all).is_ok(), "nothing is promised any more");
    }

    #[test]
    fn floors_that_no_number_holds_together_are_refused() {
        let mut tree = LimitTree::new(3, BudgetConfig::new(u64::MAX)).unwrap();
        let half = BudgetConfig {
            floor_bytes: u64::MAX / 2 + 1,
            ..BudgetConfig::new(u64::MAX)
        };
        assert!(tree.add(tree.root(), half).is_ok());
        let refused = tree.add(tree.root(), half);
        let floor_bytes = u64::MAX;
        assert_eq!(refused, Err(BudgetError::BelowFloor { floor_bytes }));
        tree.check_invariants().unwrap();
    }
}
