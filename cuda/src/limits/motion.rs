//! [`Motion`]: what a pool remembers of a limit that is not met yet, or lower than its own.

use larder_core::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Frees that are let pass, at most, before one looks again for memory that can go back.
const MOST_FREES: u32 = 64;

/// Bytes freed after which one looks in any case: what is mapped at least, on most devices.
const MOST_BYTES: u64 = 2 << 20;

/// Whether a pool's limit is in motion, and when a free looks for memory that can go back. After looks that
/// found nothing, fewer frees look: 1, 2, 4 … up to every 64th, whenever 2 MiB have come home, and the last block.
#[derive(Default)]
pub(crate) struct Motion {
    /// Changed under the lock of the pool's core only.
    on: AtomicU8,
    frees: AtomicU32,
    bytes: AtomicU64,
    /// Looks in vain since the last that found something.
    vain: AtomicU32,
    /// Held by the one thread that looks.
    looking: Mutex<()>,
}

impl Motion {
    /// The one load of a free.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed) != 0
    }

    /// Says whether the limit is in motion; under the lock of the pool's core.
    pub(crate) fn set(&self, on: bool) {
        self.on.store(u8::from(on), Ordering::Relaxed);
    }

    /// A new limit: the next free looks.
    pub(crate) fn begin(&self) {
        self.vain.store(0, Ordering::Relaxed);
    }

    /// A block of so many bytes has come home; `last` says that none is live any more. The leave to look for
    /// memory that can go back, if it is time and nobody does.
    pub(crate) fn note_free(&self, bytes: u64, last: bool) -> Option<MutexGuard<'_, ()>> {
        let frees = self.frees.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let freed = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let freed = freed.saturating_add(bytes);
        let vain = self.vain.load(Ordering::Relaxed);
        let due = 1_u32.checked_shl(vain).unwrap_or(MOST_FREES);
        if !last && frees < due.min(MOST_FREES) && freed < MOST_BYTES {
            return None;
        }
        let looking = match self.looking.try_lock() {
            Ok(looking) => looking,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.frees.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        Some(looking)
    }

    /// What a look found.
    pub(crate) fn looked(&self, found: bool) {
        let vain = self.vain.load(Ordering::Relaxed);
        let vain = if found { 0 } else { vain.saturating_add(1) };
        self.vain.store(vain, Ordering::Relaxed);
    }
}
