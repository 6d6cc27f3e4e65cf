//! The parts shared by the bench targets: contenders that take turns, and the pairs of `pair_rounds`.
#![deny(unsafe_code)]

pub mod pair;
pub mod rounds;
