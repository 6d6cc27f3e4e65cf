//! Models `OpenEvent`: the event of a free never completes before the work on the freed block, and every free has an
//! event that is closed or still can be closed.

use larder_core::EventNumber;
use larder_core::sync::OpenEvent;
use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::explore::explore;

/// An item of a stream. Items complete in order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Item {
    /// Work of the thread with this number.
    Work(usize),
    /// A recorded event.
    Mark(u64),
}

/// The interface of a stream's event numbers and their broken twins.
trait Events: Send + Sync + 'static {
    fn new() -> Self;
    fn for_free(&self) -> u64;
    fn has_freed(&self) -> bool;
    /// Closes the open number. `queue_mark` puts its event into the stream.
    fn close(&self, queue_mark: impl FnOnce(u64));
}

impl Events for OpenEvent {
    fn new() -> Self {
        Self::new(EventNumber::new(1))
    }

    fn for_free(&self) -> u64 {
        self.for_free().number()
    }

    fn has_freed(&self) -> bool {
        self.has_freed()
    }

    fn close(&self, queue_mark: impl FnOnce(u64)) {
        queue_mark(self.close().number());
    }
}

struct Stream<E> {
    events: E,
    /// The items, of which the driver accepts one at a time.
    queue: Mutex<Vec<Item>>,
    /// Held by the thread that closes an event.
    turn: Mutex<()>,
}

impl<E: Events> Stream<E> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            events: E::new(),
            queue: Mutex::new(Vec::new()),
            turn: Mutex::new(()),
        })
    }

    /// Queues work and frees its memory. Returns the event of the free.
    fn free(&self, thread: usize) -> u64 {
        self.queue.lock().unwrap().push(Item::Work(thread));
        self.events.for_free()
    }

    /// Closes the event for another stream that needs memory of this one.
    fn close(&self) {
        let _turn = self.turn.lock().unwrap();
        self.events
            .close(|event| self.queue.lock().unwrap().push(Item::Mark(event)));
    }

    /// Closes the event for a thread that is short of memory, if anything was freed.
    fn close_if_freed(&self) {
        if self.events.has_freed() {
            self.close();
        }
    }

    /// Checks that a block freed with `event` is settled only after its work. The first mark of that event or a later
    /// one settles it.
    fn check(&self, thread: usize, event: u64) {
        let queue = self.queue.lock().unwrap();
        let work = queue.iter().position(|item| *item == Item::Work(thread));
        let mark = queue
            .iter()
            .position(|item| matches!(item, Item::Mark(mark) if *mark >= event));
        match mark {
            Some(mark) => assert!(work.unwrap() < mark, "done before its work"),
            None => assert!(self.events.has_freed(), "freed and never closed"),
        }
        let marks = queue.iter().filter_map(|item| match item {
            Item::Mark(event) => Some(*event),
            Item::Work(_) => None,
        });
        assert!(marks.is_sorted_by(|a, b| a < b), "marks out of order");
    }
}

fn one_frees_and_two_close<E: Events>() {
    explore(|| {
        let stream = Stream::<E>::new();
        let (first, second) = (Arc::clone(&stream), Arc::clone(&stream));
        let freeing = thread::spawn(move || first.free(0));
        let closing = thread::spawn(move || second.close());
        stream.close_if_freed();
        let event = freeing.join().unwrap();
        closing.join().unwrap();
        stream.check(0, event);
    });
}

fn two_free_and_one_closes<E: Events>() {
    explore(|| {
        let stream = Stream::<E>::new();
        let (first, second) = (Arc::clone(&stream), Arc::clone(&stream));
        let freeing = thread::spawn(move || first.free(0));
        let closing = thread::spawn(move || {
            second.close();
            second.close_if_freed();
        });
        let mine = stream.free(1);
        let theirs = freeing.join().unwrap();
        closing.join().unwrap();
        stream.check(0, theirs);
        stream.check(1, mine);
    });
}

/// Models repeated frees while another thread closes events: every block's event is closed in the end.
#[test]
fn what_is_freed_between_two_closings_is_closed_by_a_third() {
    explore(|| {
        let stream = Stream::<OpenEvent>::new();
        let other = Arc::clone(&stream);
        let closing = thread::spawn(move || {
            other.close();
            other.close();
        });
        let events = [stream.free(0), stream.free(1)];
        closing.join().unwrap();
        stream.close_if_freed();
        let queue = stream.queue.lock().unwrap().clone();
        for (thread, event) in events.into_iter().enumerate() {
            let marked = |item: &Item| matches!(item, Item::Mark(mark) if *mark >= event);
            assert!(queue.iter().any(marked), "freed and never closed");
            stream.check(thread, event);
        }
    });
}

/// Models a mark that the driver refuses: the event of blocks freed before can still be closed.
#[test]
fn a_refused_mark_leaves_something_to_close() {
    explore(|| {
        let stream = Stream::<OpenEvent>::new();
        let other = Arc::clone(&stream);
        let freeing = thread::spawn(move || other.free(0));
        {
            let _turn = stream.turn.lock().unwrap();
            let _closed = stream.events.close();
            stream.events.reopen();
        }
        let event = freeing.join().unwrap();
        stream.check(0, event);
        stream.close_if_freed();
        let queue = stream.queue.lock().unwrap().clone();
        assert!(queue.iter().any(|item| matches!(item, Item::Mark(_))));
        stream.check(0, event);
    });
}

/// A broken twin; `WRONG` is the break.
struct Broken<const WRONG: u8> {
    open: AtomicU64,
    freed: AtomicU8,
}

/// The mark is queued before the next event is opened.
const MARK_FIRST: u8 = 0;
/// The flag is cleared after the next event is opened.
const FLAG_LAST: u8 = 1;
/// A free reads the flag before the event.
const FLAG_FIRST: u8 = 2;
/// A thread that reads the event may read an older flag.
const RELAXED: u8 = 3;

impl<const WRONG: u8> Events for Broken<WRONG> {
    fn new() -> Self {
        Self {
            open: AtomicU64::new(1),
            freed: AtomicU8::new(0),
        }
    }

    fn for_free(&self) -> u64 {
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

models! {
    what_one_thread_freed_is_done_after_its_work => one_frees_and_two_close::<OpenEvent>();
    what_two_threads_freed_is_done_after_the_work_of_each => two_free_and_one_closes::<OpenEvent>();
    broken_twin_a_mark_before_the_next_event_is_found rejected "done before its work" =>
        one_frees_and_two_close::<Broken<MARK_FIRST>>();
    broken_twin_a_flag_taken_down_behind_the_next_event_is_found rejected "freed and never closed" =>
        one_frees_and_two_close::<Broken<FLAG_LAST>>();
    broken_twin_a_flag_raised_before_the_event_is_read_is_found rejected "freed and never closed" =>
        one_frees_and_two_close::<Broken<FLAG_FIRST>>();
    broken_twin_an_event_read_without_order_is_found rejected "freed and never closed" =>
        two_free_and_one_closes::<Broken<RELAXED>>();
}
