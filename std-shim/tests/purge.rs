//! Idle memory is released without further calls: each case is a process of its own that only waits until the memory
//! is gone. No case asserts how long that takes.
#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(target_os = "linux")]
#[path = "common/mod.rs"]
mod common;
#[cfg(target_os = "linux")]
#[path = "process/runner.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod runner;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() {
    if !runner::main(cases::CASES) {
        std::process::exit(1);
    }
}

#[cfg(target_os = "linux")]
mod cases {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use larder::Larder;

    use crate::common::{KIB, MIB, Random, churn, resident_bytes, rounds};
    use crate::runner::{Case, limit_time};

    #[global_allocator]
    static HEAP: Larder = Larder::new().with_purge_after(Duration::from_millis(200));

    pub(crate) const CASES: &[Case] = &[
        Case::new("large blocks go back", || freed_here(&[MIB, 300 * KIB])),
        Case::new("small blocks go back", || {
            freed_here(&[800, 3000, 9000, 100 * KIB]);
        }),
        Case::new(
            "blocks of 64 bytes go back while their thread lives",
            tiny_blocks,
        ),
        Case::new("blocks that other threads freed go back", freed_elsewhere),
        Case::new("blocks of threads that ended go back", freed_by_the_dead),
        Case::new("blocks go back in the child of a fork", in_a_fork),
        Case::new("a process forks while memory goes back", forks_meanwhile),
        Case::new("the thread ends when nothing is idle", ends_and_comes_again),
        Case::new("a process ends beside the thread", || {
            drop(peak(&[MIB]));
            assert!(HEAP.stats().retained_bytes > 0);
        }),
        Case::new("the thread keeps to the processors of the process", || {
            keeps_to_processors();
        }),
        Case::new("signals do not reach the thread", signals_pass_by),
        Case::new(
            "memory goes back beside threads that allocate",
            beside_busy_threads,
        ),
    ];

    /// Of blocks whose cache is short: what a running thread keeps at hand holds spans.
    const PEAK: usize = 256 * MIB;

    /// Waits for what will come by itself.
    fn wait(what: &str, come: impl Fn() -> bool) {
        let start = Instant::now();
        while !come() {
            assert!(start.elapsed() < Duration::from_secs(300), "{what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn more_than(before: u64) -> u64 {
        resident_bytes().saturating_sub(before)
    }

    /// Blocks of these sizes, written.
    fn peak(sizes: &[usize]) -> Vec<Vec<u8>> {
        let each = PEAK / sizes.len();
        let mut all = Vec::new();
        for &size in sizes {
            all.extend((0..each / size).map(|_| vec![size as u8 | 1; size]));
        }
        all
    }

    /// Waits until the most of a peak above `before` has gone.
    fn wait_for_its_end(before: u64, peak: u64) {
        assert!(peak > PEAK as u64 * 9 / 10, "{peak}");
        wait("the peak stays", || more_than(before) <= peak / 20);
    }

    /// Frees in an order that mixes spans.
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
        wait("it is not counted", || {
            HEAP.stats().purged_bytes >= max * 9 / 10
        });
    }

    /// What the thread keeps at hand may hold a span for each block.
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
        wait("the peak stays", || more_than(before) <= MAX_KEPT);
    }

    fn freed_elsewhere() {
        let before = resident_bytes();
        let all = peak(&[800, 3000, 200 * KIB]);
        let max = more_than(before);
        // The thread lives on, and the one that allocated does nothing.
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
        wait("the peak stays", || more_than(before) <= max / 20);
    }

    /// Runs `act` in a child that ends well.
    fn in_a_child(act: impl FnOnce()) {
        // SAFETY: what the child runs is what is tested.
        match unsafe { libc::fork() } {
            -1 => panic!("no fork"),
            0 => {
                limit_time(300);
                act();
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            child => {
                let mut status = 0;
                // SAFETY: our child, and a variable of ours.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "the child");
            }
        }
    }

    fn in_a_fork() {
        let before = resident_bytes();
        let come_and_go = || {
            free(peak(&[800, MIB]));
            wait("the peak stays", || more_than(before) <= PEAK as u64 / 20);
        };
        // The parent's thread runs, and is not there in the child.
        drop(peak(&[MIB]));
        in_a_child(come_and_go);
        come_and_go();
    }

    fn forks_meanwhile() {
        for _ in 0..rounds(12) {
            drop(peak(&[64 * KIB, 2000]));
            // Somewhere in the middle of it.
            let purged = HEAP.stats().purged_bytes;
            wait("nothing goes back", || HEAP.stats().purged_bytes > purged);
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
            wait("the peak stays", || more_than(before) <= max / 20);
            wait("the thread stays", || threads() == 1);
        }
    }

    /// On which processors a thread may run, by its folder.
    fn processors_of(task: &std::path::Path) -> String {
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        list.unwrap().trim().to_owned()
    }

    /// The folder of the heap's own thread, once it has its name.
    fn purge_thread() -> Option<std::path::PathBuf> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let mut folders = tasks.map(|task| task.unwrap().path());
        folders.find(|task| {
            let name = std::fs::read_to_string(task.join("comm"));
            name.is_ok_and(|name| name.trim() == "larder-purge")
        })
    }

    /// Has the calling thread run on the first or the last of the processors that the process has.
    fn pin(to_first: bool) {
        // SAFETY: zeros are an empty set.
        let mut set = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
        // SAFETY: a variable of ours, that long.
        unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
        // SAFETY: the number is below that of the set's bits.
        let mut all = (0..1024).filter(|&number| unsafe { libc::CPU_ISSET(number, &set) });
        let number = if to_first {
            all.next()
        } else {
            all.next_back()
        }
        .unwrap();
        // SAFETY: zeros are an empty set.
        let mut one = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
        // SAFETY: the number is below that of the set's bits.
        unsafe { libc::CPU_SET(number, &mut one) };
        // SAFETY: a variable of ours, that long.
        unsafe { libc::sched_setaffinity(0, size_of_val(&one), &raw const one) };
    }

    fn keeps_to_processors() {
        let starter = thread::spawn(|| {
            // Once the main thread has its one processor.
            thread::park();
            pin(false);
            peak(&[MIB])
        });
        pin(true);
        starter.thread().unpark();
        // In use, so that the heap's thread stays.
        let all = starter.join().unwrap();
        wait("there is no thread", || purge_thread().is_some());
        let main = format!("/proc/self/task/{}", std::process::id());
        let expected = processors_of(main.as_ref());
        assert_eq!(processors_of(&purge_thread().unwrap()), expected);
        drop(all);
    }

    static ELSEWHERE: AtomicBool = AtomicBool::new(false);

    extern "C" fn note(_: libc::c_int) {
        // SAFETY: has no conditions.
        let process = unsafe { libc::getpid() };
        // SAFETY: has no conditions.
        if process != unsafe { libc::gettid() } {
            ELSEWHERE.store(true, Ordering::Relaxed);
        }
    }

    fn signals_pass_by() {
        let handler = note as extern "C" fn(libc::c_int);
        // SAFETY: a handler that does nothing but note.
        unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
        drop(peak(&[MIB]));
        assert_eq!(threads(), 2);
        // Blocked in the only other thread, a signal would go to this one.
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: a variable of ours.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: filled above.
        unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR1) };
        // SAFETY: the set was filled above.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
        let process = std::process::id() as libc::pid_t;
        // SAFETY: to ourselves.
        unsafe { libc::kill(process, libc::SIGUSR1) };
        wait("the thread stays", || threads() == 1);
        // SAFETY: the set was filled above. Now the signal is delivered here.
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
            wait("too little goes back", || {
                HEAP.stats().purged_bytes - purged > PEAK as u64 / 2
            });
        }
        STOP.store(true, Ordering::Relaxed);
        for thread in busy {
            thread.join().unwrap();
        }
    }
}
