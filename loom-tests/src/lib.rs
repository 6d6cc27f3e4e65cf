//! Models of Larder's shared state, run through every interleaving by loom.
//!
//! Each protocol has a model and a broken twin that the checker must reject; without the twin, a
//! model that explores nothing would pass as well. Run by
//! `RUSTFLAGS="--cfg loom" cargo test --release -p larder-loom-tests`; an ordinary build holds no
//! test, because the types modelled are the checker's own then.
//!
//! | model | protocol | invariant |
//! |---|---|---|
//! | `fixed_range` | one compare-and-swap hands out a piece (F1) | no byte given twice; only the end comes back |
//! | `growth` | tickets count against the limit while no lock is held (B7), regions and one range | reserved never above the limit |
//! | `growth`, `l6_…`, `the_end_of_a_range_…` | a limit lowered while others grow and free | nothing held above max(old held, new limit); no released range handed out |
#![forbid(unsafe_code)]
