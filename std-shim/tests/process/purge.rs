//! Idle memory is released without further calls. Each case waits until the memory is gone; none
//! asserts how long that takes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::HEAP;
use crate::common::{KIB, MIB, Random, churn, resident_bytes, rounds};
use crate::forks::in_a_child;
use crate::known::{more_than, wait_until};
use crate::runner::{Case, Variables};

const SOON: &[Variables] = &[&[("LARDER_PURGE_AFTER", "200")]];

pub(crate) const CASES: &[Case] = &[
    Case::new("large blocks go back", || freed_here(&[MIB, 300 * KIB])).with(SOON),
    Case::new("small blocks go back", || {
        freed_here(&[800, 3000, 9000, 100 * KIB]);
    })
    .with(SOON),
    Case::new(
        "blocks of 64 bytes go back while their thread lives",
        tiny_blocks,
    )
    .with(SOON),
    Case::new("blocks that other threads freed go back", freed_elsewhere).with(SOON),
    Case::new("blocks of threads that ended go back", freed_by_the_dead).with(SOON),
    Case::new("blocks go back in the child of a fork", in_a_fork).with(SOON),
    Case::new("a process forks while memory goes back", forks_meanwhile).with(SOON),
    Case::new("the thread ends when nothing is idle", ends_and_comes_again).with(SOON),
    Case::new("a process ends beside the thread", || {
        drop(peak(&[MIB]));
        assert!(HEAP.stats().retained_bytes > 0);
    })
    .with(SOON),
    Case::new("signals do not reach the thread", signals_pass_by).with(SOON),
    Case::new(
        "memory goes back beside threads that allocate",
        beside_busy_threads,
    )
    .with(SOON),
    Case::new(
        "memory goes back while the program goes on and no thread is started",
        without_a_thread,
    )
    .with(&[&[
        ("LARDER_PURGE_AFTER", "100"),
        ("LARDER_BACKGROUND_PURGE", "no"),
    ]]),
    Case::new(
        "where memory comes first it goes back while the program only sleeps",
        while_it_sleeps,
    )
    .with(&[&[("LARDER_MODE", "memory")]]),
];

/// Bytes in a peak. Cached blocks hold spans, so most peaks have sizes of which few are cached.
const PEAK: usize = 256 * MIB;

fn peak(sizes: &[usize]) -> Vec<Vec<u8>> {
    let each = PEAK / sizes.len();
    let mut all = Vec::new();
    for &size in sizes {
        all.extend((0..each / size).map(|_| vec![size as u8 | 1; size]));
    }
    all
}

/// Waits until most of a peak above `before` has been released.
fn wait_for_its_end(before: u64, peak: u64) {
    assert!(peak > PEAK as u64 * 9 / 10, "{peak}");
    wait_until(|| more_than(before) <= peak / 20);
}

/// Frees in a random order, which mixes the spans.
fn free(mut all: Vec<Vec<u8>>) {
    let mut random = Random::new(3);
    while !all.is_empty() {
        drop(all.swap_remove(random.next(all.len())));
    }
}

fn freed_here(sizes: &[usize]) {
    let before = resident_bytes();
    let all = peak(sizes);
    let max = more_than(before);
    free(all);
    wait_for_its_end(before, max);
    wait_until(|| HEAP.stats().purged_bytes >= max * 9 / 10);
}

/// Each block in the thread's cache may hold a span.
fn tiny_blocks() {
    const MAX_KEPT: u64 = 40 * MIB as u64;
    let before = resident_bytes();
    let mut all: Vec<Box<[u8; 64]>> = (0..PEAK / 64).map(|_| Box::new([1; 64])).collect();
    assert!(more_than(before) > PEAK as u64);
    let mut random = Random::new(5);
    while !all.is_empty() {
        drop(all.swap_remove(random.next(all.len())));
    }
    drop(all);
    wait_until(|| more_than(before) <= MAX_KEPT);
}

fn freed_elsewhere() {
    let before = resident_bytes();
    let all = peak(&[800, 3000, 200 * KIB]);
    let max = more_than(before);
    // The freeing thread stays alive, and the allocating thread does nothing.
    let freeing = thread::spawn(move || {
        free(all);
        thread::park();
    });
    wait_for_its_end(before, max);
    freeing.thread().unpark();
    freeing.join().unwrap();
}

fn freed_by_the_dead() {
    let before = resident_bytes();
    let threads = (0..rounds(8)).map(|number| {
        thread::spawn(move || {
            let mut all = peak(&[56 + number, 5000, MIB]);
            all.truncate(all.len() / 8);
            all
        })
    });
    let all: Vec<_> = threads
        .collect::<Vec<_>>()
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    let max = more_than(before);
    thread::spawn(move || free(all)).join().unwrap();
    wait_until(|| more_than(before) <= max / 20);
}

fn in_a_fork() {
    let before = resident_bytes();
    let come_and_go = || {
        free(peak(&[800, MIB]));
        wait_until(|| more_than(before) <= PEAK as u64 / 20);
    };
    // The parent's background thread is running; it does not exist in the child.
    drop(peak(&[MIB]));
    in_a_child(come_and_go);
    come_and_go();
}

fn forks_meanwhile() {
    for _ in 0..rounds(12) {
        drop(peak(&[64 * KIB, 2000]));
        // Forks while the memory is being released.
        let purged = HEAP.stats().purged_bytes;
        wait_until(|| HEAP.stats().purged_bytes > purged);
        in_a_child(|| {
            let live = HEAP.stats().live_bytes;
            let all = peak(&[64 * KIB, 2000]);
            drop(all);
            HEAP.trim();
            let left = HEAP.stats();
            assert!(left.live_bytes <= live, "{left:?}");
            assert!(left.committed_bytes < 16 * MIB as u64, "{left:?}");
        });
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn ends_and_comes_again() {
    assert_eq!(threads(), 1);
    for _ in 0..3 {
        let before = resident_bytes();
        let all = peak(&[MIB]);
        let max = more_than(before);
        drop(all);
        assert_eq!(threads(), 2);
        wait_until(|| more_than(before) <= max / 20);
        wait_until(|| threads() == 1);
    }
}

static ELSEWHERE: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    // SAFETY: has no preconditions.
    let process = unsafe { libc::getpid() };
    // SAFETY: has no preconditions.
    if process != unsafe { libc::gettid() } {
        ELSEWHERE.store(true, Ordering::Relaxed);
    }
}

fn signals_pass_by() {
    let handler = note as extern "C" fn(libc::c_int);
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    drop(peak(&[MIB]));
    assert_eq!(threads(), 2);
    // This thread blocks the signal, so the system could deliver it only to the other thread.
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: our variable.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialized above.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR1) };
    // SAFETY: the set was initialized above.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
    let process = std::process::id() as libc::pid_t;
    // SAFETY: a signal to this process.
    unsafe { libc::kill(process, libc::SIGUSR1) };
    wait_until(|| threads() == 1);
    // SAFETY: the set was initialized above. The signal is delivered to this thread now.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut()) };
    assert!(!ELSEWHERE.load(Ordering::Relaxed));
}

fn beside_busy_threads() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static ROUNDS: AtomicUsize = AtomicUsize::new(0);
    let busy: Vec<_> = (1..5)
        .map(|seed| thread::spawn(move || churn(seed, &STOP, &ROUNDS)))
        .collect();
    for _ in 0..rounds(4) {
        let purged = HEAP.stats().purged_bytes;
        free(peak(&[64, 2000, MIB]));
        wait_until(|| HEAP.stats().purged_bytes - purged > PEAK as u64 / 2);
    }
    STOP.store(true, Ordering::Relaxed);
    for thread in busy {
        thread.join().unwrap();
    }
}

fn without_a_thread() {
    let (before, count) = (resident_bytes(), threads());
    drop(vec![1_u8; 200 * MIB]);
    while more_than(before) > 10 * MIB as u64 {
        // Enough allocations to reach a slow path.
        drop((0..1000).map(|_| vec![1_u8; 900]).collect::<Vec<_>>());
    }
    assert_eq!(threads(), count);
    assert!(HEAP.stats().purged_bytes > 190 * MIB as u64);
}

fn while_it_sleeps() {
    let before = resident_bytes();
    let blocks = [900, 20_000, MIB].map(|size| vec![vec![1_u8; size]; 100 * MIB / size]);
    assert!(more_than(before) > 250 * MIB as u64);
    drop(blocks);
    wait_until(|| more_than(before) <= 15 * MIB as u64);
}
