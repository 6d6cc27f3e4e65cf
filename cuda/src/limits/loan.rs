//! [`Loan`]: the memory of a reserved buffer beyond its guarantee, which the buffer returns on request.
//!
//! LOAN1 The lent bytes are those committed beyond the guarantee. No more than these are recalled.
//! LOAN2 Bytes count as committed from before their pages are requested until after these are idle.
//! LOAN3 No lock of this crate is held while a callback runs, since it may allocate, free and wait for other threads.
//! LOAN4 While a claim stands, no other loan commits lent bytes that it needs. It ends when its request is served, or its
//! buffer changes otherwise, or after [`MAX_PASSED_OVER`] refusals.

use core::cmp::Reverse;
use core::fmt;
use std::sync::{Arc, Mutex, Weak};

use larder_core::limits::BudgetId;
use larder_core::sync::{AtomicU32, Ordering};
use larder_core::{AllocError, Cause};

use super::TreeNode;
use super::node::SharedTree;
use crate::DeviceAllocError;
use crate::driver::locked;

/// The part of a reserved buffer's memory that is *lent*: what it has committed beyond its guaranteed bytes. By
/// default all of a buffer is guaranteed. Clones share the loan.
///
/// A block, or a commit within a guarantee, for which there is no memory, *recalls* as many lent bytes as are missing,
/// from the loans with most of them under the budget that has no room; so does a lowered limit. The owner of the buffer
/// decommits as many, either in a [callback](Self::on_recall), after which the request is tried again, or before its
/// next step: until then the request is refused, and [`recalled_bytes`](Self::recalled_bytes) says what to decommit. A
/// recall stands until as much is decommitted, even if the request is dropped or the limit raised.
///
/// Until the request is served, no commit beyond a guarantee takes the memory that it needs
/// ([`DeviceAllocError::Recalled`]). The memory waits until the buffer that asked is used otherwise, or 1,024 commits
/// were refused for it.
/// A commit beyond a guarantee recalls nothing, nor does a block that may go to the host
/// ([`VmemAllocator`](crate::VmemAllocator)). A request that all lent memory together could not serve recalls nothing.
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
    /// The guarantee is whole units.
    unit_bytes: u64,
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

/// Maximum number of commits that are refused for one claim, whose request may never be made again: more than those of
/// a step.
const MAX_PASSED_OVER: u32 = 1024;

/// The loans under a tree of budgets: those whose guarantee was ever set.
#[derive(Default)]
pub(super) struct Loans {
    list: Mutex<Vec<Weak<SharedLoan>>>,
    claims: Mutex<Vec<Claim>>,
    /// Number of claims, for a look without the lock.
    claim_count: AtomicU32,
}

/// Where memory is missing: under a budget, on one device if the device itself has no more.
#[derive(Clone, Copy)]
struct Scope {
    budget: BudgetId,
    device: Option<i32>,
}

/// A request that was refused while memory was recalled for it (LOAN4).
#[derive(Clone, Copy)]
struct Claim {
    claimant: Claimant,
    scope: Scope,
    bytes: u64,
    passed_over: u32,
}

/// The asker of a request: a buffer by the address of its loan, or an allocator by that of its budget.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claimant(usize);

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
    pub(crate) fn new(node: &Arc<TreeNode>, device: i32, max_bytes: u64, unit_bytes: u64) -> Self {
        Self(Arc::new(SharedLoan {
            node: node.clone(),
            device,
            max_bytes,
            unit_bytes,
            counts: Mutex::new(LoanCounts {
                guaranteed_bytes: u64::MAX,
                committed_bytes: 0,
                recalled_bytes: 0,
            }),
            callback: Mutex::default(),
        }))
    }

    /// Sets the number of bytes that are never recalled, and for which lent memory elsewhere is recalled; they are
    /// rounded up to units. O(loans of all budgets).
    pub fn set_guaranteed_bytes(&self, bytes: u64) {
        let loans = &self.0.node.shared().loans;
        let weak = Arc::downgrade(&self.0);
        {
            let mut list = locked(&loans.list);
            list.retain(|loan| loan.strong_count() > 0);
            if !list.iter().any(|loan| loan.ptr_eq(&weak)) {
                list.push(weak);
            }
        }
        let whole = bytes.checked_next_multiple_of(self.0.unit_bytes.max(1));
        let mut counts = locked(&self.0.counts);
        counts.guaranteed_bytes = whole.unwrap_or(u64::MAX);
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

    /// Calls `callback` with [`recalled_bytes`](Self::recalled_bytes) whenever memory is recalled, without a lock of this
    /// crate, on the thread that needs it: any thread that allocates or lowers a limit, maybe one that holds locks of
    /// the program, so try a lock rather than wait for it. If the callback has decommitted lent memory when it returns,
    /// the request is tried again. It is not called inside itself, or while another thread runs it. It replaces the
    /// callback before it. It should not hold a clone of an allocator or of a buffer, which would never be dropped.
    pub fn on_recall(&self, callback: impl FnMut(u64) + Send + 'static) {
        let before = locked(&self.0.callback).replace(Box::new(callback));
        // Dropped without the lock, since what it holds may take our locks.
        drop(before);
    }

    /// Counts bytes that are about to be committed, until the count is dropped, or kept.
    pub(crate) fn commit(&self, bytes: u64) -> Result<Counted<'_>, DeviceAllocError> {
        let mut counts = locked(&self.0.counts);
        let committed_bytes = counts.committed_bytes.saturating_add(bytes);
        let is_lent = committed_bytes > counts.guaranteed_bytes;
        if is_lent && counts.recalled_bytes > 0 {
            let bytes = counts.recalled_bytes;
            return Err(DeviceAllocError::Recalled { bytes });
        }
        counts.committed_bytes = committed_bytes;
        drop(counts);
        let counted = Counted {
            loan: self,
            bytes,
            is_lent,
        };
        if is_lent && let Some(bytes) = self.0.node.shared().passes_over(&self.0, bytes) {
            return Err(DeviceAllocError::Recalled { bytes });
        }
        Ok(counted)
    }

    /// Counts bytes that were decommitted, or could not be committed.
    pub(crate) fn decommit(&self, bytes: u64) {
        let mut counts = locked(&self.0.counts);
        counts.committed_bytes = counts.committed_bytes.saturating_sub(bytes);
        counts.recalled_bytes = counts.recalled_bytes.saturating_sub(bytes);
        counts.cap_recalled();
    }

    /// Returns the bytes up to the guarantee that are not committed.
    pub(crate) fn unused_bytes(&self) -> u64 {
        let counts = locked(&self.0.counts);
        counts
            .guaranteed_bytes
            .saturating_sub(counts.committed_bytes)
    }

    pub(crate) fn claimant(&self) -> Claimant {
        Claimant(Arc::as_ptr(&self.0).addr())
    }

    /// Ends the claim of this buffer, which has been served, or no longer needs it.
    pub(crate) fn end_claim(&self) {
        self.0.node.shared().loans.end_claim(self.claimant());
    }
}

/// Bytes that count as committed (LOAN2) until this is dropped, or [kept](Self::keep).
pub(crate) struct Counted<'l> {
    loan: &'l Loan,
    bytes: u64,
    pub(crate) is_lent: bool,
}

impl Counted<'_> {
    /// Keeps the count: the bytes are committed.
    pub(crate) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.loan.decommit(self.bytes);
        }
    }
}

impl SharedLoan {
    /// Returns the bytes lent and recalled. A sleeping allocator holds nothing, so nothing is lent there.
    fn lent_and_recalled(&self) -> (u64, u64) {
        let held = self.node.usage().used_bytes;
        let counts = locked(&self.counts);
        (counts.lent_bytes().min(held), counts.recalled_bytes)
    }

    /// Recalls up to `bytes` more lent bytes. Returns how many.
    fn recall(&self, bytes: u64) -> u64 {
        let (lent, _) = self.lent_and_recalled();
        let mut counts = locked(&self.counts);
        let more = bytes.min(lent.saturating_sub(counts.recalled_bytes));
        counts.recalled_bytes += more;
        counts.cap_recalled();
        more
    }

    /// Calls the callback, if bytes are recalled (LOAN3).
    fn call_back(&self) {
        let bytes = locked(&self.counts).recalled_bytes;
        if bytes == 0 {
            return;
        }
        let callback = locked(&self.callback).take();
        let mut taken = TakenCallback {
            loan: self,
            callback,
        };
        if let Some(callback) = &mut taken.callback {
            callback(bytes);
        }
    }
}

/// A callback that runs, and goes back to its place when this is dropped, unless another was set meanwhile.
struct TakenCallback<'l> {
    loan: &'l SharedLoan,
    callback: Option<Callback>,
}

impl Drop for TakenCallback<'_> {
    fn drop(&mut self) {
        let mut place = locked(&self.loan.callback);
        if place.is_none() {
            *place = self.callback.take();
        }
        // A callback that was replaced is dropped after the lock is released, as a field.
    }
}

impl Drop for SharedLoan {
    fn drop(&mut self) {
        let claimant = Claimant(core::ptr::from_ref(self).addr());
        self.node.shared().loans.end_claim(claimant);
    }
}

impl Loans {
    /// Returns the loans in a scope, those with most bytes that are lent and not recalled first.
    fn within(&self, scope: Scope) -> Vec<Arc<SharedLoan>> {
        let list = locked(&self.list);
        let mut loans: Vec<_> = list.iter().filter_map(Weak::upgrade).collect();
        drop(list);
        // A loan that has lost its last other owner is dropped here, without a lock.
        loans.retain(|loan| loan.is_within(scope));
        loans.sort_by_cached_key(|loan| {
            let (lent, recalled) = loan.lent_and_recalled();
            Reverse(lent.saturating_sub(recalled))
        });
        loans
    }

    /// Notes a claim, in the place of the one that the claimant has.
    fn claim(&self, claimant: Claimant, scope: Scope, bytes: u64) {
        let mut claims = locked(&self.claims);
        claims.retain(|claim| claim.claimant != claimant);
        claims.push(Claim {
            claimant,
            scope,
            bytes,
            passed_over: 0,
        });
        self.count(&claims);
    }

    /// Ends a claim. One load if there are none.
    fn end_claim(&self, claimant: Claimant) {
        // Relaxed: a claim that another thread makes just now may stand a little longer.
        if self.claim_count.load(Ordering::Relaxed) > 0 {
            let mut claims = locked(&self.claims);
            claims.retain(|claim| claim.claimant != claimant);
            self.count(&claims);
        }
    }

    /// Returns another's claim where a loan's memory is.
    fn other_claim(&self, loan: &Arc<SharedLoan>) -> Option<Claim> {
        if self.claim_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let own = Claimant(Arc::as_ptr(loan).addr());
        let claims = locked(&self.claims);
        let mut others = claims.iter().copied();
        others.find(|claim| claim.claimant != own && loan.is_within(claim.scope))
    }

    /// Counts a commit that was refused for a claim.
    fn pass_over(&self, claimant: Claimant) {
        let mut claims = locked(&self.claims);
        for claim in claims.iter_mut().filter(|claim| claim.claimant == claimant) {
            claim.passed_over += 1;
        }
        claims.retain(|claim| claim.passed_over < MAX_PASSED_OVER);
        self.count(&claims);
    }

    fn count(&self, claims: &[Claim]) {
        // Lossless, since each loan and budget has at most one.
        self.claim_count
            .store(claims.len() as u32, Ordering::Relaxed);
    }
}

impl SharedLoan {
    fn is_within(&self, scope: Scope) -> bool {
        scope.device.is_none_or(|device| self.device == device) && self.node.is_within(scope.budget)
    }
}

impl SharedTree {
    /// Returns the bytes of another's claim that a commit of `bytes` bytes beyond the guarantee would take.
    fn passes_over(&self, loan: &Arc<SharedLoan>, bytes: u64) -> Option<u64> {
        let claim = self.loans.other_claim(loan)?;
        let pools = self.pools_within(claim.scope.budget);
        let live = pools.iter().map(|pool| pool.stats().live_bytes);
        let needed = live
            .fold(bytes, u64::saturating_add)
            .saturating_add(claim.bytes);
        let usage = self
            .table
            .with(|table| table.tree.usage(claim.scope.budget));
        let limit = usage.map_or(u64::MAX, |usage| usage.config.hard_bytes);
        // Without a limit, the device refused, and its free memory is not known.
        if limit < u64::MAX && needed <= limit {
            return None;
        }
        self.loans.pass_over(claim.claimant);
        Some(claim.bytes)
    }

    /// Recalls lent bytes in a scope until `bytes` bytes are recalled there, those included that were before. Recalls
    /// nothing if there are too few. Returns the loans.
    fn recall(&self, scope: Scope, bytes: u64) -> Vec<Arc<SharedLoan>> {
        let loans = self.loans.within(scope);
        let (mut lent, mut recalled) = (0_u64, 0_u64);
        for loan in &loans {
            let (of_loan, of_it) = loan.lent_and_recalled();
            lent = lent.saturating_add(of_loan);
            recalled = recalled.saturating_add(of_it.min(of_loan));
        }
        if lent < bytes {
            return Vec::new();
        }
        let mut missing = bytes.saturating_sub(recalled);
        for loan in &loans {
            missing -= loan.recall(missing);
        }
        loans
    }
}

impl TreeNode {
    /// Makes room for a pool's request that was refused with this error, and `more_bytes` that the caller needs next:
    /// releases idle memory of the other allocators of devices under the budget that refused it, or on the device if
    /// that did, and, if the request `recalls`, recalls lent memory for the rest. Returns whether any memory has become
    /// free; if not, the claimant has a claim to what was recalled. The caller holds no lock of this crate.
    pub(crate) fn make_room(
        &self,
        refusal: &DeviceAllocError,
        device: i32,
        more_bytes: u64,
        recalls: Option<Claimant>,
    ) -> bool {
        let Some((scope, bytes)) = self.shortage(refusal, device, more_bytes) else {
            return false;
        };
        let shared = self.shared();
        let release = |bytes: u64| {
            let mut released = 0;
            for pool in shared.pools_within(scope.budget) {
                if pool.node().id != self.id && released < bytes {
                    released += pool.release(bytes - released, scope.device);
                }
            }
            released
        };
        let released = release(bytes);
        let missing = bytes.saturating_sub(released);
        let (Some(claimant), true) = (recalls, missing > 0) else {
            return released > 0 || bytes == 0;
        };
        let loans = shared.recall(scope, missing);
        let lent = || {
            loans
                .iter()
                .map(|loan| loan.lent_and_recalled().0)
                .sum::<u64>()
        };
        let before = lent();
        loans.iter().for_each(|loan| loan.call_back());
        let decommitted = before.saturating_sub(lent());
        if decommitted > 0 {
            release(missing);
        } else if !loans.is_empty() {
            shared.loans.claim(claimant, scope, missing);
        }
        released > 0 || decommitted > 0
    }

    /// Returns the claimant of blocks of the pool that charges here.
    pub(crate) fn claimant(self: &Arc<Self>) -> Claimant {
        Claimant(Arc::as_ptr(self).addr())
    }

    /// Ends a claim that has been served.
    pub(crate) fn end_claim(&self, claimant: Claimant) {
        self.shared().loans.end_claim(claimant);
    }

    /// Returns the sums over the loans of memory that is charged here.
    #[cfg(feature = "job")]
    pub(crate) fn loan_sums(&self) -> LoanSums {
        let mut sums = LoanSums::default();
        for loan in self.shared().loans.within(self.scope()) {
            let (lent, _) = loan.lent_and_recalled();
            let counts = *locked(&loan.counts);
            let guaranteed = counts.guaranteed_bytes.min(loan.max_bytes);
            sums.lent_bytes += lent;
            sums.lendable_bytes += loan.max_bytes - guaranteed;
            sums.unused_bytes += guaranteed.saturating_sub(counts.committed_bytes);
        }
        sums
    }

    /// Recalls lent memory for live bytes above this budget's limit. Calls no callback.
    pub(super) fn recall_excess(&self, live_bytes: u64) {
        let usage = self.usage();
        let live_excess = live_bytes.saturating_sub(usage.config.hard_bytes);
        let excess = usage.excess_bytes.min(live_excess);
        if excess == 0 {
            return;
        }
        let loans = self.shared().loans.within(self.scope());
        let lent = loans.iter().map(|loan| loan.lent_and_recalled().0);
        let bytes = excess.min(lent.sum());
        self.shared().recall(self.scope(), bytes);
    }

    /// Calls the callbacks of loans here of which bytes are recalled (LOAN3).
    pub(crate) fn call_back_loans(&self) {
        let loans = self.shared().loans.within(self.scope());
        loans.iter().for_each(|loan| loan.call_back());
    }

    fn scope(&self) -> Scope {
        Scope {
            budget: self.id,
            device: None,
        }
    }

    /// Returns where a request of the pool that charges here, and more bytes that the caller needs next, found no
    /// memory, and how many bytes were missing; `None` if the request was refused for another reason, or can never be
    /// served there.
    fn shortage(
        &self,
        refusal: &DeviceAllocError,
        device: i32,
        more_bytes: u64,
    ) -> Option<(Scope, u64)> {
        let out = match refusal {
            DeviceAllocError::Budget(over) => {
                let needed = over.needed_bytes.saturating_add(more_bytes);
                let scope = Scope {
                    budget: over.id,
                    device: None,
                };
                let can_be = needed <= over.limit_bytes;
                return can_be.then(|| (scope, self.excess_with(over.id, needed)));
            }
            DeviceAllocError::Memory {
                reason: AllocError::OutOfMemory(out),
                ..
            } => out,
            _ => return None,
        };
        let needed = out.rounded_bytes.saturating_add(more_bytes);
        let missing = match out.cause {
            Cause::Limit if needed > out.limit_bytes => return None,
            Cause::Limit => {
                let live = out.live_bytes.saturating_add(needed);
                live.saturating_sub(out.limit_bytes)
            }
            Cause::SubAllocator | Cause::Pending | Cause::Fragmentation => {
                needed.saturating_sub(out.free_bytes)
            }
            _ => return None,
        };
        // Free memory that could not serve the request is in the wrong pieces.
        let bytes = if missing == 0 { needed } else { missing };
        let scope = match out.cause {
            Cause::SubAllocator => Scope {
                budget: self.shared().root(),
                device: Some(device),
            },
            _ => self.scope(),
        };
        Some((scope, bytes))
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
