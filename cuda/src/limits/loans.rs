//! [`Loans`]: the loans under a tree of budgets, and the claims of requests that were refused.
//!
//! LOAN4 While a claim stands, no other loan commits lent bytes that it needs. It ends when its request is served, or its
//! buffer changes otherwise, or after [`MAX_PASSED_OVER`] refusals.

use core::cmp::Reverse;
use std::sync::{Arc, Mutex, Weak};

use larder_core::limits::BudgetId;
use larder_core::sync::{AtomicU32, Ordering};

use super::loan::SharedLoan;
use super::node::SharedTree;
use crate::driver::locked;

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
pub(super) struct Scope {
    pub(super) budget: BudgetId,
    pub(super) device: Option<i32>,
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

impl Claimant {
    /// Returns the claimant with an address.
    pub(super) fn of<T>(asker: *const T) -> Self {
        Self(asker.addr())
    }
}

impl Loans {
    /// Adds a loan, unless it is here already. O(loans).
    pub(super) fn add(&self, loan: &Arc<SharedLoan>) {
        let weak = Arc::downgrade(loan);
        let mut list = locked(&self.list);
        list.retain(|loan| loan.strong_count() > 0);
        if !list.iter().any(|loan| loan.ptr_eq(&weak)) {
            list.push(weak);
        }
    }

    /// Returns the loans in a scope, those with most bytes that are lent and not recalled first.
    pub(super) fn within(&self, scope: Scope) -> Vec<Arc<SharedLoan>> {
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
    pub(super) fn claim(&self, claimant: Claimant, scope: Scope, bytes: u64) {
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
    pub(super) fn end_claim(&self, claimant: Claimant) {
        // Relaxed: a claim that another thread makes just now may stand a little longer.
        if self.claim_count.load(Ordering::Relaxed) > 0 {
            let mut claims = locked(&self.claims);
            claims.retain(|claim| claim.claimant != claimant);
            self.count(&claims);
        }
    }

    /// Returns a claim where a loan's memory is.
    fn claim_within(&self, loan: &Arc<SharedLoan>) -> Option<Claim> {
        if self.claim_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let claims = locked(&self.claims).clone();
        claims.into_iter().find(|claim| loan.is_within(claim.scope))
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

impl SharedTree {
    /// Returns the bytes of a claim that a commit of `bytes` bytes beyond the guarantee would take.
    pub(super) fn passes_over(&self, loan: &Arc<SharedLoan>, bytes: u64) -> Option<u64> {
        let claim = self.loans.claim_within(loan)?;
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
    pub(super) fn recall(&self, scope: Scope, bytes: u64) -> Vec<Arc<SharedLoan>> {
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
