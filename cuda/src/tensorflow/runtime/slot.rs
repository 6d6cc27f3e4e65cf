//! [`OnceSlot`]: a value that is built on the first request.

use std::sync::OnceLock;
use std::time::Duration;

use larder_core::Wait;
use larder_core::sync::BuildTurn;

/// A place for one value. Reads of a built value take no lock, and no lock is held while it is built
/// ([`BuildTurn`]).
#[derive(Debug)]
pub(super) struct OnceSlot<T> {
    value: OnceLock<T>,
    turn: BuildTurn,
}

/// Waits for another thread to build the value, which may take a second in the driver.
struct Doze;

/// Time between two reads, short compared with a driver call and long compared with a read.
const NAP: Duration = Duration::from_micros(50);

impl Wait for Doze {
    fn wait() {
        std::thread::sleep(NAP);
    }
}

impl<T> OnceSlot<T> {
    pub(super) const fn new() -> Self {
        Self {
            value: OnceLock::new(),
            turn: BuildTurn::new(),
        }
    }

    /// Returns the value, if it is built.
    pub(super) fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// Returns the value, and builds it first if necessary. Of several concurrent requests, one builds it and
    /// the others wait; if that one fails, the next one tries.
    pub(super) fn get_or_build<E>(&self, build: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        loop {
            if let Some(value) = self.value.get() {
                return Ok(value);
            }
            match self.turn.begin::<Doze>() {
                // The value was written before the turn ended, so the next read finds it.
                None => {}
                Some(turn) => {
                    let built = build()?;
                    let value = self.value.get_or_init(|| built);
                    turn.done();
                    return Ok(value);
                }
            }
        }
    }

    /// Takes the value out.
    pub(super) fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn of_many_threads_one_builds_and_all_see_its_value() {
        let (slot, built) = (OnceSlot::<u32>::new(), AtomicU32::new(0));
        let together = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    together.wait();
                    let value = slot.get_or_build(|| {
                        std::thread::yield_now();
                        Ok::<_, ()>(7 + built.fetch_add(1, Ordering::Relaxed))
                    });
                    assert_eq!(value, Ok(&7));
                });
            }
        });
        assert_eq!(built.into_inner(), 1);
    }

    #[test]
    fn a_build_that_failed_or_panicked_leaves_the_slot_to_the_next() {
        let slot = OnceSlot::<u32>::new();
        assert_eq!(slot.get_or_build(|| Err("no")), Err("no"));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            slot.get_or_build(|| -> Result<u32, ()> { panic!("in the build") })
                .copied()
        }));
        assert!(panicked.is_err());
        assert_eq!(slot.get(), None);
        assert_eq!(slot.get_or_build(|| Ok::<_, ()>(3)), Ok(&3));
        assert_eq!(slot.get_or_build(|| Err("not asked")), Ok(&3));
        assert_eq!(slot.into_inner(), Some(3));
    }
}
