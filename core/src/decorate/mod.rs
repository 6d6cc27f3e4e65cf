//! Decorators: allocators around an allocator, which count, guard, fill and quarantine its blocks.
//!
//! Each is a [`BlockAllocator`] over another one, forwards every method, and keeps its state in tables on the heap,
//! allocated when it is created. Memory is accessed through a [`MemoryAccess`](crate::MemoryAccess), so the same
//! decorators serve a buffer, the host's memory and a device's. Three of the ideas are TensorFlow's
//! (`TrackingAllocator`, `GPUDebugAllocator`, `GPUNanResetAllocator`); the quarantine is known from memory checkers.
//!
//! | decorator | finds | costs |
//! |---|---|---|
//! | [`Tracked`] | how much was allocated, when, and what is not freed | a record each call |
//! | [`Guarded`] | writes in front of a block and behind it | at least 32 bytes a block, two writes and two reads |
//! | [`Quarantined`] | writes to a freed block | the memory of waiting blocks, a fill and a read of each freed block |
//! | [`Poisoned`] | reads of bytes never written, and of a freed block | two fills of each block |
//!
//! # Order
//! From the outermost inwards: `Poisoned<Quarantined<Guarded<Tracked<allocator>>>>`. Each may be left out. The
//! reasons for the order:
//! * `Poisoned` is the outermost. Inside `Guarded` it would fill the guards together with the block.
//! * `Quarantined` is outside `Guarded`: then guards are checked when the block leaves, and the fill stops before them.
//!   If it were inside, the guards' bytes would wait with the block and not be checked again.
//! * `Tracked` counts the requests of the other decorators if it is the innermost, and those of the program if it is
//!   the outermost.
//!
//! # Findings and refusals
//! A free that finds damage is still a free: the trait returns `Ok`, because the block is gone ([`OnDamage`] decides
//! about its memory). The finding waits in the decorator's list ([`Guarded::take_finding`]), and
//! [`Guarded::free_checked`] returns it. Nothing panics.
//!
//! # Locks
//! Each decorator has one lock, for its state. The lock is not held during a call of the allocator below, of the
//! access, of a clock or of a closure. A guarded block that [`check_all`](Guarded::check_all) is reading is pinned, and
//! a free of it waits for that one read.

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
    // If the allocator refuses the block that it has just allocated, the block stays live, unreported: the caller's
    // error is why the block could not be prepared.
    drop(inner.free_at(grant.block, grant.wait));
}
