//! Limits that move while a program runs: budgets inside budgets, lowered with an answer at once.
//!
//! `answer` what a new limit means · `budget` the words · `tree` the budgets and their rule ·
//! `check` its invariants. Pure numbers: pools, locks and callbacks are the front ends'. The tree
//! has its records on the heap, and is there with the feature `alloc`.

mod answer;
mod budget;
#[cfg(feature = "alloc")]
mod check;
#[cfg(feature = "alloc")]
mod tree;

pub use answer::LimitAnswer;
pub use budget::{
    BudgetConfig, BudgetError, BudgetId, BudgetRefusal, BudgetUse, LimitEvent, LimitEventKind,
};
#[cfg(feature = "alloc")]
pub use tree::LimitTree;
