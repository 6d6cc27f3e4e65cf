//! [`Loan`]: the memory of a reserved buffer beyond its guarantee, which the buffer returns on request.
//!
//! LOAN1 The lent bytes are those committed beyond the guarantee. No more than these are recalled.
//! LOAN2 Bytes count as committed from before their pages are requested until after these are idle.
//! LOAN3 No lock of this crate is held while memory is recalled, since callbacks may allocate and free.

use core::cmp::Reverse;
use core::fmt;
use std::sync::{Arc, Mutex, Weak};

use larder_core::limits::BudgetId;
use larder_core::{AllocError, Cause};

use super::TreeNode;
use super::node::SharedTree;
use crate::DeviceAllocError;
use crate::driver::locked;

/// The part of a reserved buffer's memory that is *lent*: what it has committed beyond its guaranteed bytes. By
/// default all of a buffer is guaranteed. Clones share the loan.
///
/// A block, or a commit within a guarantee, for which there is no memory, *recalls* as many lent bytes as are missing,
/// from loans under the budget that has no room; so does a lowered limit. The owner of the buffer decommits as many,
/// either in a [callback](Self::on_recall), after which the request is tried again, or at its next call: until then the
/// request is refused, and [`recalled_bytes`](Self::recalled_bytes) says what to decommit. Meanwhile the buffer commits
/// nothing beyond its guarantee ([`DeviceAllocError::Recalled`]). A commit beyond a guarantee recalls nothing.
///
/// A guarantee is only kept if the guarantees and the blocks under a budget fit in it together.
///
/// ```no_run
/// # let context = larder_cuda::Context::new(0)?;
/// # let memory = larder_cuda::DeviceAllocator::new(&context)?;
/// # let stream = context.cudarc().new_stream()?;
/// let mut cache = memory.block_pool(&stream, 256 << 10, 100_000)?;
/// cache.loan().set_guaranteed_bytes(4 << 30);
/// let mut blocks = Vec::new();
/// // later, between two steps
/// while cache.loan().recalled_bytes() > 0 {
///     let Some(block) = blocks.pop() else { break };
///     cache.free(&stream, block)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Loan(Arc<SharedLoan>);

struct SharedLoan {
    /// The budget that the memory is charged to.
    node: Arc<TreeNode>,
    device: i32,
    /// Bytes that the buffer has addresses for.
    max_bytes: u64,
    counts: Mutex<LoanCounts>,
    /// Taken out while it runs, so that it does not run inside itself.
    callback: Mutex<Option<Callback>>,
}

type Callback = Box<dyn FnMut(u64) + Send>;

#[derive(Clone, Copy)]
struct LoanCounts {
    guaranteed_bytes: u64,
    committed_bytes: u64,
    recalled_bytes: u64,
}

impl LoanCounts {
    const fn lent_bytes(&self) -> u64 {
        self.committed_bytes.saturating_sub(self.guaranteed_bytes)
    }

    /// Restores LOAN1 after lent bytes have become fewer.
    fn cap_recalled(&mut self) {
        self.recalled_bytes = self.recalled_bytes.min(self.lent_bytes());
    }
}

/// The loans under a tree of budgets: those whose guarantee was ever set.
#[derive(Default)]
pub(super) struct Loans(Mutex<Vec<Weak<SharedLoan>>>);

/// Bytes of some loans.
#[cfg(feature = "job")]
#[derive(Clone, Copy, Default)]
pub(crate) struct LoanSums {
    /// Bytes lent.
    pub(crate) lent_bytes: u64,
    /// Bytes that would be lent if everything were committed.
    pub(crate) lendable_bytes: u64,
    /// Bytes guaranteed and not committed.
    pub(crate) unused_bytes: u64,
}

impl Loan {
    /// Makes a loan of memory that is charged to a budget, with everything guaranteed.
    pub(crate) fn new(node: &Arc<TreeNode>, device: i32, max_bytes: u64) -> Self {
        Self(Arc::new(SharedLoan {
            node: node.clone(),
            device,
            max_bytes,
            counts: Mutex::new(LoanCounts {
                guaranteed_bytes: u64::MAX,
                committed_bytes: 0,
                recalled_bytes: 0,
            }),
            callback: Mutex::default(),
        }))
    }

    /// Sets the number of bytes that are never recalled, and for which lent memory elsewhere is recalled.
    pub fn set_guaranteed_bytes(&self, bytes: u64) {
        let loans = &self.0.node.shared().loans;
        let weak = Arc::downgrade(&self.0);
        {
            let mut list = locked(&loans.0);
            list.retain(|loan| loan.strong_count() > 0);
            if !list.iter().any(|loan| loan.ptr_eq(&weak)) {
                list.push(weak);
            }
        }
        let mut counts = locked(&self.0.counts);
        counts.guaranteed_bytes = bytes;
        counts.cap_recalled();
    }

    /// Returns the number of bytes that are never recalled; [`u64::MAX`] by default.
    pub fn guaranteed_bytes(&self) -> u64 {
        locked(&self.0.counts).guaranteed_bytes
    }

    /// Returns the bytes committed beyond the guarantee.
    pub fn lent_bytes(&self) -> u64 {
        locked(&self.0.counts).lent_bytes()
    }

    /// Returns the lent bytes that are recalled and not decommitted yet.
    pub fn recalled_bytes(&self) -> u64 {
        locked(&self.0.counts).recalled_bytes
    }

    /// Calls `callback` with [`recalled_bytes`](Self::recalled_bytes) whenever memory is recalled, on the thread that
    /// needs it, without a lock of this crate. If the callback has decommitted lent memory when it returns, the request
    /// is tried again. It is not called inside itself, or while another thread runs it. It replaces the callback
    /// before it. It should not hold a clone of an allocator or of a buffer, which would never be dropped.
    pub fn on_recall(&self, callback: impl FnMut(u64) + Send + 'static) {
        let before = locked(&self.0.callback).replace(Box::new(callback));
        // Dropped without the lock, since what it holds may take our locks.
        drop(before);
    }

    /// Counts bytes that are about to be committed. Returns whether any of them are lent.
    pub(crate) fn commit(&self, bytes: u64) -> Result<bool, DeviceAllocError> {
        let mut counts = locked(&self.0.counts);
        let committed_bytes = counts.committed_bytes.saturating_add(bytes);
        let is_lent = committed_bytes > counts.guaranteed_bytes;
        if is_lent && counts.recalled_bytes > 0 {
            let bytes = counts.recalled_bytes;
            return Err(DeviceAllocError::Recalled { bytes });
        }
        counts.committed_bytes = committed_bytes;
        Ok(is_lent)
    }

    /// Counts bytes that were decommitted, or could not be committed.
    pub(crate) fn decommit(&self, bytes: u64) {
        let mut counts = locked(&self.0.counts);
        counts.committed_bytes = counts.committed_bytes.saturating_sub(bytes);
        counts.recalled_bytes = counts.recalled_bytes.saturating_sub(bytes);
        counts.cap_recalled();
    }
}

impl SharedLoan {
    /// Recalls up to `bytes` lent bytes; bytes that are recalled already count. Returns how many are recalled.
    fn recall(&self, bytes: u64) -> u64 {
        let mut counts = locked(&self.counts);
        let recalled = bytes.min(counts.lent_bytes());
        counts.recalled_bytes = counts.recalled_bytes.max(recalled);
        recalled
    }

    /// Calls the callback, if bytes are recalled (LOAN3).
    fn call_back(&self) {
        let bytes = locked(&self.counts).recalled_bytes;
        let taken = locked(&self.callback).take();
        if let Some(mut callback) = taken {
            if bytes > 0 {
                callback(bytes);
            }
            // A callback that was set meanwhile stays.
            let mut place = locked(&self.callback);
            let unused = match &*place {
                Some(_) => Some(callback),
                None => {
                    *place = Some(callback);
                    None
                }
            };
            drop(place);
            drop(unused);
        }
    }
}

impl Loans {
    /// Returns the loans under a budget, of one device if one is given.
    fn within(&self, budget: BudgetId, device: Option<i32>) -> Vec<Arc<SharedLoan>> {
        let is_there = |loan: &Arc<SharedLoan>| device.is_none_or(|device| loan.device == device);
        let list = locked(&self.0);
        let mut loans: Vec<_> = list.iter().filter_map(Weak::upgrade).collect();
        drop(list);
        // A loan that has lost its last other owner is dropped here, without a lock.
        loans.retain(|loan| is_there(loan) && loan.node.is_within(budget));
        loans
    }
}

impl SharedTree {
    /// Recalls up to `bytes` lent bytes under a budget, from the loans with most lent bytes first, and calls their
    /// callbacks (LOAN3). Returns how many bytes were decommitted meanwhile.
    fn recall(&self, budget: BudgetId, device: Option<i32>, bytes: u64) -> u64 {
        let mut loans = self.loans.within(budget, device);
        let lent = |loan: &Arc<SharedLoan>| locked(&loan.counts).lent_bytes();
        loans.sort_by_cached_key(|loan| Reverse(lent(loan)));
        let mut missing = bytes;
        for loan in &loans {
            missing -= loan.recall(missing);
        }
        let before: u64 = loans.iter().map(lent).sum();
        loans.iter().for_each(|loan| loan.call_back());
        before.saturating_sub(loans.iter().map(lent).sum())
    }
}

impl TreeNode {
    /// Makes room for a pool's request that was refused with this error: releases idle memory of the other pools under
    /// the budget that refused it, or of the device if that did, and recalls lent memory for the rest. Returns whether
    /// any memory has become free. The caller holds no lock of this crate.
    pub(crate) fn make_room(&self, refusal: &DeviceAllocError, device: i32) -> bool {
        let Some((budget, on_device, bytes)) = self.shortage(refusal, device) else {
            return false;
        };
        let shared = self.shared();
        let release = |bytes: u64| {
            let mut released = 0;
            for pool in shared.pools_within(budget) {
                if pool.node().id != self.id && released < bytes {
                    released += pool.release(bytes - released, on_device);
                }
            }
            released
        };
        let released = release(bytes);
        let missing = bytes.saturating_sub(released);
        let decommitted = shared.recall(budget, on_device, missing);
        if decommitted > 0 {
            release(missing);
        }
        released > 0 || decommitted > 0
    }

    /// Returns the sums over the loans of memory that is charged here.
    #[cfg(feature = "job")]
    pub(crate) fn loan_sums(&self) -> LoanSums {
        let mut sums = LoanSums::default();
        for loan in self.shared().loans.within(self.id, None) {
            let counts = *locked(&loan.counts);
            let guaranteed = counts.guaranteed_bytes.min(loan.max_bytes);
            sums.lent_bytes += counts.lent_bytes();
            sums.lendable_bytes += loan.max_bytes - guaranteed;
            sums.unused_bytes += guaranteed.saturating_sub(counts.committed_bytes);
        }
        sums
    }

    /// Recalls as many lent bytes as are held above this budget's limit.
    pub(super) fn recall_excess(&self) {
        let excess = self.usage().excess_bytes;
        if excess > 0 {
            self.shared().recall(self.id, None, excess);
        }
    }

    /// Returns which budget refused a request of the pool that charges here, on which device if the device itself did,
    /// and how many bytes were missing; `None` if the request was refused for another reason.
    fn shortage(
        &self,
        refusal: &DeviceAllocError,
        device: i32,
    ) -> Option<(BudgetId, Option<i32>, u64)> {
        let out = match refusal {
            DeviceAllocError::Budget(over) => {
                let missing = self.excess_with(over.id, over.needed_bytes);
                return Some((over.id, None, missing.max(over.wanted_bytes)));
            }
            DeviceAllocError::Memory {
                reason: AllocError::OutOfMemory(out),
                ..
            } => out,
            _ => return None,
        };
        let missing = match out.cause {
            Cause::Limit => out
                .live_bytes
                .saturating_add(out.rounded_bytes)
                .saturating_sub(out.limit_bytes),
            Cause::SubAllocator | Cause::Pending | Cause::Fragmentation => {
                out.rounded_bytes.saturating_sub(out.free_bytes)
            }
            _ => return None,
        };
        // Free memory that could not serve the request is in the wrong pieces.
        let bytes = if missing == 0 {
            out.rounded_bytes
        } else {
            missing
        };
        match out.cause {
            Cause::SubAllocator => Some((self.shared().root(), Some(device), bytes)),
            _ => Some((self.id, None, bytes)),
        }
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = *locked(&self.0.counts);
        f.debug_struct("Loan")
            .field("guaranteed_bytes", &counts.guaranteed_bytes)
            .field("lent_bytes", &counts.lent_bytes())
            .field("recalled_bytes", &counts.recalled_bytes)
            .finish_non_exhaustive()
    }
}
