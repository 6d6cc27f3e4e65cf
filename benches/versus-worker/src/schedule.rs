//! Frames on a fixed schedule, and the time of each.
//!
//! A frame's time is the time from its first allocation to its last free. If a frame came due while the previous
//! frame was still running, its time begins when it was due. If it could start only when the next frame was
//! due, too, it is missed, and its time is its wait. So a stall counts for every frame that it delays. The
//! time that the system takes to wake the thread counts for no frame.

use std::time::{Duration, Instant};

use crate::clock::Frames;

/// The time from one frame to the next.
pub const PERIOD: Duration = Duration::from_millis(3);

/// Returns the time at which a frame is due. The first frame has number 1.
pub fn due(number: usize) -> Duration {
    PERIOD * u32::try_from(number).unwrap_or(u32::MAX)
}

/// A clock that starts with the schedule.
pub trait Time {
    fn now(&self) -> Duration;
    fn sleep(&self, length: Duration);
}

impl Time for Instant {
    fn now(&self) -> Duration {
        self.elapsed()
    }

    fn sleep(&self, length: Duration) {
        std::thread::sleep(length);
    }
}

/// The times of a schedule's frames.
pub struct Times {
    planned: usize,
    done: usize,
    times: Vec<Duration>,
}

impl Times {
    pub fn new(planned: usize) -> Self {
        Self {
            planned,
            done: 0,
            times: Vec::with_capacity(planned),
        }
    }

    /// Runs the schedule. Only the frames allocate.
    pub fn measure(&mut self, time: &impl Time, mut frame: impl FnMut()) {
        let mut began = Duration::ZERO;
        for number in 1..=self.planned {
            let due = due(number);
            let now = time.now();
            let waited = match due < began {
                true => Duration::ZERO, // the system was late, not a frame
                false => now.saturating_sub(due),
            };
            if waited >= PERIOD {
                self.times.push(waited);
                continue;
            }
            time.sleep(due.saturating_sub(now));
            began = time.now();
            frame();
            self.times.push(waited + (time.now() - began));
            self.done += 1;
        }
    }

    /// Returns the number of frames that did not run.
    pub fn missed(&self) -> usize {
        self.planned - self.done
    }

    pub fn figures(self) -> Frames {
        Frames::new(self.done, self.times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// A clock on which only sleeps and frames take time, in microseconds.
    struct Fake {
        now: Cell<u64>,
        /// Delay of the end of each sleep, in order; 0 for further sleeps.
        late: RefCell<Vec<u64>>,
    }

    impl Time for Fake {
        fn now(&self) -> Duration {
            Duration::from_micros(self.now.get())
        }

        fn sleep(&self, length: Duration) {
            if length.is_zero() {
                return;
            }
            let late = self.late.borrow_mut().pop().unwrap_or(0);
            let length = u64::try_from(length.as_micros()).unwrap();
            self.now.set(self.now.get() + length + late);
        }
    }

    /// Returns the number of frames that ran, and the times of all frames, for frames that take `frames`.
    fn times(frames: &[u64], planned: usize, late: &[u64]) -> (usize, Vec<u64>) {
        let fake = Fake {
            now: Cell::new(0),
            late: RefCell::new(late.iter().rev().copied().collect()),
        };
        let mut lengths = frames.iter();
        let mut times = Times::new(planned);
        times.measure(&fake, || {
            let length = lengths.next().copied().unwrap_or(1);
            fake.now.set(fake.now.get() + length);
        });
        assert_eq!(times.missed(), planned - times.done);
        let micros = times.times.iter().map(Duration::as_micros);
        let micros = micros.map(|time| u64::try_from(time).unwrap());
        (times.done, micros.collect())
    }

    #[test]
    fn frames_that_keep_their_time_are_timed_one_by_one() {
        assert_eq!(times(&[10, 20, 30], 3, &[]), (3, vec![10, 20, 30]));
    }

    #[test]
    fn a_stall_counts_for_every_frame_that_it_spoils() {
        // The first frame is due at 3000 and ends at 13500. Those due at 6000 and 9000 are missed, and that of
        // 12000 is late.
        let (done, times) = times(&[10_500, 7, 8], 5, &[]);
        assert_eq!(done, 3);
        assert_eq!(times, [10_500, 7_500, 4_500, 1_507, 8]);
    }

    #[test]
    fn a_late_wake_up_counts_for_no_frame() {
        // The thread wakes at 10000 for the frame of 3000; those of 6000 and 9000 follow immediately.
        let (done, times) = times(&[5, 6, 7, 8], 4, &[7_000]);
        assert_eq!((done, times), (4, vec![5, 6, 7, 8]));
    }

    #[test]
    fn the_end_is_where_the_schedule_says_however_long_a_frame_takes() {
        let (done, times) = times(&[1_000_000], 4, &[]);
        assert_eq!(done, 1);
        assert_eq!(times, [1_000_000, 997_000, 994_000, 991_000]);
    }
}
