//! Models of Larder's shared state, explored by loom in every interleaving.
//!
//! Each protocol has a model and a broken twin that the checker must reject; without the twin, a
//! model that explores nothing would pass as well. Run with `cargo test --release`. The core is compiled from its
//! sources as the package `core/`, in which the modelled types use loom's atomics, locks and cells.
//!
//! | model | protocol | invariant |
//! |---|---|---|
//! | `fixed_range` | one compare-and-swap hands out a piece (RANGE1) | no byte given twice; only the end comes back |
//! | `lock_word` | a lock whose waiters sleep (LOCK1, LOCK2) | one holder at a time, no sleeper forgotten |
//! | `growth` | tickets count against the limit while no lock is held (BFC7), regions and one range | reserved never above the limit |
//! | `growth`, `l6_…`, `the_end_of_a_range_…` | a limit lowered while others grow and free | nothing held above max(old held, new limit); no released range handed out |
//! | `limits`, `l6_…` | a tree of budgets over pools that charge, allocate and free while its limit moves | nothing exists above the limit, nothing is granted above a lowered one after the answer |
//! | `resize` | a block resized in place while others take, grow and release memory behind it | the block keeps its start, no byte given twice, reserved never above the limit |
//! | `prmalloc`, `l1_…` | a bin's stack of free blocks under its lock | no block lost, none given or taken back twice |
//! | `prmalloc`, `l2_…` | recording switched by compare-and-swap beside stops, frees and resets | one round a stop, each free in one round, nothing left by a reset |
//! | `prmalloc`, `l3_…` | a plan published to threads that allocate | a thread that sees it sees all of it; earlier blocks go to the backend |
//! | `prmalloc`, `l4_…` | a plan that replaces another with blocks in use | slabs released once, after their last block |
//! | `small`, `remote` | blocks freed by others: two stacks (REMOTE1, REMOTE2) | every block comes back once; a span is announced at most once; no link is raced on |
//! | `small`, `release` | a span's last block freed by another thread (SPAN5) | no thread reaches a released record |
//! | `small`, `transfer cache` | a transfer cache used by its owner and trimmed by others (SET1, HEAP3) | every block in one place |
//! | `small`, `adoption` | heaps parked, adopted, made and trimmed at once (HEAP1 to HEAP4) | one owner at a time; cached blocks handed over |
//! | `small`, `twins` | a copy of the two stacks, with one line to break at a time | each break is found, and the copy without one passes |
#![forbid(unsafe_code)]
