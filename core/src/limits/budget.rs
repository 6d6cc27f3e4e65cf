//! The types of a tree of budgets: the limits of a budget, its name, its counters and its refusals.

use core::fmt;

use crate::ByteCount;

/// The limits of a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetConfig {
    /// Maximum bytes charged to the budget and to all budgets below it.
    pub hard_bytes: u64,
    /// An event is recorded when more than this is charged; [`u64::MAX`] for none.
    pub soft_bytes: u64,
    /// Minimum value of the hard limit. No bytes are set aside for the floor: sibling budgets may use the bytes that
    /// this budget has not taken.
    pub floor_bytes: u64,
    /// The budget's name, as an index into the caller's list of names.
    pub name: u32,
}

impl BudgetConfig {
    /// Creates a budget of `hard_bytes`, without a soft limit or a floor, and with name 0.
    pub const fn new(hard_bytes: u64) -> Self {
        Self {
            hard_bytes,
            soft_bytes: u64::MAX,
            floor_bytes: 0,
            name: 0,
        }
    }
}

/// The identity of a budget in a tree. The id of a removed budget is unknown to the tree until 2^32 more budgets have
/// had the same index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BudgetId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// The current counters of a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetUse {
    /// The budget's limits.
    pub config: BudgetConfig,
    /// Bytes charged to the budget and to all budgets below it.
    pub used_bytes: u64,
    /// The part of `used_bytes` charged to the budget itself.
    pub own_bytes: u64,
    /// Bytes charged above the hard limit, because the limit was lowered or the bytes were already held.
    pub excess_bytes: u64,
}

/// A budget had no room. Nothing was charged anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetRefusal {
    /// The budget without room; if there are several, the lowest.
    pub budget: BudgetId,
    /// The budget's name, as an index.
    pub name: u32,
    /// The budget's hard limit.
    pub limit_bytes: u64,
    /// Bytes charged to the budget.
    pub used_bytes: u64,
    /// Bytes to be charged.
    pub wanted_bytes: u64,
}

/// Why a tree of budgets refused a call. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BudgetError {
    /// There is no such budget.
    Unknown,
    /// The table has no record left.
    Full {
        /// Records in the table.
        records: u32,
    },
    /// The limit is below the promised floor.
    BelowFloor {
        /// The promised floor.
        floor_bytes: u64,
    },
    /// The hard limit is below the soft one.
    BelowSoft {
        /// The soft limit.
        soft_bytes: u64,
    },
    /// A budget on the way to the root has no room for the charge.
    NoRoom(BudgetRefusal),
    /// More bytes are credited than are charged.
    NotCharged,
    /// The budget cannot be removed: bytes are charged to it, budgets are below it, or it is the root.
    InUse,
    /// The heap has no memory for the records.
    Heap,
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => {
                f.write_str("there is no such budget: use an id that the tree returned")
            }
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
                "{:#} were requested where {:#} of {:#} are used: free memory, or raise the limit",
                ByteCount(refusal.wanted_bytes),
                ByteCount(refusal.used_bytes),
                ByteCount(refusal.limit_bytes)
            ),
            Self::NotCharged => {
                f.write_str("more would be credited than is charged: credit each charge once")
            }
            Self::Heap => f.write_str(
                "the heap has no memory for the budgets: free memory, or make room for fewer budgets",
            ),
            Self::InUse => {
                f.write_str("the budget is in use: free its memory and remove those below it first")
            }
        }
    }
}

impl core::error::Error for BudgetError {}

/// The kind of an event of a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LimitEventKind {
    /// The charged bytes have risen above the soft limit.
    SoftCrossed,
    /// The excess above a lowered limit has been released.
    ShrinkDone,
}

/// One event, kept until it is [taken](super::LimitTree::take_event).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitEvent {
    /// The budget.
    pub budget: BudgetId,
    /// The budget's name, as an index.
    pub name: u32,
    /// The kind of the event.
    pub kind: LimitEventKind,
    /// Bytes charged when the event is taken.
    pub used_bytes: u64,
    /// The soft limit if that was crossed, otherwise the hard one.
    pub limit_bytes: u64,
}
