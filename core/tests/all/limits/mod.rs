//! Budgets inside budgets: charges along a path, limits that hold at once, and the live bytes allowed to pools
//! meanwhile.

mod edges;
mod random;
mod rule;
