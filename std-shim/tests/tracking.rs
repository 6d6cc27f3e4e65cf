//! A program whose global allocator counts by scope, in threads, thread-local destructors, forks
//! and futures. Counting itself allocates nothing.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use larder::{Larder, Scope, ScopeHandle, ScopeReport, Tracking, uncounted};

#[global_allocator]
static HEAP: Tracking<Larder> = Tracking::new(Larder::new());

#[test]
fn collections_are_counted_to_the_byte() {
    let scope = Scope::begin();
    let mut list = Vec::<u64>::with_capacity(100);
    list.extend(0..100);
    let boxed = vec![0_u8; 1 << 20].into_boxed_slice();
    let total = scope.report().total;
    assert_eq!((total.allocations, total.live_bytes), (2, 800 + (1 << 20)));
    list.push(1);
    assert_eq!(
        scope.report().total.live_bytes,
        list.capacity() as u64 * 8 + (1 << 20)
    );
    drop((list, boxed));
    let map: HashMap<u32, String> = (0..1000).map(|n| (n, n.to_string())).collect();
    assert!(scope.report().total.live_blocks == 1001);
    drop(map);
    let total = scope.report().total;
    assert_eq!(
        (total.live_blocks, total.live_bytes, total.foreign_frees),
        (0, 0, 0)
    );
}

#[test]
fn counting_the_heap_or_a_scope_allocates_nothing() {
    drop(vec![1; 10]);
    let scope = Scope::begin();
    let stats = HEAP.inner().stats();
    let report = scope.report();
    HEAP.inner().trim();
    assert_eq!(scope.report().total.allocations, 0);
    assert!(stats.live_bytes > 0);
    let text = uncounted(|| format!("{report}{stats}"));
    assert_eq!(scope.report().total.allocations, 0);
    drop(text);
}

/// Begins a scope and allocates when its thread ends.
struct Last(Option<mpsc::Sender<ScopeHandle>>);

impl Drop for Last {
    fn drop(&mut self) {
        let scope = Scope::begin();
        let text = String::from("written at the end of a thread");
        if let Some(sender) = self.0.take() {
            uncounted(|| sender.send(scope.handle())).unwrap();
        }
        drop(text);
    }
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last(None)) };
}

#[test]
fn scopes_work_in_destructors_of_thread_locals() {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || LAST.with(|last| last.borrow_mut().0 = Some(sender)))
        .join()
        .unwrap();
    let report = receiver.recv().unwrap().report();
    assert_eq!(
        (report.total.allocated_bytes, report.total.live_blocks),
        (30, 0)
    );
    assert!(report.ended);
}

#[test]
fn a_child_of_a_fork_beside_counting_threads_counts_on() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let busy: Vec<_> = (0..2)
        .map(|_| {
            thread::spawn(|| {
                while !STOP.load(Ordering::Relaxed) {
                    let scope = Scope::begin();
                    let blocks: Vec<_> = (1..200).map(|n| vec![0_u8; n]).collect();
                    drop(blocks);
                    assert_eq!(scope.report().total.live_blocks, 0);
                }
            })
        })
        .collect();
    let scope = Scope::begin();
    let mine: Vec<_> = (0..100).map(Box::new).collect();
    for _ in 0..40 {
        // SAFETY: the child allocates, frees and ends.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: has no preconditions. Ends a child that hangs.
                unsafe { libc::alarm(300) };
                let before = scope.report().total.live_blocks;
                let more: Vec<_> = (0..100).map(|n| vec![n; 10]).collect();
                let grown = scope.report().total.live_blocks;
                drop((mine, more));
                let well =
                    grown == before + 101 && scope.report().total.live_blocks == before - 101;
                // SAFETY: ends the child without its parent's exit handlers.
                unsafe { libc::_exit(i32::from(!well)) };
            }
            child => {
                let mut status = 0;
                // SAFETY: our child, and our variable for the status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
    }
    STOP.store(true, Ordering::Relaxed);
    for thread in busy {
        thread.join().unwrap();
    }
}

/// A future that is pending once.
struct Later(bool);

impl Future for Later {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match mem::replace(&mut self.0, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

fn poll(task: &mut Task) -> Poll<()> {
    task.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// A thread with a scope of its own. It polls each task it receives once, and allocates 7 bytes
/// before and after the poll.
struct Poller {
    tasks: mpsc::Sender<Task>,
    polled: mpsc::Receiver<(Task, Poll<()>)>,
    end: JoinHandle<ScopeReport>,
}

fn poller() -> Poller {
    let (tasks, received) = mpsc::channel();
    let (sender, polled) = mpsc::channel();
    let end = thread::spawn(move || {
        let scope = Scope::begin();
        while let Ok(mut task) = uncounted(|| received.recv()) {
            let before = vec![0_u8; 7];
            let state = poll(&mut task);
            drop((before, vec![0_u8; 7]));
            uncounted(|| sender.send((task, state))).unwrap();
        }
        scope.report()
    });
    Poller { tasks, polled, end }
}

/// Allocates `bytes` bytes, frees them, and allocates twice as many, in three polls.
async fn works(bytes: usize) {
    let first = vec![0_u8; bytes];
    Later(false).await;
    drop(first);
    let second = vec![0_u8; 2 * bytes];
    Later(false).await;
    drop(second);
}

#[test]
fn a_future_takes_its_scope_from_thread_to_thread_and_counts_nothing_of_theirs() {
    let around = Scope::begin();
    let futures = [1000, 100].map(|bytes| Scope::around(works(bytes)));
    let scopes = futures.each_ref().map(|future| future.handle());
    let mut tasks = uncounted(|| futures.map(|future| Box::pin(future) as Task));
    let pollers = [poller(), poller()];
    for round in 0..3 {
        // Each task goes to the thread that last polled the other one.
        tasks.reverse();
        for (task, poller) in tasks.into_iter().zip(&pollers) {
            poller.tasks.send(task).unwrap();
        }
        tasks = [0, 1].map(|which| {
            let (task, state) = pollers[which].polled.recv().unwrap();
            assert_eq!(state.is_ready(), round == 2);
            task
        });
        let live = scopes
            .each_ref()
            .map(|scope| scope.report().total.live_bytes);
        assert_eq!(live, [[1000, 100], [2000, 200], [0, 0]][round]);
    }
    drop(tasks);
    for (scope, bytes) in scopes.iter().zip([1000, 100]) {
        let report = scope.report();
        let total = report.total;
        assert_eq!((total.allocations, total.allocated_bytes), (2, 3 * bytes));
        assert_eq!(
            (total.high_water_bytes, total.foreign_frees),
            (2 * bytes, 0)
        );
        assert!(report.ended && !report.cut_short);
    }
    for poller in pollers {
        drop(poller.tasks);
        let total = poller.end.join().unwrap().total;
        assert_eq!((total.allocations, total.allocated_bytes), (6, 42));
    }
    let report = around.report();
    let inside = report.total.allocated_bytes - report.own.allocated_bytes;
    assert_eq!(inside, 3 * 1100, "they were begun in this one");
}

struct LastWords;

impl Drop for LastWords {
    fn drop(&mut self) {
        drop(vec![0_u8; 500]);
    }
}

#[test]
fn a_future_that_is_dropped_before_it_is_ready_counts_to_its_end() {
    let future = Scope::around(async {
        let _last = LastWords;
        let block = vec![0_u8; 1000];
        Later(false).await;
        drop(block);
    });
    let scope = future.handle();
    let mut task: Task = Box::pin(future);
    assert!(poll(&mut task).is_pending());
    assert_eq!(scope.report().total.live_bytes, 1000);
    thread::spawn(move || drop(task)).join().unwrap();
    let report = scope.report();
    assert_eq!(report.total.allocated_bytes, 1500);
    assert_eq!(
        (report.total.live_bytes, report.total.freed_after_end_bytes),
        (0, 0)
    );
    assert!(report.ended && !report.cut_short);
}
