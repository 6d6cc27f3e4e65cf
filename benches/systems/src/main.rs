//! Runs one case on the allocator that this program was built with, and prints one line. See `run.sh`.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(feature = "larder")]
#[global_allocator]
static HEAP: larder::Larder = larder::Larder::new();
#[cfg(feature = "larder-speed")]
#[global_allocator]
static HEAP: larder::Larder = larder::Larder::speed();
#[cfg(feature = "larder-memory")]
#[global_allocator]
static HEAP: larder::Larder = larder::Larder::memory();
#[cfg(feature = "mimalloc")]
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MIB: usize = 1 << 20;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("sparse") => sparse(),
        Some("sizes") => sizes(false),
        Some("shuffled") => sizes(true),
        Some("peak") => peak(),
        Some("fork") => fork(),
        Some("trim") => trim(),
        _ => eprintln!("say which case: sparse, sizes, shuffled, peak, fork, trim"),
    }
}

/// Reads a number from a file of this process in `/proc`, in MiB.
fn number(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) / 1024
}

fn resident() -> u64 {
    number("status", "VmRSS:")
}

/// A small pseudo-random generator.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }

    fn shuffle<T>(&mut self, values: &mut [T]) {
        for at in (1..values.len()).rev() {
            values.swap(at, self.next(at + 1));
        }
    }
}

/// In each of four rounds, allocates a zeroed block of 4 GiB and touches one page in each MiB.
fn sparse() {
    let start = Instant::now();
    let mut max = 0;
    for _ in 0..4 {
        let mut block = vec![0_u8; 4096 * MIB];
        for at in (0..block.len()).step_by(MIB) {
            assert_eq!(block[at], 0);
            block[at] = 1;
        }
        max = max.max(resident());
    }
    println!(
        "held {max} MiB, {} MiB after, {:?}",
        resident(),
        start.elapsed()
    );
}

/// Allocates 64 MiB in blocks of one size and frees them all, for each of sixty sizes.
fn sizes(shuffled: bool) {
    let mut random = Random(7);
    let mut sizes: Vec<usize> = (0..60)
        .map(|n| 16.0 * 1.13_f64.powi(n))
        .map(|size| size as usize / 8 * 8 + 8)
        .collect();
    if shuffled {
        random.shuffle(&mut sizes);
    }
    for size in sizes {
        let block = |_| -> Box<[u8]> {
            let mut block = vec![0_u8; size].into_boxed_slice();
            block[0] = 1;
            block
        };
        let mut blocks: Vec<_> = (0..64 * MIB / size).map(block).collect();
        if shuffled {
            random.shuffle(&mut blocks);
        }
    }
    println!("peak {} MiB", number("status", "VmHWM:"));
}

/// Allocates 300 MiB of small blocks and frees all but one in 256. The memory is read after 2, 12 and 32 s, and
/// after `PEAK_SECONDS` more.
fn peak() {
    let longer = std::env::var("PEAK_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let mut random = Random(1);
    let (mut blocks, mut bytes) = (Vec::new(), 0);
    while bytes < 300 * MIB {
        let size = 16 + random.next(2000);
        blocks.push(vec![1_u8; size].into_boxed_slice());
        bytes += size;
    }
    let before = resident();
    let kept: Vec<_> = blocks.into_iter().step_by(256).collect();
    print!("peak {before} MiB; after");
    for seconds in [2, 10, 20].into_iter().chain(longer) {
        thread::sleep(Duration::from_secs(seconds));
        print!(" {}", resident());
    }
    let huge = number("smaps_rollup", "AnonHugePages:");
    println!(
        " MiB, {huge} as huge pages, with {} blocks left",
        kept.len()
    );
}

/// Measures the time until the child of a process with many threads has allocated a block.
fn fork() {
    for count in [1000, 4000] {
        for _ in 0..count {
            let idle = || {
                drop(
                    (0..100)
                        .map(|n| vec![1_u8; 10 + n * 20])
                        .collect::<Vec<_>>(),
                );
                thread::sleep(Duration::from_secs(1000));
            };
            if thread::Builder::new()
                .stack_size(64 << 10)
                .spawn(idle)
                .is_err()
            {
                return println!("no more threads");
            }
        }
        thread::sleep(Duration::from_secs(1));
        let mut times: Vec<_> = (0..9).map(|_| fork_once()).collect();
        times.sort();
        print!("{:?} more threads: {:?}  ", count, times[4]);
    }
    println!();
    std::process::exit(0);
}

fn fork_once() -> Duration {
    let mut ends = [0; 2];
    let start = Instant::now();
    // SAFETY: a pipe and a child that allocates, writes one byte and ends.
    unsafe {
        libc::pipe(ends.as_mut_ptr());
        let child = libc::fork();
        if child == 0 {
            let block = std::hint::black_box(Box::new(*b"x"));
            libc::write(ends[1], block.as_ptr().cast(), 1);
            libc::_exit(0);
        }
        let mut byte = 0_u8;
        libc::read(ends[0], (&raw mut byte).cast(), 1);
        let time = start.elapsed();
        libc::waitpid(child, std::ptr::null_mut(), 0);
        libc::close(ends[0]);
        libc::close(ends[1]);
        time
    }
}

/// Measures the longest small allocation of a thread while another thread trims, or sleeps on mimalloc, which
/// has no such call.
fn trim() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let other = thread::spawn(|| {
        while !STOP.load(Ordering::Relaxed) {
            trim_once();
        }
    });
    let (mut random, mut held) = (Random(1), Vec::new());
    let (start, mut longest, mut count) = (Instant::now(), Duration::ZERO, 0);
    while start.elapsed() < Duration::from_secs(5) {
        let now = Instant::now();
        let block = vec![1_u8; 16 + random.next(2000)];
        longest = longest.max(now.elapsed());
        count += 1;
        held.push(block);
        if held.len() > 200_000 {
            for _ in 0..50_000 {
                let at = random.next(held.len());
                held.swap_remove(at);
            }
        }
    }
    STOP.store(true, Ordering::Relaxed);
    other.join().ok();
    println!("longest of {count}: {longest:?}");
}

fn trim_once() {
    #[cfg(any(
        feature = "larder",
        feature = "larder-speed",
        feature = "larder-memory"
    ))]
    HEAP.trim();
    #[cfg(feature = "system")]
    // SAFETY: `malloc_trim` may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0)
    };
    #[cfg(feature = "mimalloc")]
    thread::sleep(Duration::from_millis(1));
}
