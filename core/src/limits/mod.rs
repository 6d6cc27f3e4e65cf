//! Limits that move while a program runs: budgets inside budgets, lowered with an answer at once.
//!
//! `answer` what a new limit means · `budget` the words · `tree` the budgets and their rule · `check` its
//! invariants. Pure numbers: pools, locks and callbacks are the front ends'.

mod answer;
mod budget;
mod check;
mod tree;

pub use answer::LimitAnswer;
pub use budget::{
    BudgetConfig, BudgetError, BudgetId, BudgetRefusal, BudgetUse, LimitEvent, LimitEventKind,
};
pub use tree::{BudgetNode, LimitTree};
