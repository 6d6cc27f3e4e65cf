//! The words of a tree of budgets: what one is, how it is named, and what it refuses.

use core::fmt;

use crate::ByteCount;

/// What a budget allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetConfig {
    /// Most bytes charged to it and to all below it.
    pub hard_bytes: u64,
    /// Somebody is told when more than this is charged; [`u64::MAX`] for nobody.
    pub soft_bytes: u64,
    /// The hard limit is never set below this. It binds the limit only: nothing is set aside, and budgets
    /// beside this one may use what this one has not taken.
    pub floor_bytes: u64,
    /// Its name, as an index into the caller's list of names.
    pub name: u32,
}

impl BudgetConfig {
    /// So many bytes; nobody is told, nothing is promised, name 0.
    pub const fn new(hard_bytes: u64) -> Self {
        Self {
            hard_bytes,
            soft_bytes: u64::MAX,
            floor_bytes: 0,
            name: 0,
        }
    }
}

/// One budget of a tree. After the budget is removed its id names nothing, for 2^32 budgets in the same
/// place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BudgetId {
    pub(super) place: u32,
    pub(super) turn: u32,
}

/// A budget's counters now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetUse {
    /// What it allows.
    pub config: BudgetConfig,
    /// Bytes charged to it and to all below it.
    pub used_bytes: u64,
    /// Of these, bytes charged to itself.
    pub own_bytes: u64,
    /// Bytes charged above the hard limit, since that was lowered.
    pub excess_bytes: u64,
}

/// A budget had no room. Nothing was charged anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetRefusal {
    /// Which one: of several the lowest.
    pub budget: BudgetId,
    /// Its name, as an index.
    pub name: u32,
    /// Its hard limit.
    pub limit_bytes: u64,
    /// Bytes charged to it.
    pub used_bytes: u64,
    /// Bytes that were to be charged.
    pub wanted_bytes: u64,
}

/// What a tree of budgets refused, and why. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BudgetError {
    /// There is no such budget.
    Unknown,
    /// The table has no record left.
    Full {
        /// How many it has.
        records: u32,
    },
    /// A limit below what was promised never to be taken.
    BelowFloor {
        /// What was promised.
        floor_bytes: u64,
    },
    /// A hard limit below the soft one.
    BelowSoft {
        /// The soft limit.
        soft_bytes: u64,
    },
    /// A charge for which a budget on the way to the root has no room.
    NoRoom(BudgetRefusal),
    /// More is credited than is charged.
    NotCharged,
    /// Bytes are charged to the budget that is to be removed, or others stand below it.
    InUse,
    /// The heap has no memory for so many records.
    Heap,
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("there is no such budget: use one that the tree gave"),
            Self::Full { records } => write!(
                f,
                "all {records} records of budgets are in use: remove one, or make room for more"
            ),
            Self::BelowFloor { floor_bytes } => write!(
                f,
                "{:#} were promised: lower the floor first, or take a higher limit",
                ByteCount(*floor_bytes)
            ),
            Self::BelowSoft { soft_bytes } => write!(
                f,
                "the soft limit is {:#}: lower it too, or take a higher hard limit",
                ByteCount(*soft_bytes)
            ),
            Self::NoRoom(refusal) => write!(
                f,
                "{:#} wanted where {:#} of {:#} are used: give memory back, or raise the limit",
                ByteCount(refusal.wanted_bytes),
                ByteCount(refusal.used_bytes),
                ByteCount(refusal.limit_bytes)
            ),
            Self::NotCharged => {
                f.write_str("more would be credited than is charged: credit what was charged, once")
            }
            Self::Heap => f.write_str(
                "the heap has no memory for so many budgets: free some, or make room for fewer",
            ),
            Self::InUse => f.write_str(
                "the budget is in use: give its memory back and remove those below it first",
            ),
        }
    }
}

impl core::error::Error for BudgetError {}

/// What happened to a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LimitEventKind {
    /// More is charged than the soft limit says, which was not so before.
    SoftCrossed,
    /// What was above a lowered limit has gone back.
    ShrinkDone,
}

/// One event, kept until it is [taken](super::LimitTree::take_event).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitEvent {
    /// The budget that it is of.
    pub budget: BudgetId,
    /// Its name, as an index.
    pub name: u32,
    /// What happened.
    pub kind: LimitEventKind,
    /// Bytes charged when it is taken.
    pub used_bytes: u64,
    /// The soft limit for a soft limit crossed, else the hard one.
    pub limit_bytes: u64,
}
