//! Slow, obvious versions of Larder's algorithms, for tests and fuzzing.
//!
//! A model predicts the exact answer of each operation (address, size, wait, error with all its numbers) from the
//! definition of the policies, with plain vectors and full scans; [`run_bfc`] drives it beside the real allocator and
//! compares. Seeded tests and the fuzzer share one type of operations ([`Op`]).
#![forbid(unsafe_code)]
#![allow(
    clippy::expect_used,
    reason = "a model that is wrong about itself must stop the test"
)]

pub mod antman;
mod bfc;
pub mod conformance;
mod lent;
mod op;
mod page_device;
mod paged;
mod pair;
mod policies;
mod pool;
mod pool_run;
pub mod prmalloc;
mod random;
mod run;
mod source;
mod steps;
pub mod tensorflow;
mod uses;

pub use bfc::ModelBfc;
pub use lent::{OwnedPackTables, OwnedTables, StepSizes};
pub use op::Op;
pub use page_device::{PageCalls, PageDevice};
pub use paged::{PagedFault, PagedHead, PagedOp, run_paged};
pub use pair::{Pair, Played};
pub use policies::Policies;
pub use pool_run::{PoolHead, PoolMismatch, PoolOp, run_pool};
pub use random::Random;
pub use run::{Mismatch, run_bfc};
pub use source::{Broken, Call, Source};
pub use steps::{StepsHead, StepsOp, run_steps};
