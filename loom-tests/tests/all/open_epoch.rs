//! The open epoch of a lane: a freed block's epoch is never done while the block's work is queued behind
//! the epoch's mark, and nothing that was freed stays without a mark to come.

use larder_core::Epoch;
use larder_core::sync::OpenEpoch;
use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Runs `model` through every interleaving with at most three preemptions.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// What stands in a stream, in the order in which it is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Item {
    /// Of the thread with this number.
    Work(usize),
    /// The event of an epoch.
    Mark(u64),
}

/// A lane's epoch, as the model wants it and as the broken twins have it.
trait Epochs: Send + Sync + 'static {
    fn new() -> Self;
    fn stamp(&self) -> u64;
    fn has_freed(&self) -> bool;
    /// Ends the open epoch; `queue_mark` puts its event into the stream.
    fn close(&self, queue_mark: impl FnOnce(u64));
}

impl Epochs for OpenEpoch {
    fn new() -> Self {
        Self::new(Epoch::new(1))
    }

    fn stamp(&self) -> u64 {
        self.stamp().number()
    }

    fn has_freed(&self) -> bool {
        self.has_freed()
    }

    fn close(&self, queue_mark: impl FnOnce(u64)) {
        queue_mark(self.close().number());
    }
}

struct Lane<E> {
    epochs: E,
    /// The driver takes one thing at a time.
    stream: Mutex<Vec<Item>>,
    /// Closing threads take turns.
    turn: Mutex<()>,
}

impl<E: Epochs> Lane<E> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            epochs: E::new(),
            stream: Mutex::new(Vec::new()),
            turn: Mutex::new(()),
        })
    }

    /// Queues work, and frees what it uses: with this epoch.
    fn free(&self, thread: usize) -> u64 {
        self.stream.lock().unwrap().push(Item::Work(thread));
        self.epochs.stamp()
    }

    /// As another stream does that wants memory of this one.
    fn close(&self) {
        let _turn = self.turn.lock().unwrap();
        self.epochs
            .close(|epoch| self.stream.lock().unwrap().push(Item::Mark(epoch)));
    }

    /// As a thread does that is short of memory.
    fn close_if_freed(&self) {
        if self.epochs.has_freed() {
            self.close();
        }
    }

    /// A block that was freed with `epoch` is counted done with the first mark of that or a later one.
    fn check(&self, thread: usize, epoch: u64) {
        let stream = self.stream.lock().unwrap();
        let work = stream.iter().position(|item| *item == Item::Work(thread));
        let mark = stream
            .iter()
            .position(|item| matches!(item, Item::Mark(mark) if *mark >= epoch));
        match mark {
            Some(mark) => assert!(work.unwrap() < mark, "done before its work"),
            None => assert!(self.epochs.has_freed(), "freed and never closed"),
        }
        let marks = stream.iter().filter_map(|item| match item {
            Item::Mark(epoch) => Some(*epoch),
            Item::Work(_) => None,
        });
        assert!(marks.is_sorted_by(|a, b| a < b), "marks out of order");
    }
}

fn one_frees_and_two_close<E: Epochs>() {
    explore(|| {
        let lane = Lane::<E>::new();
        let (first, second) = (Arc::clone(&lane), Arc::clone(&lane));
        let freeing = thread::spawn(move || first.free(0));
        let closing = thread::spawn(move || second.close());
        lane.close_if_freed();
        let epoch = freeing.join().unwrap();
        closing.join().unwrap();
        lane.check(0, epoch);
    });
}

fn two_free_and_one_closes<E: Epochs>() {
    explore(|| {
        let lane = Lane::<E>::new();
        let (first, second) = (Arc::clone(&lane), Arc::clone(&lane));
        let freeing = thread::spawn(move || first.free(0));
        let closing = thread::spawn(move || {
            second.close();
            second.close_if_freed();
        });
        let mine = lane.free(1);
        let theirs = freeing.join().unwrap();
        closing.join().unwrap();
        lane.check(0, theirs);
        lane.check(1, mine);
    });
}

#[test]
fn what_one_thread_freed_is_done_after_its_work() {
    one_frees_and_two_close::<OpenEpoch>();
}

#[test]
fn what_two_threads_freed_is_done_after_the_work_of_each() {
    two_free_and_one_closes::<OpenEpoch>();
}

/// A thread frees again and again while another closes: every block is closed sooner or later.
#[test]
fn what_is_freed_between_two_closings_is_closed_by_a_third() {
    explore(|| {
        let lane = Lane::<OpenEpoch>::new();
        let other = Arc::clone(&lane);
        let closing = thread::spawn(move || {
            other.close();
            other.close();
        });
        let epochs = [lane.free(0), lane.free(1)];
        closing.join().unwrap();
        lane.close_if_freed();
        let stream = lane.stream.lock().unwrap().clone();
        for (thread, epoch) in epochs.into_iter().enumerate() {
            let marked = |item: &Item| matches!(item, Item::Mark(mark) if *mark >= epoch);
            assert!(stream.iter().any(marked), "freed and never closed");
            lane.check(thread, epoch);
        }
    });
}

/// The driver refuses a mark: what was freed before is still there to be closed.
#[test]
fn a_refused_mark_leaves_something_to_close() {
    explore(|| {
        let lane = Lane::<OpenEpoch>::new();
        let other = Arc::clone(&lane);
        let freeing = thread::spawn(move || other.free(0));
        {
            let _turn = lane.turn.lock().unwrap();
            let _closed = lane.epochs.close();
            lane.epochs.reopen();
        }
        let epoch = freeing.join().unwrap();
        lane.check(0, epoch);
        lane.close_if_freed();
        let stream = lane.stream.lock().unwrap().clone();
        assert!(stream.iter().any(|item| matches!(item, Item::Mark(_))));
        lane.check(0, epoch);
    });
}

/// The broken twins: their number, and what each does wrong.
struct Broken<const WRONG: u8> {
    open: AtomicU64,
    freed: AtomicU8,
}

/// The mark is queued, then the next epoch is opened.
const MARK_FIRST: u8 = 0;
/// The next epoch is opened, then the flag is taken down.
const FLAG_LAST: u8 = 1;
/// The flag is looked at before the epoch.
const FLAG_FIRST: u8 = 2;
/// Whoever reads the epoch may see an older flag.
const RELAXED: u8 = 3;

impl<const WRONG: u8> Epochs for Broken<WRONG> {
    fn new() -> Self {
        Self {
            open: AtomicU64::new(1),
            freed: AtomicU8::new(0),
        }
    }

    fn stamp(&self) -> u64 {
        let raise = || {
            if self.freed.load(Ordering::Relaxed) == 0 {
                self.freed.store(1, Ordering::Relaxed);
            }
        };
        if WRONG == FLAG_FIRST {
            raise();
            return self.open.load(Ordering::Acquire);
        }
        let order = if WRONG == RELAXED {
            Ordering::Relaxed
        } else {
            Ordering::Acquire
        };
        let open = self.open.load(order);
        raise();
        open
    }

    fn has_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed) == 1
    }

    fn close(&self, queue_mark: impl FnOnce(u64)) {
        let closed = self.open.load(Ordering::Relaxed);
        if WRONG == MARK_FIRST {
            queue_mark(closed);
            self.freed.store(0, Ordering::Relaxed);
            self.open.store(closed + 1, Ordering::Release);
            return;
        }
        if WRONG == FLAG_LAST {
            self.open.store(closed + 1, Ordering::Release);
            self.freed.store(0, Ordering::Relaxed);
        } else {
            self.freed.store(0, Ordering::Relaxed);
            self.open.store(closed + 1, Ordering::Release);
        }
        queue_mark(closed);
    }
}

#[test]
#[should_panic(expected = "done before its work")]
fn broken_twin_a_mark_before_the_next_epoch_is_found() {
    one_frees_and_two_close::<Broken<MARK_FIRST>>();
}

#[test]
#[should_panic(expected = "freed and never closed")]
fn broken_twin_a_flag_taken_down_behind_the_next_epoch_is_found() {
    one_frees_and_two_close::<Broken<FLAG_LAST>>();
}

#[test]
#[should_panic(expected = "freed and never closed")]
fn broken_twin_a_flag_raised_before_the_epoch_is_read_is_found() {
    one_frees_and_two_close::<Broken<FLAG_FIRST>>();
}

#[test]
#[should_panic(expected = "freed and never closed")]
fn broken_twin_an_epoch_read_without_order_is_found() {
    two_free_and_one_closes::<Broken<RELAXED>>();
}
