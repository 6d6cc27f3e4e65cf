//! Models of Larder's shared state. Loom explores every interleaving of each model.
//!
//! Each protocol has a model and a broken twin that the checker must reject; without the twin, a
//! model that explores nothing would pass too. Run with `cargo test --release`. The core is compiled from its
//! sources as the package `core/`, in which the modelled types use loom's atomics, locks and cells.
//!
//! | model | protocol | invariant |
//! |---|---|---|
//! | `fixed_range` | one compare-and-swap grants a piece (RANGE1) | no byte granted twice; only the end can be released |
//! | `lock_word` | a lock whose waiters sleep (LOCK1, LOCK2) | one holder at a time, no sleeper forgotten |
//! | `growth` | tickets count against the limit while no lock is held (BFC7), for regions and for one range | reserved never above the limit |
//! | `growth`, `l6_…`, `the_end_of_a_range_…` | a limit lowered while other threads grow and free | nothing held above max(old held, new limit); no released range granted |
//! | `limits`, `l6_…` | a tree of budgets over pools that charge, allocate and free while a limit changes | no memory above a limit; nothing granted above a lowered limit once the call has returned |
//! | `resize` | a block resized in place while other threads allocate, grow and release memory behind it | the block keeps its start; no byte granted twice; reserved never above the limit |
//! | `prmalloc`, `l1_…` | a bin's stack of free blocks under its lock | no block lost, allocated twice or freed twice |
//! | `prmalloc`, `l2_…` | recording switched by compare-and-swap during stops, frees and resets | one round per stop; each free in one round; nothing left by a reset |
//! | `prmalloc`, `l3_…` | a plan published to threads that allocate | a thread that sees the plan sees all of it; earlier blocks go to the backend |
//! | `prmalloc`, `l4_…` | a plan that replaces another whose blocks are in use | slabs released once, after their last block |
//! | `small`, `remote` | blocks freed by other threads: two stacks (REMOTE1, REMOTE2) | every block comes back once; a span is announced at most once; no data race on a link |
//! | `small`, `release` | a span's last block freed by another thread (SPAN5) | no thread reaches a released record |
//! | `small`, `transfer cache` | a transfer cache used by its owner and trimmed by other threads (SET1, HEAP3) | every block in one place |
//! | `small`, `adoption` | heaps parked, adopted, made and trimmed at once (HEAP1 to HEAP4) | one owner at a time; cached blocks handed over |
//! | `small`, `twins` | a copy of the two stacks, in which one line at a time is broken | each break is found, and the unbroken copy passes |
#![forbid(unsafe_code)]
