//! Room for a request that was refused: idle memory of the other pools under a budget, and recalled memory.

use std::sync::Arc;

use larder_core::{AllocError, Cause};

use super::TreeNode;
use super::loans::{Claimant, Scope};
use crate::DeviceAllocError;

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

impl TreeNode {
    /// Makes room for a pool's request that was refused with this error, and `more_bytes` that the caller needs next:
    /// releases idle memory of the other allocators of devices under the budget that refused it, or on the device if
    /// that did, and for a claimant recalls lent memory for the rest. Returns whether any memory has become
    /// free; if not, the claimant has a claim to what was recalled. The caller holds no lock of this crate.
    pub(crate) fn make_room(
        &self,
        refusal: &DeviceAllocError,
        device: i32,
        more_bytes: u64,
        claimant: Option<Claimant>,
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
        let (Some(claimant), true) = (claimant, missing > 0) else {
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
        if decommitted == 0 && !loans.is_empty() {
            shared.loans.claim(claimant, scope, missing);
        }
        released > 0 || decommitted > 0
    }

    /// Returns the claimant of blocks of the pool that charges here.
    pub(crate) fn claimant(self: &Arc<Self>) -> Claimant {
        Claimant::of(Arc::as_ptr(self))
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
            loan.add_to(&mut sums);
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
