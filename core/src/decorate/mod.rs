//! Decorators: allocators that wrap another allocator and count, guard, fill or quarantine its blocks.
//!
//! Each decorator is a [`BlockAllocator`] over another one and forwards every method. It keeps its state in tables on
//! the heap, which are allocated when it is created. It accesses memory through a
//! [`MemoryAccess`](crate::MemoryAccess), so the same decorators serve a buffer, host memory and device memory. Three
//! of the decorators follow TensorFlow's (`TrackingAllocator`, `GPUDebugAllocator`, `GPUNanResetAllocator`). The
//! quarantine is known from memory checkers.
//!
//! | decorator | finds | costs |
//! |---|---|---|
//! | [`Tracked`] | how much was allocated, when, and what is not freed | a record per call |
//! | [`Guarded`] | writes before and after a block | at least 32 bytes, two writes and two reads per block |
//! | [`Quarantined`] | writes to a freed block | the memory of waiting blocks, a fill and a read per freed block |
//! | [`Poisoned`] | reads of bytes never written, and of a freed block | two fills per block |
//!
//! # Order
//! From the outermost inwards: `Poisoned<Quarantined<Guarded<Tracked<allocator>>>>`. Any of them may be left out. The
//! reasons for the order are:
//! * `Poisoned` is the outermost. Inside `Guarded` it would fill the guards together with the block.
//! * `Quarantined` is outside `Guarded`, so the guards are checked when the block leaves the quarantine, and the fill
//!   does not overwrite them. Inside `Guarded`, the guards would wait in the quarantine with the block and would not be
//!   checked again.
//! * `Tracked` counts the requests of the other decorators if it is the innermost, and those of the program if it is
//!   the outermost.
//!
//! # Findings and refusals
//! A free that finds damage is still a free: the trait returns `Ok`, because the block is gone ([`OnDamage`] decides
//! what happens to its memory). The finding is kept in the decorator's list ([`Guarded::take_finding`]), and
//! [`Guarded::free_checked`] also returns it. Nothing panics.
//!
//! # Locks
//! Each decorator has one lock, for its state. The lock is not held while the allocator below, the memory access, a
//! clock or a closure is called. [`check_all`](Guarded::check_all) pins the block whose guards it is reading, and a
//! free of this block waits until they have been read.

mod bands;
mod damage;
mod guarded;
mod poisoned;
mod quarantined;
mod rows;
mod track_state;
mod tracked;

pub use bands::GuardConfig;
pub use damage::{CheckError, Damage, FindingCounts, OnDamage, Which};
pub use guarded::Guarded;
pub use poisoned::Poisoned;
pub use quarantined::{QuarantineConfig, QuarantineStats, Quarantined};
pub use track_state::{TrackRecord, TrackStats, Tracking};
pub use tracked::{NoTicks, RecordsTaken, Ticks, Tracked};

use crate::block::{BlockAllocator, Grant};

/// Frees a block that could not be prepared. The point for which it would have waited still applies.
fn give_back<A: BlockAllocator>(inner: &A, grant: Grant) {
    // If the allocator refuses to free the block that it has just allocated, the block stays live. That is not
    // reported: the caller gets the error that prevented the preparation.
    drop(inner.free_at(grant.block, grant.wait));
}
