//! Thread exit: destructors of every kind that use the heap, and heaps that later threads adopt.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, OnceLock, mpsc};
use std::thread;

use crate::HEAP;
use crate::common::{Held, KIB, MIB, Random};
use crate::known::{self, Bare, SIZES, exercise, free, make};
use crate::runner::Case;
use crate::starts::{OLD_KEY, OLD_KEY_ACTS};

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "ten thousand threads in turn share one heap and its memory",
        many_in_turn,
    ),
    Case::new(
        "two hundred threads at once leave heaps that the next two hundred use",
        many_at_once,
    ),
    Case::new(
        "thread-local values that go in any order allocate and free",
        values_go_in_any_order,
    ),
    Case::new(
        "a thread may first allocate while its values go",
        first_use_in_a_destructor,
    ),
    Case::new(
        "destructors of a key older than the heap's allocate and free",
        old_key,
    ),
    Case::new(
        "destructors of a key younger than the heap's allocate and free",
        young_key,
    ),
    Case::new(
        "destructors that come back as often as they may allocate each time",
        key_comes_back,
    ),
    Case::new(
        "a thread that never allocates frees what others gave it",
        frees_only,
    ),
    Case::new(
        "all blocks of an ended thread can be freed by another",
        frees_a_dead_threads_blocks,
    ),
];

/// Returns the live bytes and the number of heaps, which are exact while one thread runs.
fn numbers() -> (u64, u64) {
    known::settle();
    let stats = HEAP.stats();
    (stats.live_bytes, stats.heaps)
}

/// Checks that repeating `act` leaves no more live bytes and heaps than the first time.
fn leaves_nothing(mut act: impl FnMut()) {
    act();
    let first = numbers();
    for _ in 0..50 {
        act();
    }
    assert_eq!(numbers(), first);
}

fn many_in_turn() {
    let mut committed = 0;
    for number in 0..10_000 {
        thread::spawn(move || {
            let mut random = Random::new(number + 1);
            let size = random.next(if number % 50 == 0 { MIB } else { 20 * KIB }) + 1;
            free(make(size), size);
            drop((0..20).map(|count| vec![number; count]).collect::<Vec<_>>());
        })
        .join()
        .unwrap();
        let stats = HEAP.stats();
        assert_eq!(
            stats.heaps, 2,
            "one for the main thread, one for the others"
        );
        if number == 2000 {
            committed = stats.committed_bytes;
        }
    }
    let stats = HEAP.stats();
    assert!(
        stats.committed_bytes <= 2 * committed,
        "{committed}: {stats:?}"
    );
}

fn many_at_once() {
    const THREADS: usize = 200;
    let round = |seed: usize| {
        let all = Arc::new(Barrier::new(THREADS));
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let all = Arc::clone(&all);
                thread::spawn(move || {
                    let mut random = Random::new((seed * THREADS + number) as u64 + 1);
                    let held: Vec<Held> = (0..50).map(|_| Held::random(&mut random)).collect();
                    // No thread goes on before all of them hold blocks.
                    all.wait();
                    drop(held);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        HEAP.stats()
    };
    known::settle();
    let before = HEAP.stats();
    let first = round(1);
    assert_eq!(first.heaps as usize, THREADS + 1);
    for seed in 2..6 {
        assert_eq!(round(seed).heaps, first.heaps);
    }
    assert!(HEAP.stats().committed_bytes <= 2 * first.committed_bytes);
    known::settle();
    let after = HEAP.stats();
    assert!(
        after.live_bytes < before.live_bytes + 64 * KIB as u64,
        "{before:?}: {after:?}"
    );
    assert!(
        after.span_bytes < before.span_bytes + MIB as u64,
        "{before:?}: {after:?}"
    );
}

/// A value that, when dropped, frees the blocks it was given, and allocates.
struct Goes {
    given: RefCell<Vec<(usize, usize)>>,
}

impl Drop for Goes {
    fn drop(&mut self) {
        for (block, size) in self.given.take() {
            free(std::ptr::with_exposed_provenance_mut(block), size);
        }
        exercise();
        GONE.fetch_add(1, Ordering::Relaxed);
    }
}

static GONE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static FIRST: Goes = const { Goes { given: RefCell::new(Vec::new()) } };
    static SECOND: Goes = const { Goes { given: RefCell::new(Vec::new()) } };
    static THIRD: Goes = const { Goes { given: RefCell::new(Vec::new()) } };
}

fn give(to: &Goes) {
    let given = SIZES.map(|size| (make(size).expose_provenance(), size));
    to.given.borrow_mut().extend(given);
}

fn values_go_in_any_order() {
    let orders = [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]];
    leaves_nothing(|| {
        for order in orders {
            let run = move || {
                for which in order {
                    [&FIRST, &SECOND, &THIRD][which].with(give);
                }
            };
            thread::spawn(run).join().unwrap();
        }
    });
    assert_eq!(GONE.load(Ordering::Relaxed), 51 * 12);
}

extern "C" fn uses_a_value_only(_: *mut libc::c_void) -> *mut libc::c_void {
    // The thread has not allocated yet; the value's destructor will.
    FIRST.with(|_| ());
    std::ptr::null_mut()
}

fn first_use_in_a_destructor() {
    leaves_nothing(|| Bare::spawn(uses_a_value_only, std::ptr::null_mut()).join());
    assert_eq!(GONE.load(Ordering::Relaxed), 51);
}

/// A key's destructor that frees its value, a block, and allocates.
fn frees_and_allocates(value: *mut libc::c_void) {
    free(value.cast(), 100);
    exercise();
    GONE.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn frees_and_allocates_for_c(value: *mut libc::c_void) {
    frees_and_allocates(value);
}

fn set(key: libc::pthread_key_t, value: *mut u8) {
    // SAFETY: the callers' keys exist.
    assert_eq!(unsafe { libc::pthread_setspecific(key, value.cast()) }, 0);
}

fn old_key() {
    OLD_KEY_ACTS.store(frees_and_allocates as *mut (), Ordering::Relaxed);
    let key = *OLD_KEY.get().unwrap();
    leaves_nothing(|| thread::spawn(move || set(key, make(100))).join().unwrap());
    assert_eq!(GONE.load(Ordering::Relaxed), 51);
}

fn young_key() {
    let mut key = 0;
    // SAFETY: our variable for the key.
    let result = unsafe { libc::pthread_key_create(&mut key, Some(frees_and_allocates_for_c)) };
    assert_eq!(result, 0);
    leaves_nothing(|| thread::spawn(move || set(key, make(100))).join().unwrap());
    assert_eq!(GONE.load(Ordering::Relaxed), 51);
}

/// Rounds in which the system calls destructors that set their value again (the POSIX minimum).
const ROUNDS: u32 = 4;

/// The key of [`comes_back`].
static YOUNG_KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();

/// A destructor that sets its value again, so that the system calls it in every round.
extern "C" fn comes_back(value: *mut libc::c_void) {
    free(value.cast(), 100);
    exercise();
    if GONE.fetch_add(1, Ordering::Relaxed) % ROUNDS < ROUNDS - 1 {
        set(*YOUNG_KEY.get().unwrap(), make(100));
    }
}

/// The key is younger than the heap's, so in every round, even the last, its destructor runs after
/// the heap's own.
fn key_comes_back() {
    let mut key = 0;
    // SAFETY: our variable for the key.
    let result = unsafe { libc::pthread_key_create(&mut key, Some(comes_back)) };
    assert_eq!(result, 0);
    YOUNG_KEY.set(key).unwrap();
    leaves_nothing(|| thread::spawn(move || set(key, make(100))).join().unwrap());
    assert_eq!(GONE.load(Ordering::Relaxed), 51 * ROUNDS);
}

extern "C" fn frees_all(blocks: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the case passes such an array, and waits for the thread.
    let blocks: &[*mut u8; SIZES.len()] = unsafe { &*blocks.cast() };
    for (&block, size) in blocks.iter().zip(SIZES) {
        free(block, size);
    }
    std::ptr::null_mut()
}

fn frees_only() {
    leaves_nothing(|| {
        let mut blocks = SIZES.map(make);
        Bare::spawn(frees_all, blocks.as_mut_ptr().cast()).join();
    });
}

fn frees_a_dead_threads_blocks() {
    leaves_nothing(|| {
        let (sender, receiver) = mpsc::channel::<Vec<Held>>();
        let maker = thread::spawn(move || {
            let mut random = Random::new(3);
            sender
                .send((0..500).map(|_| Held::random(&mut random)).collect())
                .unwrap();
        });
        maker.join().unwrap();
        let held = receiver.recv().unwrap();
        let freer = thread::spawn(move || drop(held));
        freer.join().unwrap();
    });
}
