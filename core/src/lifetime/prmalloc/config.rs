//! What a planner does, as data: the corrected behaviour, and upstream's.

/// The order in which the fit takes the stats of a bin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// By beginning, the longer life first among equals: as few blocks as lives overlap in a bin.
    Begin,
    /// By arrival, which is the order of the frees.
    Arrival,
}

/// What a virtual block stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Virtuals {
    /// One block of a larger bin: one entry for each, and serving tries all of them.
    PerBlock,
    /// One stat that was put into a larger bin: the list has duplicates, and serving tries the
    /// newest entry only.
    PerStat,
    /// One stat that was put into a larger bin, whose entry stays in the list; serving tries one: they
    /// take turns, from the oldest on in each step. So a bin may borrow more blocks than were planned
    /// for it. The GPU form.
    RoundRobin,
}

/// What a plan's memory is counted in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkRounding {
    /// The class's chunk, rounded up to the bin's alignment: what the slab really takes.
    ToAlign,
    /// The class's chunk.
    None,
}

/// What a block remembers of the rounds before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum History {
    /// When its last stat ended. Costs a word, and blocks that live across rounds still count.
    LastEnd,
    /// Every stat of every round, as upstream's CPU form does.
    All,
    /// Nothing; virtual blocks are those of the last round, as in upstream's GPU form.
    Nothing,
}

/// How many ways of fitting are tried in each policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Candidates {
    /// The configured one and, so that first-fit anomalies never cost more than upstream pays,
    /// upstream's; the smaller is kept.
    Smallest,
    /// The configured one.
    One,
}

/// From which step to which lives are recorded, and when the planning is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Window {
    /// The older CPU form: recording from step `start` to step `stop`, then one fit.
    Once {
        /// The step, counted from 0, at whose start recording begins.
        start: i64,
        /// The step at whose start it ends.
        stop: i64,
    },
    /// The CPU form: a round at the end of each step, until `stable` rounds and one more in a row
    /// brought nothing new, or `max` rounds and one more are over.
    Stable {
        /// The step, counted from 0, at whose start recording begins.
        start: i64,
        /// Stable rounds that do not suffice yet.
        stable: i64,
        /// Rounds that do not suffice yet.
        max: i64,
    },
    /// The GPU form: a round at the start of each step up to step `stop`.
    EachStart {
        /// The step, counted from 0, at whose start recording begins.
        start: i64,
        /// The step at whose start it ends.
        stop: i64,
    },
}

impl Window {
    /// The CPU form's defaults.
    pub const STABLE: Self = Self::Stable {
        start: 100,
        stable: 10,
        max: 100,
    };
    /// The older CPU form's.
    pub const ONCE: Self = Self::Once {
        start: 1000,
        stop: 1100,
    };
    /// The GPU form's.
    pub const EACH_START: Self = Self::EachStart {
        start: 10,
        stop: 110,
    };
}

/// How a planner records and fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannerConfig {
    /// Off, every call does nothing and there is never a plan.
    pub enabled: bool,
    /// When lives are recorded.
    pub window: Window,
    /// In which order they are fitted.
    pub order: Order,
    /// Whether touching ones share memory.
    pub touching: super::Touching,
    /// What virtual blocks stand for.
    pub virtuals: Virtuals,
    /// What memory is counted in.
    pub rounding: ChunkRounding,
    /// What blocks remember.
    pub history: History,
    /// How many ways are tried.
    pub candidates: Candidates,
    /// Frees during a round are recorded for the next one, and a round ends only with a step that
    /// began in it. Upstream loses the former, and concurrent sessions end each other's rounds.
    pub whole_steps: bool,
    /// A block freed more steps after its birth than this does not enter the plan: it would hold
    /// its place through all of them.
    pub max_age_steps: u64,
}

impl Default for PlannerConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl PlannerConfig {
    /// The corrected behaviour.
    pub const fn new() -> Self {
        Self {
            enabled: true,
            window: Window::STABLE,
            order: Order::Begin,
            touching: super::Touching::Disjoint,
            virtuals: Virtuals::PerBlock,
            rounding: ChunkRounding::ToAlign,
            history: History::LastEnd,
            candidates: Candidates::Smallest,
            whole_steps: true,
            max_age_steps: 8,
        }
    }

    /// Upstream's CPU form, to the letter but for its defects.
    pub const fn prmalloc() -> Self {
        Self {
            enabled: true,
            window: Window::STABLE,
            order: Order::Arrival,
            touching: super::Touching::Overlaps,
            virtuals: Virtuals::PerStat,
            rounding: ChunkRounding::None,
            history: History::All,
            candidates: Candidates::One,
            whole_steps: false,
            max_age_steps: u64::MAX,
        }
    }

    /// Upstream's GPU form.
    pub const fn prmalloc_gpu() -> Self {
        Self {
            window: Window::EACH_START,
            order: Order::Begin,
            virtuals: Virtuals::RoundRobin,
            rounding: ChunkRounding::ToAlign,
            history: History::Nothing,
            ..Self::prmalloc()
        }
    }

    /// This configuration with another window.
    pub const fn with_window(self, window: Window) -> Self {
        Self { window, ..self }
    }
}
