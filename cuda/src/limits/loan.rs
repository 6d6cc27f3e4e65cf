//! [`Loan`]: the memory of a reserved buffer beyond its guarantee, which the buffer returns on request.
//!
//! LOAN1 The lent bytes are those committed beyond the guarantee. No more than these are recalled.
//! LOAN2 Bytes count as committed from before their pages are requested until after these are idle.
//! LOAN3 No lock of this crate is held while a callback runs, since it may allocate, free and wait for other threads.
//!
//! `loans` has all loans and the claims to what is recalled, `room` what a refused request does.

use core::fmt;
use std::sync::{Arc, Mutex};

use super::TreeNode;
use super::loans::{Claimant, Scope};
#[cfg(feature = "job")]
use super::room::LoanSums;
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
///
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

pub(super) struct SharedLoan {
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
        self.0.node.shared().loans.add(&self.0);
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
        Claimant::of(Arc::as_ptr(&self.0))
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
    pub(super) fn is_within(&self, scope: Scope) -> bool {
        scope.device.is_none_or(|device| self.device == device) && self.node.is_within(scope.budget)
    }

    /// Returns the bytes lent and recalled. A sleeping allocator holds nothing, so nothing is lent there.
    pub(super) fn lent_and_recalled(&self) -> (u64, u64) {
        let held = self.node.usage().used_bytes;
        let counts = locked(&self.counts);
        (counts.lent_bytes().min(held), counts.recalled_bytes)
    }

    /// Adds this loan to sums.
    #[cfg(feature = "job")]
    pub(super) fn add_to(&self, sums: &mut LoanSums) {
        let (lent, _) = self.lent_and_recalled();
        let counts = *locked(&self.counts);
        let guaranteed = counts.guaranteed_bytes.min(self.max_bytes);
        sums.lent_bytes += lent;
        sums.lendable_bytes += self.max_bytes - guaranteed;
        sums.unused_bytes += guaranteed.saturating_sub(counts.committed_bytes);
    }

    /// Recalls up to `bytes` more lent bytes. Returns how many.
    pub(super) fn recall(&self, bytes: u64) -> u64 {
        let (lent, _) = self.lent_and_recalled();
        let mut counts = locked(&self.counts);
        let more = bytes.min(lent.saturating_sub(counts.recalled_bytes));
        counts.recalled_bytes += more;
        counts.cap_recalled();
        more
    }

    /// Calls the callback, if bytes are recalled (LOAN3).
    pub(super) fn call_back(&self) {
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
        let claimant = Claimant::of(self);
        self.node.shared().loans.end_claim(claimant);
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
