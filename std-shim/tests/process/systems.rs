//! The heap next to other parts of a process: real-time threads, lengths from outside, `errno`,
//! other libraries' fork handlers, large thread-local values.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::HEAP;
use crate::common::{KIB, MIB, Random, resident_bytes};
use crate::known::{mappings, wait_until};
use crate::rounds;
use crate::runner::Case;

const GIB: usize = 1 << 30;

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "a real-time thread is not kept waiting by an ordinary one on its processor",
        real_time_frames,
    ),
    Case::new(
        "the heap's own thread is ordinary and may run anywhere, whoever started it",
        || ordinary_thread(|_| None),
    ),
    Case::new(
        "the heap's own thread keeps to the processors of the process",
        || ordinary_thread(|all| Some(all[0])),
    ),
    Case::new(
        "the heap's own thread is tried again where the system refused it",
        refused_thread,
    ),
    Case::new(
        "a very long zeroed block of which little is touched stays so",
        sparse_blocks,
    ),
    Case::new(
        "a zeroed block of which little is touched stays so where others lay",
        sparse_blocks_again,
    ),
    Case::new(
        "lengths that no machine has cost nothing",
        lengths_from_outside,
    ),
    Case::new(
        "very long blocks come and go however many",
        long_blocks_one_at_a_time,
    ),
    Case::new(
        "a vector grows to a mapping of its own and shrinks again",
        to_a_mapping_and_back,
    ),
    Case::new(
        "a mapping with a coarse alignment grows without a copy",
        coarse_mapping,
    ),
    Case::new(
        "no huge pages are wished for where most of a peak went back",
        no_wish_after_a_peak,
    ),
    Case::new(
        "huge pages stay wished for in a program that uses what it has",
        wish_of_dense_programs,
    ),
    Case::new(
        "what went back is counted, and what is resident follows",
        numbers_follow,
    ),
    Case::new("no call changes errno", errno_is_kept),
];

/// Frames of a real-time thread while another thread allocates on the same processor. Each would
/// take over a second if the thread had to wait until the system throttles it.
const FRAMES: usize = 200;

fn processors() -> Vec<usize> {
    // SAFETY: all zeros is a valid set of processors.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: fills our variable.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    // SAFETY: the number is below the number of bits in the set.
    let all = (0..1024).filter(|&number| unsafe { libc::CPU_ISSET(number, &set) });
    all.collect()
}

fn stay_on(processor: usize) {
    // SAFETY: all zeros is a valid set of processors.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is below the number of bits in the set.
    unsafe { libc::CPU_SET(processor, &mut one) };
    // SAFETY: our variable.
    let answer = unsafe { libc::sched_setaffinity(0, size_of_val(&one), &raw const one) };
    assert_eq!(answer, 0);
}

/// Makes the calling thread a real-time thread. Returns whether the system allowed it.
fn be_real_time() -> bool {
    let priority = libc::sched_param { sched_priority: 10 };
    // SAFETY: the calling thread, and our variable.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) == 0 }
}

fn real_time_frames() {
    static STOP: AtomicBool = AtomicBool::new(false);
    stay_on(processors()[0]);
    let other = thread::spawn(|| {
        let mut random = Random::new(1);
        let mut held = Vec::new();
        while !STOP.load(Ordering::Relaxed) {
            let mut block = Vec::with_capacity(150 * KIB + random.next(400 * KIB));
            block.push(1_u8);
            held.push(block);
            if held.len() > 20 {
                held.swap_remove(random.next(20));
            }
        }
    });
    let frames = thread::spawn(|| {
        if !be_real_time() {
            return;
        }
        for _ in 0..FRAMES {
            thread::sleep(Duration::from_millis(1));
            let blocks: Vec<_> = (0..20).map(|_| Vec::<u8>::with_capacity(150_000)).collect();
            drop(blocks);
        }
    });
    frames.join().unwrap();
    STOP.store(true, Ordering::Relaxed);
    other.join().unwrap();
}

/// Reads a file of the heap's background thread in `/proc`, if that thread exists.
fn of_own_thread(file: &str) -> Option<String> {
    fs::read_dir("/proc/self/task").unwrap().find_map(|task| {
        let task = task.unwrap().path();
        let name = fs::read_to_string(task.join("comm")).ok()?;
        (name.trim() == "larder-purge").then(|| fs::read_to_string(task.join(file)).ok())?
    })
}

fn line<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found.unwrap().trim()
}

fn free_much() {
    drop((0..20).map(|_| vec![1_u8; MIB]).collect::<Vec<_>>());
}

/// Checks that the background thread has the main thread's processors, not those of its starter.
fn ordinary_thread(processor: impl FnOnce(&[usize]) -> Option<usize>) {
    let all = processors();
    processor(&all).into_iter().for_each(stay_on);
    let may_use = fs::read_to_string("/proc/self/status").unwrap();
    let may_use = line(&may_use, "Cpus_allowed_list:").to_string();
    let starter = thread::spawn(move || {
        stay_on(*all.last().unwrap());
        be_real_time();
        free_much();
    });
    starter.join().unwrap();
    // The thread gets its name once its scheduling is ordinary, and lives for at least one delay.
    wait_until(|| of_own_thread("status").is_some());
    let status = of_own_thread("status").unwrap();
    assert_eq!(line(&status, "Cpus_allowed_list:"), may_use);
    let numbers = of_own_thread("stat").unwrap();
    // Fields 40 and 41, after the name in parentheses: real-time priority and policy.
    let fields: Vec<&str> = numbers
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    assert_eq!((fields[37], fields[38]), ("0", "0"));
}

fn refused_thread() {
    let status = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split_whitespace().next().unwrap().parse().unwrap();
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: our variable.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    let scarce = libc::rlimit {
        rlim_cur: pages * 4096,
        ..limit
    };
    // SAFETY: our variable with valid limits.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const scarce) };
    let few: Vec<_> = (0..12).map(|_| vec![1_u8; MIB]).collect();
    assert!(of_own_thread("comm").is_none(), "no stack could be had");
    // SAFETY: our variable with valid limits.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    drop(few);
    drop((0..100).map(|_| vec![1_u8; MIB]).collect::<Vec<_>>());
    wait_until(|| resident_bytes() < 30 << 20);
}

/// Touches one page of each MiB of a zeroed block, several times over.
fn touch_little(bytes: usize, max_resident: u64) {
    for _ in 0..4 {
        let mut block = vec![0_u8; bytes];
        for at in (0..bytes).step_by(MIB) {
            assert_eq!(block[at], 0);
            block[at] = 1;
        }
        let resident = resident_bytes();
        assert!(resident < max_resident, "{resident} bytes are in memory");
    }
}

fn sparse_blocks() {
    touch_little(4 * GIB, 40 << 20);
    assert!(resident_bytes() < 20 << 20, "the block is gone");
}

fn sparse_blocks_again() {
    let before = resident_bytes();
    for bytes in [16 * MIB, 200 * MIB] {
        touch_little(bytes, before + (8 << 20));
    }
}

fn lengths_from_outside() {
    let before = resident_bytes();
    for bytes in [70 * GIB, 1 << 40, 32 << 40, usize::MAX >> 2] {
        for _ in 0..3 {
            let mut text: Vec<u8> = Vec::new();
            // May be refused.
            text.try_reserve_exact(bytes).ok();
        }
    }
    let after = resident_bytes();
    assert!(after < before + (4 << 20), "{after} bytes, before {before}");
}

fn long_blocks_one_at_a_time() {
    for more in 0..200 {
        let mut text: Vec<u8> = Vec::new();
        text.try_reserve_exact(2 * GIB + more * 5 * MIB).unwrap();
        text.push(1);
    }
}

fn to_a_mapping_and_back() {
    let number = |at: usize| (at / 4096) as u8 | 1;
    let mut text = vec![0_u8; 700 * MIB];
    let touch = |text: &mut Vec<u8>, from: usize| {
        for at in (from..text.len()).step_by(3 * MIB) {
            assert_eq!(text[at], 0);
            text[at] = number(at);
        }
    };
    touch(&mut text, 0);
    let from = text.len().next_multiple_of(3 * MIB);
    text.reserve_exact(900 * MIB);
    assert!(HEAP.stats().large_bytes >= 1600 << 20);
    let resident = resident_bytes();
    assert!(
        resident < 60 << 20,
        "{resident} bytes for a page in each 3 MiB"
    );
    text.resize(1500 * MIB, 0);
    touch(&mut text, from);
    text.reserve_exact(2500 * MIB);
    let check = |text: &[u8]| {
        for at in (0..text.len()).step_by(3 * MIB) {
            assert_eq!(text[at], number(at), "{at}");
        }
    };
    check(&text);
    text.truncate(1200 * MIB);
    text.shrink_to_fit();
    check(&text);
    text.truncate(300 * MIB);
    text.shrink_to_fit();
    check(&text);
    text.truncate(1000);
    text.shrink_to_fit();
    check(&text);
    drop(text);
    assert!(HEAP.stats().large_bytes < 1 << 20);
}

fn coarse_mapping() {
    for align in [16, 64 * KIB, 8 * MIB] {
        let layout = |bytes| Layout::from_size_align(bytes, align).unwrap();
        // SAFETY: the layout is not empty.
        let mut block = unsafe { HEAP.alloc_zeroed(layout(GIB)) };
        // SAFETY: inside the block.
        unsafe { block.wrapping_add(GIB - 1).write(7) };
        let mut bytes = GIB;
        for gib in [2, 3, 5, 1] {
            // SAFETY: our block, with its current layout.
            block = unsafe { HEAP.realloc(block, layout(bytes), gib * GIB) };
            bytes = gib * GIB;
            assert!(block.addr().is_multiple_of(align), "{align}");
            // SAFETY: inside the block.
            assert_eq!(unsafe { block.wrapping_add(GIB - 1).read() }, 7);
        }
        let resident = resident_bytes();
        assert!(resident < 30 << 20, "{resident} bytes for one page");
        // SAFETY: our block, with its current layout.
        unsafe { HEAP.dealloc(block, layout(bytes)) };
    }
}

/// Returns the bytes in mappings of at least 32 MiB that have this flag.
fn mapped_with(flag: &str) -> usize {
    let mappings = mappings().into_iter().filter(|mapping| mapping.has(flag));
    let bytes = mappings.map(|mapping| mapping.range.len());
    bytes.filter(|bytes| *bytes >= 32 * MIB).sum()
}

/// Returns whether the system has huge pages, always or on request.
fn has_huge_pages() -> bool {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    fs::read_to_string(path).is_ok_and(|text| !text.contains("[never]"))
}

fn peak() -> Vec<Box<[u8]>> {
    let mut random = Random::new(3);
    let blocks = (0..150_000).map(|_| vec![1; 16 + random.next(2000)].into());
    blocks.collect()
}

fn no_wish_after_a_peak() {
    let blocks = peak();
    assert!(!has_huge_pages() || mapped_with("hg") > 64 << 20);
    let few: Vec<_> = blocks.into_iter().step_by(256).collect();
    wait_until(|| mapped_with("hg") == 0 && resident_bytes() < 30 << 20);
    HEAP.trim();
    assert_eq!(few.len(), 586);
}

fn wish_of_dense_programs() {
    let mut blocks = peak();
    let mut random = Random::new(4);
    for _ in 0..30 {
        for _ in 0..5000 {
            let at = random.next(blocks.len());
            blocks[at] = vec![2; 16 + random.next(2000)].into();
        }
        thread::sleep(Duration::from_millis(100));
    }
    assert!(!has_huge_pages() || mapped_with("hg") > 64 << 20);
}

fn numbers_follow() {
    let blocks: Vec<_> = (0..100).map(|_| vec![1_u8; MIB]).collect();
    let full = HEAP.stats();
    assert!(full.resident_bytes >= 100 << 20, "{full}");
    drop(blocks);
    let given = HEAP.trim();
    assert!((100 << 20..110 << 20).contains(&given), "{given}");
    let after = HEAP.stats();
    assert!(after.purged_bytes >= full.purged_bytes + given, "{after}");
    assert!(after.resident_bytes < 4 << 20, "{after}");
    assert_eq!(HEAP.trim(), 0, "nothing was touched meanwhile");
}

/// A value that no system call stores in `errno`.
const OURS: i32 = 4242;

fn set_errno() {
    // SAFETY: has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own variable.
    unsafe { errno.write(OURS) };
}

fn assert_errno(what: &str) {
    // SAFETY: has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own variable.
    let errno = unsafe { errno.read() };
    assert_eq!(errno, OURS, "{what} has changed errno");
}

fn errno_is_kept() {
    set_errno();
    let mut text = Vec::<u8>::new();
    let mut walls = Vec::new();
    // Other blocks are in the way of the growing vector, so its pages move.
    for bytes in [100, 5000, 200 * KIB, 3 * MIB, 9 * MIB, 40 * MIB, 1500 * MIB] {
        text.reserve_exact(bytes);
        assert_errno("a growth");
        walls.push(vec![1_u8; 3 * MIB]);
        assert_errno("an allocation");
    }
    // SAFETY: the vector's own memory. If the lock is refused, it stays unlocked.
    unsafe { libc::mlock(walls[3].as_ptr().cast(), 3 * MIB) };
    set_errno();
    walls.clear();
    assert_errno("a free");
    text.shrink_to(10 * MIB);
    assert_errno("a shrink");
    drop(text);
    assert_errno("a free of a mapping");
    HEAP.trim();
    assert_errno("a trim");
    let blocks = peak();
    assert_errno("a peak");
    drop(blocks);
    assert_errno("the end of a peak");
    // SAFETY: has no preconditions; the process is small.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    set_errno();
    drop(vec![1_u8; 5 * MIB]);
    HEAP.trim();
    assert_errno("a trim of locked memory");
    thread::spawn(|| {
        set_errno();
        drop(vec![1_u8; 5 * MIB]);
        assert_errno("a thread's first allocation");
    })
    .join()
    .unwrap();
}

/// Bytes of thread-local memory that would leave nothing of a 64 KiB stack.
const LARGE: usize = 58_000;

thread_local! {
    static LARGE_VALUE: Cell<[u8; LARGE]> = const { Cell::new([1; LARGE]) };
}

/// Uses the value, so that it is linked into the program for all cases.
pub(crate) fn touch_large_value() -> u8 {
    LARGE_VALUE.with(|value| value.get()[LARGE / 2])
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

/// Allocates in a fork, as another library's handlers may.
extern "C" fn handler() {
    HANDLED.fetch_add(1, Ordering::Relaxed);
    let lists: Vec<Vec<u8>> = (0..40).map(|n| vec![1; n * n * 100]).collect();
    drop(lists);
    drop(vec![0_u8; 3 * MIB]);
}

/// Registers fork handlers before the heap can register its own, so that they allocate when the
/// heap has already prepared for the copy.
extern "C" fn register_early() {
    // SAFETY: functions of the program.
    unsafe {
        libc::pthread_atfork(Some(handler), Some(handler), Some(handler));
        libc::pthread_atfork(Some(rounds::before_fork), Some(rounds::after_fork), None);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static EARLY: extern "C" fn() = register_early;
