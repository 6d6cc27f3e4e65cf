//! Forks of a process whose other threads are anywhere inside the heap.
//!
//! A child has only the forking thread. It must be able to use the heap at once, to free blocks of
//! the missing threads, and to start threads of its own, which adopt the missing threads' heaps. A
//! child that hangs is ended by its alarm, which its parent detects.

use std::panic;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::HEAP;
use crate::common::{KIB, Random, rounds};
use crate::known::{Bare, SIZES, exercise, free, make};
use crate::runner::{Case, limit_time};

pub(crate) const CASES: &[Case] = &[
    Case::new("children of a busy process use the heap", || {
        forks(3, 200, live_in_a_child);
    }),
    Case::new(
        "children of a process whose threads allocate and free use the heap",
        || forks(3, 1000, live_shortly),
    ),
    Case::new(
        "children of a process with many more threads than processors use the heap",
        || {
            // Most of the threads have secondary heaps.
            let processors = thread::available_parallelism().map_or(1, usize::from);
            forks(10 * processors as u64, 60, live_in_a_child);
        },
    ),
    Case::new(
        "children forked by two other threads at once use the heap",
        forks_from_two_threads,
    ),
    Case::new("a thread that has not allocated forks", fresh_thread_forks),
    Case::new("children of children use the heap", grandchildren),
    Case::new(
        "a child forked while memory is trimmed uses the heap",
        forks_while_trimming,
    ),
    Case::new(
        "a child has every free block that its parent's threads kept",
        orphans_keep_nothing,
    ),
    Case::new("a thread forks while it ends", forks_in_a_destructor),
];

const SHELF: usize = 300;

/// Blocks of all threads. Whichever thread takes a block off the shelf owns it.
static BLOCKS: [AtomicPtr<u8>; SHELF] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SHELF];
static STOP: AtomicBool = AtomicBool::new(false);
static ROUNDS: AtomicUsize = AtomicUsize::new(0);

fn size_at(place: usize) -> usize {
    match place % 30 {
        0 => 150 * KIB + place,
        1..4 => place * 300 + 1,
        few => few * 12,
    }
}

fn clear(place: usize) {
    let old = BLOCKS[place].swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !old.is_null() {
        free(old, size_at(place));
    }
}

/// Puts new blocks on the shelf, and frees those that it finds there, until [`STOP`] is set.
fn be_busy(seed: u64) {
    let mut random = Random::new(seed);
    while !STOP.load(Ordering::Relaxed) {
        let place = random.next(SHELF);
        let size = size_at(place);
        let old = BLOCKS[place].swap(make(size), Ordering::AcqRel);
        if !old.is_null() {
            free(old, size);
        }
        drop(
            (0..random.next(40))
                .map(|count| vec![seed; count])
                .collect::<Vec<_>>(),
        );
        ROUNDS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs `act` while other threads are busy; some of them start and end meanwhile.
fn beside_busy_threads(act: impl FnOnce()) {
    beside_threads(3, act);
}

fn beside_threads(threads: u64, act: impl FnOnce()) {
    thread::scope(|scope| {
        let mut busy: Vec<_> = (1..=threads)
            .map(|seed| scope.spawn(move || be_busy(seed)))
            .collect();
        busy.push(scope.spawn(|| {
            while !STOP.load(Ordering::Relaxed) {
                thread::spawn(exercise).join().unwrap();
                thread::sleep(Duration::from_micros(200));
            }
        }));
        while ROUNDS.load(Ordering::Relaxed) < 2000 {
            thread::sleep(Duration::from_millis(1));
        }
        let result = panic::catch_unwind(panic::AssertUnwindSafe(act));
        STOP.store(true, Ordering::Relaxed);
        result.unwrap();
    });
}

/// Forks, runs `act` in the child, and checks that the child succeeds.
pub(crate) fn in_a_child(act: impl FnOnce()) {
    // SAFETY: the code that the child runs is under test.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork"),
        0 => {
            limit_time(300);
            let result = panic::catch_unwind(panic::AssertUnwindSafe(act));
            // SAFETY: ends the child without its parent's exit handlers.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        child => {
            let mut status = 0;
            // SAFETY: our child, and our variable for the status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(
                libc::WIFEXITED(status),
                "ended by signal {}",
                libc::WTERMSIG(status)
            );
            assert_eq!(libc::WEXITSTATUS(status), 0);
        }
    }
}

fn live_in_a_child() {
    exercise();
    let heaps = HEAP.stats().heaps;
    // Allocated by threads that do not exist in the child.
    for place in 0..SHELF {
        clear(place);
    }
    let threads: Vec<_> = (0..2).map(|_| thread::spawn(exercise)).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    // The threads adopted heaps that the parent's threads left parked.
    assert_eq!(HEAP.stats().heaps, heaps);
    HEAP.trim();
    exercise();
}

/// Uses the heap only briefly, so that a test can fork at many different moments.
fn live_shortly() {
    let blocks = SIZES.map(|size| (make(size), size));
    for place in (0..SHELF).step_by(7) {
        clear(place);
    }
    for (block, size) in blocks {
        free(block, size);
    }
}

/// Forks while `threads` threads are busy, `times` times in the long form.
fn forks(threads: u64, times: usize, live: fn()) {
    beside_threads(threads, || {
        for _ in 0..rounds(times) {
            in_a_child(live);
        }
    });
}

fn forks_from_two_threads() {
    beside_busy_threads(|| {
        let fork = || (0..rounds(50)).for_each(|_| in_a_child(live_in_a_child));
        let forking = [(); 2].map(|()| thread::spawn(fork));
        for thread in forking {
            thread.join().unwrap();
        }
    });
}

extern "C" fn forks_first(_: *mut libc::c_void) -> *mut libc::c_void {
    in_a_child(live_in_a_child);
    exercise();
    std::ptr::null_mut()
}

fn fresh_thread_forks() {
    beside_busy_threads(|| {
        for _ in 0..rounds(30) {
            Bare::spawn(forks_first, std::ptr::null_mut()).join();
        }
    });
}

fn grandchildren() {
    beside_busy_threads(|| {
        for _ in 0..rounds(15) {
            in_a_child(|| {
                exercise();
                STOP.store(false, Ordering::Relaxed);
                // The child's own threads are busy when it forks.
                let threads: Vec<_> = (1..3)
                    .map(|seed| thread::spawn(move || be_busy(seed)))
                    .collect();
                for _ in 0..3 {
                    in_a_child(live_in_a_child);
                }
                STOP.store(true, Ordering::Relaxed);
                for thread in threads {
                    thread.join().unwrap();
                }
                live_in_a_child();
            });
        }
    });
}

fn forks_while_trimming() {
    beside_busy_threads(|| {
        thread::scope(|scope| {
            scope.spawn(|| {
                while !STOP.load(Ordering::Relaxed) {
                    HEAP.trim();
                    drop(vec![1u8; 3 << 20]);
                }
            });
            for _ in 0..rounds(60) {
                in_a_child(live_in_a_child);
            }
            STOP.store(true, Ordering::Relaxed);
        });
    });
}

/// The parent's threads wait with blocks in their caches; in the child, those caches are empty.
fn orphans_keep_nothing() {
    const THREADS: usize = 4;
    let filled = Arc::new(Barrier::new(THREADS + 1));
    let done = Arc::new(Barrier::new(THREADS + 1));
    let before = HEAP.stats().live_bytes;
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (filled, done) = (Arc::clone(&filled), Arc::clone(&done));
            thread::spawn(move || {
                exercise();
                filled.wait();
                done.wait();
            })
        })
        .collect();
    filled.wait();
    let kept = HEAP.stats().live_bytes - before;
    assert!(kept > 400 * KIB as u64, "the threads keep little: {kept}");
    in_a_child(|| {
        let kept = HEAP.stats().live_bytes - before;
        assert!(kept < 40 * KIB as u64, "still kept: {kept}");
        live_in_a_child();
        // The caches are still intact.
        HEAP.trim();
        let kept = HEAP.stats().live_bytes - before;
        assert!(kept < 40 * KIB as u64, "lost: {kept}");
    });
    done.wait();
    for thread in threads {
        thread.join().unwrap();
    }
}

struct Forks;

impl Drop for Forks {
    fn drop(&mut self) {
        in_a_child(live_in_a_child);
    }
}

fn forks_in_a_destructor() {
    thread_local!(static FORKS: Forks = const { Forks });
    beside_busy_threads(|| {
        for _ in 0..rounds(20) {
            thread::spawn(|| FORKS.with(|_| exercise())).join().unwrap();
        }
    });
}
