//! Policies and counters of steps, as plain values.

/// Policies of [`Steps`](super::Steps).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepConfig {
    /// Smaller requests are not part of any step.
    pub threshold_bytes: u64,
    /// A plan that ends above this many bytes from the start of the addresses is not used.
    pub cap_bytes: u64,
    /// Buckets that the [greedy packings](crate::pack) of a layout may examine inside the call that makes it; a million
    /// take about 50 to 100 ms. The default of ten million suffices to pack, by size, about 30,000 allocations that all
    /// live together. With more allocations the layout is mostly the packing in the order of time, which is up to a
    /// sixth higher, and is not used if it holds too much.
    ///
    /// If the blocks outside the steps lie elsewhere each time, each step needs a layout of its own. Once the layouts
    /// of a shape have together examined an eighth of these buckets, its allocations pay for later layouts, 4 buckets
    /// each: a step that is not paid for yet continues without a plan.
    pub packing_work: u64,
    /// Work of the search for a layout after the greedy packings: steps times allocations. A million take about 10
    /// ms.
    pub search_work: u64,
    /// Whether blocks that are known to outlive their step are left to the caller, which serves them from elsewhere.
    pub keep_out_outliving: bool,
}

impl StepConfig {
    /// Creates the default: everything is planned, and a plan may be of any size.
    pub const fn new() -> Self {
        Self {
            threshold_bytes: 0,
            cap_bytes: u64::MAX,
            packing_work: 10_000_000,
            search_work: 2_000_000,
            keep_out_outliving: false,
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
    /// Steps ended.
    pub steps: u64,
    /// Steps whose allocations are those of a known shape, from first to last.
    pub known_steps: u64,
    /// Blocks allocated at the plan's place.
    pub hits: u64,
    /// Bytes of these blocks.
    pub hit_bytes: u64,
    /// Blocks with a place in the followed plan that did not get it.
    pub misses: u64,
    /// Bytes of these blocks.
    pub missed_bytes: u64,
    /// Blocks of steps that no plan knows.
    pub unplanned: u64,
    /// Bytes of these blocks.
    pub unplanned_bytes: u64,
    /// Blocks that the caller served, because they are known to outlive their step.
    pub kept_out: u64,
    /// Allocations that differed from the followed shape.
    pub deviations: u64,
    /// Layouts made, for the first time or because the blocks outside the shape had changed.
    pub layouts: u64,
    /// Layouts not used, because they would exceed the bytes held or allowed.
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
        self.deviations += other.deviations;
        self.layouts += other.layouts;
        self.rejected += other.rejected;
        self.layout_work += other.layout_work;
    }
}
