//! [`BuildTurn`]: decides which thread builds a value that is built once. No lock is held during the build.

use core::fmt;

use super::{AtomicU8, Ordering, Wait};

const EMPTY: u8 = 0;
const BUILDING: u8 = 1;
const BUILT: u8 = 2;

/// The turn to build the value of a slot. The value itself is stored next to the turn, in a `OnceLock`.
///
/// * TURN1 at most one thread is between [`begin`](Self::begin) and the end of its [`Turn`].
/// * TURN2 a thread that finds the value built sees all writes that the builder made before [`Turn::done`].
/// * TURN3 a builder that fails, with an error or a panic, leaves the slot empty, and one of the waiting threads gets
///   the next turn.
///
/// A thread that calls `begin` again during its own turn waits for itself forever, so the build must not request the
/// same slot.
pub struct BuildTurn(AtomicU8);

/// The turn of one thread. If it is dropped without [`done`](Self::done), the turn ends without a value.
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

    /// Takes the turn, or waits through `W` for the thread that has it. Returns `None` once the value is built. Usually
    /// one compare-and-swap.
    pub fn begin<W: Wait>(&self) -> Option<Turn<'_>> {
        loop {
            // Acquire: for TURN2, and to see what a failed builder undid.
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
    /// Ends the turn. The value must be stored where other threads read it.
    pub fn done(self) {
        // Release: for TURN2.
        self.0.0.store(BUILT, Ordering::Release);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // After `done` the slot is BUILT, and this changes nothing. No other thread changes the slot during this turn
        // (TURN1).
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
