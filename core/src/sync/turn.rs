//! [`BuildTurn`]: decides which thread builds a value that exists once, and holds no lock meanwhile.

use core::fmt;

use super::{AtomicU8, Ordering, Wait};

const EMPTY: u8 = 0;
const BUILDING: u8 = 1;
const BUILT: u8 = 2;

/// The turn to build the value of a slot. The value itself is next to it, in a `OnceLock`.
///
/// * TURN1 at most one thread is between [`begin`](Self::begin) and the end of its [`Turn`].
/// * TURN2 a thread that learns that the value is built sees all writes of the builder before [`Turn::done`].
/// * TURN3 a builder that failed, by an error or a panic, leaves the slot as empty as it was, and one of the waiting
///   threads has the next turn.
///
/// A thread that calls `begin` again in its own turn waits for itself, so the build must not request the same slot.
pub struct BuildTurn(AtomicU8);

/// The turn of one thread. A turn that is dropped without [`done`](Self::done) ends without a value.
#[must_use = "dropped, the turn is over without a value"]
pub struct Turn<'s>(&'s BuildTurn);

impl BuildTurn {
    /// Creates an empty slot.
    #[cfg(not(larder_loom))]
    pub const fn new() -> Self {
        Self(AtomicU8::new(EMPTY))
    }

    /// Creates an empty slot.
    #[cfg(larder_loom)]
    pub fn new() -> Self {
        Self(AtomicU8::new(EMPTY))
    }

    /// Takes the turn, or waits, through `W`, for the thread that has it. Returns `None` once the value is built. One
    /// compare-and-swap.
    pub fn begin<W: Wait>(&self) -> Option<Turn<'_>> {
        loop {
            // Acquire, for TURN2; and after a failed turn, to see what that thread undid.
            let found =
                self.0
                    .compare_exchange(EMPTY, BUILDING, Ordering::Acquire, Ordering::Acquire);
            match found {
                Ok(_) => return Some(Turn(self)),
                Err(BUILT) => return None,
                Err(_) => W::wait(),
            }
        }
    }
}

#[cfg(not(larder_loom))]
impl Default for BuildTurn {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for BuildTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.load(Ordering::Relaxed) {
            EMPTY => "BuildTurn(empty)",
            BUILDING => "BuildTurn(building)",
            _ => "BuildTurn(built)",
        })
    }
}

impl Turn<'_> {
    /// Ends the turn once the value is where other threads read it.
    pub fn done(self) {
        // Release, for TURN2.
        self.0.0.store(BUILT, Ordering::Release);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // After `done` the slot is built; no other thread changes it while this turn lasts (TURN1).
        let _ = self
            .0
            .0
            .compare_exchange(BUILDING, EMPTY, Ordering::Release, Ordering::Relaxed);
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turn")
    }
}
