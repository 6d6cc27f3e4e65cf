//! A program whose global allocator counts scopes: threads, thread-local destructors, forks, and
//! what the heap itself must not allocate.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use larder::{Larder, Scope, ScopeHandle, Tracking, uncounted};

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

#[test]
fn blocks_of_a_scope_may_be_freed_anywhere() {
    let (sender, receiver) = mpsc::channel::<Vec<String>>();
    let freeing =
        thread::spawn(move || receiver.into_iter().map(|batch| batch.len()).sum::<usize>());
    let scope = Scope::begin();
    let handle = scope.handle();
    for _ in 0..200 {
        let batch = (0..100).map(|n| format!("some text, number {n}")).collect();
        sender.send(batch).unwrap();
    }
    drop(scope);
    drop(sender);
    assert_eq!(freeing.join().unwrap(), 20_000);
    let report = handle.report();
    assert!(report.ended && !report.cut_short && report.total.allocations > 20_000);
    assert_eq!((report.total.live_blocks, report.total.live_bytes), (0, 0));
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
                // SAFETY: a child that hangs ends itself.
                unsafe { libc::alarm(20) };
                let before = scope.report().total.live_blocks;
                let more: Vec<_> = (0..100).map(|n| vec![n; 10]).collect();
                let grown = scope.report().total.live_blocks;
                drop((mine, more));
                let well =
                    grown == before + 101 && scope.report().total.live_blocks == before - 101;
                // SAFETY: ends the child without the handlers of its parent.
                unsafe { libc::_exit(i32::from(!well)) };
            }
            child => {
                let mut status = 0;
                // SAFETY: our child; the status goes into a variable of ours.
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
