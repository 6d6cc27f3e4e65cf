//! A plan that serves: the cheapest policy above 32 KiB and the policy up to 32 KiB, each with its own slab.
//!
//! A pool has two such plans. A plan is behind the pool's lock, or with a thread that requests its slabs from the
//! backend or releases them.

use super::class::{Classes, Interval, SMALL_MAX_BYTES};
use super::config::PlanCapacity;
use super::life::OpenLife;
use super::plans::Plans;
use super::policy::ClassPolicy;
use super::stacks::Miss;
use crate::error::ConfigError;
use crate::sub_allocator::SubAllocator;
use crate::units::{Addr, Align};

/// A plan with its memory.
pub(super) struct ServedPlan {
    /// The plan's number among the pool's two.
    pub(super) number: usize,
    small: Option<ClassPolicy>,
    large: ClassPolicy,
    /// Blocks in use.
    used: u64,
}

impl ServedPlan {
    /// Creates a plan without bins.
    pub(super) fn new(number: usize, room: PlanCapacity) -> Result<Self, ConfigError> {
        let small = room.small.then(|| ClassPolicy::new(Classes::Small, room));
        Ok(Self {
            number,
            small: small.transpose()?,
            large: ClassPolicy::new(Classes::Above(Interval::KiB4), room)?,
            used: 0,
        })
    }

    /// Swaps the policies, which have no slabs, with the cheapest of `plans`.
    pub(super) fn take_best(&mut self, plans: &mut Plans) {
        plans.swap_best(&mut self.small, &mut self.large);
        self.policies_mut().for_each(ClassPolicy::fill_stacks);
    }

    fn policies(&self) -> impl Iterator<Item = &ClassPolicy> {
        self.small.iter().chain([&self.large])
    }

    fn policies_mut(&mut self) -> impl Iterator<Item = &mut ClassPolicy> {
        self.small.iter_mut().chain([&mut self.large])
    }

    /// Requests the slabs, each a multiple of `unit`. Returns whether all of them were granted.
    pub(super) fn fill(&mut self, backend: &impl SubAllocator, unit: Align) -> bool {
        self.policies_mut()
            .all(|policy| fill(policy, backend, unit).is_some())
    }

    /// Offers the slabs to the backend. Returns the number of bytes that it took back.
    pub(super) fn empty(&mut self, backend: &impl SubAllocator) -> u64 {
        let held = self.slab_bytes();
        for policy in self.policies_mut() {
            let refused = |slab: &_| backend.release(*slab).is_err();
            policy.slab = policy.slab.filter(refused);
        }
        held - self.slab_bytes()
    }

    /// Returns the bytes of its slabs.
    pub(super) fn slab_bytes(&self) -> u64 {
        let slabs = self.policies().filter_map(|policy| policy.slab);
        // The slabs do not overlap, so the sum of their sizes fits 64 bits.
        slabs.map(|slab| slab.bytes()).sum()
    }

    pub(super) const fn is_unused(&self) -> bool {
        self.used == 0
    }

    /// Takes a block for a life. O(log bins), plus O(virtual blocks) if the bin itself has no free block.
    pub(super) fn take(&mut self, life: OpenLife) -> Result<Addr, Miss> {
        let policy = if life.stat.bytes <= SMALL_MAX_BYTES {
            self.small.as_mut().ok_or(Miss::NoBin)?
        } else {
            &mut self.large
        };
        let addr = policy.take(life)?;
        self.used += 1;
        Ok(addr)
    }

    /// Frees the block in use that begins at `addr`, if there is one. O(log bins).
    pub(super) fn give_back(&mut self, addr: Addr) -> Option<OpenLife> {
        let life = self
            .policies_mut()
            .find_map(|policy| policy.give_back(addr))?;
        self.used -= 1;
        Some(life)
    }
}

fn fill(policy: &mut ClassPolicy, backend: &impl SubAllocator, unit: Align) -> Option<()> {
    let request = policy.slab_request(unit)?;
    if request.bytes == 0 {
        return Some(());
    }
    let slab = backend.grow(request).ok()?;
    if slab.bytes() < request.bytes || !slab.start().is_aligned(request.align) {
        // If the backend does not take the slab back, accounting for it is up to the backend.
        let _ = backend.release(slab);
        return None;
    }
    policy.place_in(slab);
    Some(())
}
