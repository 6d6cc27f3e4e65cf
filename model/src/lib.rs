//! Slow, obvious versions of Larder's algorithms, for tests and fuzzing.
//!
//! From the definitions of the policies, a model predicts the exact answer of each operation: the address, size and
//! wait, or the error with all its numbers. It uses plain vectors and full scans. [`run_bfc`] runs the same operations
//! on a model and on the real allocator and compares the answers. Seeded tests and the fuzzer share one type of
//! operation, [`Op`].
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
