//! Policies and counters of steps, as plain values.

/// Policies of [`Steps`](super::Steps).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepConfig {
    /// Smaller requests are not part of any step.
    pub threshold_bytes: u64,
    /// A plan that ends above this many bytes from the start of the addresses is not used.
    pub cap_bytes: u64,
    /// Buckets that the [greedy packings](super::pack) of a layout may look at inside the call that makes
    /// it; a million are some 50 to 100 ms. Ten million, the default, pack by size what some 30,000
    /// allocations need that all live together; of more it is mostly the packing in the order of time,
    /// which is up to a sixth higher, and not used if it holds too much.
    ///
    /// Where what lives beside the steps lies elsewhere each time, each step wants a layout of its own. Once
    /// those of a shape have looked at an eighth of so many buckets together, its allocations pay for what follows, 4
    /// buckets each: a step whose turn has not come goes on without a plan.
    pub packing_work: u64,
    /// How long a layout may be searched for after the greedy packings: steps times allocations. A
    /// million take about 10 ms.
    pub search_work: u64,
    /// Whether blocks that are known to outlive their step are the caller's to serve elsewhere.
    pub keep_out_outliving: bool,
}

impl StepConfig {
    /// Everything is planned, and a plan may be of any size.
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
    /// Steps that asked for what a known shape asks for, from first to last.
    pub known_steps: u64,
    /// Blocks given at the plan's place, and their bytes.
    pub hits: u64,
    /// Bytes of them.
    pub hit_bytes: u64,
    /// Blocks that have a place in the plan followed and did not get it.
    pub misses: u64,
    /// Bytes of them.
    pub missed_bytes: u64,
    /// Blocks of steps that no plan knows.
    pub unplanned: u64,
    /// Bytes of them.
    pub unplanned_bytes: u64,
    /// Blocks that the caller served, because they are known to outlive their step.
    pub kept_out: u64,
    /// Allocations that differed from the shape followed.
    pub deviations: u64,
    /// Shapes laid out, anew because what lives beside them had changed or for the first time.
    pub layouts: u64,
    /// Layouts not used, being larger than what is held or allowed.
    pub rejected: u64,
    /// What layouts looked at, in buckets of [`packing_work`](StepConfig::packing_work).
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
