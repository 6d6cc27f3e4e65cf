//! Models `JointBytes`, which counts the bytes in use on two sides: the peak is the largest value that the count had,
//! and clearing the peak loses no change by another thread.

use larder_core::vmem::JointBytes;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// The interface of the count and its broken twins.
trait Joint: Send + Sync + 'static {
    fn new() -> Self;
    fn add(&self, bytes: u64);
    fn take_off(&self, bytes: u64);
    fn clear_peak(&self);
    fn live(&self) -> u64;
    fn peak(&self) -> u64;
}

impl Joint for JointBytes {
    fn new() -> Self {
        Self::new()
    }
    fn add(&self, bytes: u64) {
        self.add(bytes);
    }
    fn take_off(&self, bytes: u64) {
        self.take_off(bytes);
    }
    fn clear_peak(&self) {
        self.clear_peak();
    }
    fn live(&self) -> u64 {
        self.live()
    }
    fn peak(&self) -> u64 {
        self.peak()
    }
}

/// Models two threads that allocate, one of which also frees.
fn two_sides<J: Joint>() {
    loom::model(|| {
        let joint = Arc::new(J::new());
        let other = joint.clone();
        let thread = thread::spawn(move || {
            other.add(1);
            other.take_off(1);
            other.add(4);
        });
        joint.add(2);
        let seen = joint.peak();
        assert!(seen >= 2, "one's own step counts at once");
        thread.join().unwrap();
        assert_eq!(joint.live(), 6);
        assert_eq!(joint.peak(), 6);
    });
}

/// Models an allocation while another thread clears the peak.
fn cleared_meanwhile<J: Joint>() {
    loom::model(|| {
        let joint = Arc::new(J::new());
        joint.add(1);
        let other = joint.clone();
        let thread = thread::spawn(move || other.add(2));
        joint.clear_peak();
        thread.join().unwrap();
        assert_eq!((joint.live(), joint.peak()), (3, 3));
    });
}

/// Models a free while another thread clears the peak, which restarts at the bytes in use before or after the free.
fn freed_meanwhile<J: Joint>() {
    loom::model(|| {
        let joint = Arc::new(J::new());
        joint.add(3);
        let other = joint.clone();
        let thread = thread::spawn(move || other.take_off(2));
        joint.clear_peak();
        thread.join().unwrap();
        assert_eq!(joint.live(), 1);
        assert!(matches!(joint.peak(), 1 | 3), "{}", joint.peak());
    });
}

/// Raises the peak with a load and a store.
struct LooksFirst(AtomicU64, AtomicU64);

impl Joint for LooksFirst {
    fn new() -> Self {
        Self(AtomicU64::new(0), AtomicU64::new(0))
    }
    fn add(&self, bytes: u64) {
        let live = self.0.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.1.load(Ordering::Relaxed) < live {
            self.1.store(live, Ordering::Relaxed);
        }
    }
    fn take_off(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
    fn clear_peak(&self) {
        self.1.store(self.live(), Ordering::Relaxed);
    }
    fn live(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn peak(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }
}

/// Adds to the count, then raises the peak to a value that is read separately.
struct AddsBoth(LooksFirst);

impl Joint for AddsBoth {
    fn new() -> Self {
        Self(LooksFirst::new())
    }
    fn add(&self, bytes: u64) {
        self.0.0.fetch_add(bytes, Ordering::Relaxed);
        // Another thread's free may come in between.
        self.0.1.fetch_max(self.live(), Ordering::Relaxed);
    }
    fn take_off(&self, bytes: u64) {
        self.0.take_off(bytes);
    }
    fn clear_peak(&self) {
        self.0.clear_peak();
    }
    fn live(&self) -> u64 {
        self.0.live()
    }
    fn peak(&self) -> u64 {
        self.0.peak()
    }
}

models! {
    the_peak_is_the_largest_value_of_the_count => two_sides::<JointBytes>();
    clearing_the_peak_loses_no_step_of_another_thread =>
        { cleared_meanwhile::<JointBytes>(); freed_meanwhile::<JointBytes>() };
    a_peak_raised_by_a_look_and_a_store_is_lost rejected "left == right" => two_sides::<LooksFirst>();
    a_peak_cleared_by_a_look_and_a_store_is_lost rejected "left == right" => cleared_meanwhile::<AddsBoth>();
}
