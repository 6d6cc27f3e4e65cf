//! Clocks that are advanced by hand, and waits on them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use larder_control::{Clock, ManualClock, Signal, SystemClock};

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

#[test]
fn events_happen_in_order_at_their_moments_even_those_that_events_add() {
    let clock = Arc::new(ManualClock::new());
    let log = Arc::new(Mutex::new(Vec::new()));
    for time in [30, 10, 20] {
        let (own, log) = (Arc::clone(&clock), Arc::clone(&log));
        clock.at(ms(time), move || {
            log.lock().unwrap().push((time, own.now()));
            if time == 10 {
                let inner = Arc::clone(&own);
                own.at(ms(15), move || log.lock().unwrap().push((15, inner.now())));
            }
        });
    }
    clock.sleep(ms(20));
    assert_eq!(
        *log.lock().unwrap(),
        [(10, ms(10)), (15, ms(15)), (20, ms(20))]
    );
    clock.advance(ms(9));
    assert_eq!(log.lock().unwrap().len(), 3);
    clock.advance(ms(1));
    assert_eq!(log.lock().unwrap().len(), 4);
    assert_eq!((clock.now(), clock.slept()), (ms(30), ms(20)));
}

#[test]
fn a_wait_ends_at_its_moment_or_with_the_signal() {
    let clock = ManualClock::new();
    let signal = Arc::new(Signal::new());
    assert!(!clock.wait(Some(ms(10)), &signal, 0));
    assert_eq!(clock.now(), ms(10));
    // A wait for a time in the past does not move the clock.
    assert!(!clock.wait(Some(ms(5)), &signal, 0));
    assert_eq!(clock.now(), ms(10));
    let raised = Arc::clone(&signal);
    clock.at(ms(12), move || raised.raise());
    assert!(clock.wait(Some(ms(20)), &signal, 0));
    assert_eq!(clock.now(), ms(12));
    // A signal that was raised before the wait is not missed.
    assert!(clock.wait(None, &signal, 0));
    let raised = Arc::clone(&signal);
    clock.at(ms(50), move || raised.raise());
    assert!(clock.wait(None, &signal, 1));
    assert_eq!((clock.now(), clock.slept()), (ms(50), ms(50)));
}

#[test]
fn a_wait_without_an_end_is_ended_by_another_thread() {
    let clocks: [Arc<dyn Clock>; 2] = [Arc::new(ManualClock::new()), Arc::new(SystemClock::new())];
    for clock in clocks {
        let signal = Signal::new();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| clock.wait(None, &signal, 0));
            signal.raise();
            assert!(waiter.join().unwrap());
        });
    }
}

/// A clock without its own `wait`: only `sleep` advances it.
#[derive(Debug, Default)]
struct Plain(AtomicU64);

impl Clock for Plain {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.0.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }
}

#[test]
fn a_clock_that_does_not_say_how_to_wait_sleeps_and_looks() {
    let (clock, signal) = (Plain::default(), Signal::new());
    assert!(!clock.wait(Some(Duration::from_micros(2500)), &signal, 0));
    assert_eq!(clock.now(), Duration::from_micros(2500));
    signal.raise();
    assert!(clock.wait(None, &signal, 0));
    assert_eq!(clock.now(), Duration::from_micros(2500));
}
