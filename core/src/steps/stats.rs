//! Policies and counters of steps.

/// Policies of [`Steps`](super::Steps).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepConfig {
    /// Smaller requests are not part of any step.
    pub threshold_bytes: u64,
    /// Maximum height of a plan, in bytes from the start of the addresses. A plan that ends above this is not used.
    pub cap_bytes: u64,
    /// Maximum number of buckets that the [greedy packings](crate::pack) of a layout examine, inside the call that
    /// makes the layout. A million buckets take about 50 to 100 ms. The default of ten million suffices to pack, by
    /// size, about 30,000 allocations that all live together. With more allocations the layout is usually the packing
    /// in the order of time. That packing is up to a sixth higher, and is not used if it would hold too much.
    ///
    /// All layouts together examine at most this many buckets and one more for each allocation of a step. If the
    /// blocks outside the steps lie elsewhere each time, each step needs a new layout; a step whose layout is not paid
    /// for yet continues without a plan.
    pub packing_work: u64,
    /// Maximum work of the search for a layout, after the greedy packings: search steps times allocations. A million
    /// takes about 10 ms.
    pub search_work: u64,
    /// A layout may exceed the maximum number of bytes that were live in any step by this part of it; more only if
    /// that takes no further memory.
    pub spare_divisor: u32,
    /// Number of steps by which those of which plans served few blocks may exceed the others. After that, twice as many
    /// steps are not observed; each time that this happens again, twice as many as before, up to 32 times as many.
    pub patience: u32,
    /// Whether the memory below serves plans alone, for one step at a time. Blocks for which it has no room are [left to
    /// the caller](super::Served::Elsewhere), as are those known to outlive their step. A shape is served only if its
    /// blocks are usually freed in their step.
    pub within_plans: bool,
}

impl StepConfig {
    /// Creates the default: everything is planned, and a plan may be of any size.
    pub const fn new() -> Self {
        Self {
            threshold_bytes: 0,
            cap_bytes: u64::MAX,
            packing_work: 10_000_000,
            search_work: 2_000_000,
            spare_divisor: 512,
            patience: 1024,
            within_plans: false,
        }
    }
}

impl Default for StepConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Counters since construction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StepStats {
    /// Number of steps ended.
    pub steps: u64,
    /// Number of steps whose allocations were those of a known shape, or of its beginning.
    pub known_steps: u64,
    /// Number of blocks allocated at the plan's place.
    pub hits: u64,
    /// Bytes of these blocks.
    pub hit_bytes: u64,
    /// Number of blocks that did not get their place in the followed plan.
    pub misses: u64,
    /// Bytes of these blocks.
    pub missed_bytes: u64,
    /// Number of blocks allocated in a step without a place in a plan.
    pub unplanned: u64,
    /// Bytes of these blocks.
    pub unplanned_bytes: u64,
    /// Number of blocks that the caller served because they are known to outlive their step.
    pub kept_out: u64,
    /// Number of steps that were not observed, because plans had served few blocks of the steps before.
    pub skipped_steps: u64,
    /// Number of steps with more allocations than the tables hold. They are not planned.
    pub overlong_steps: u64,
    /// Number of shapes forgotten because the tables were full. If it grows as fast as `steps`, there are more kinds of
    /// steps than the tables hold.
    pub forgotten_shapes: u64,
    /// Number of times that an allocation differed from the followed shape.
    pub deviations: u64,
    /// Number of layouts made, for the first time or because the blocks outside the shape had changed.
    pub layouts: u64,
    /// Number of layouts not used because they would exceed the bytes held or allowed.
    pub rejected: u64,
    /// Work of layouts, in buckets of [`packing_work`](StepConfig::packing_work).
    pub layout_work: u64,
}

impl core::ops::AddAssign for StepStats {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.known_steps += other.known_steps;
        self.hits += other.hits;
        self.hit_bytes += other.hit_bytes;
        self.misses += other.misses;
        self.missed_bytes += other.missed_bytes;
        self.unplanned += other.unplanned;
        self.unplanned_bytes += other.unplanned_bytes;
        self.kept_out += other.kept_out;
        self.skipped_steps += other.skipped_steps;
        self.overlong_steps += other.overlong_steps;
        self.forgotten_shapes += other.forgotten_shapes;
        self.deviations += other.deviations;
        self.layouts += other.layouts;
        self.rejected += other.rejected;
        self.layout_work += other.layout_work;
    }
}
