//! Programs with little memory: a child process under a limit allocates until it gets null, frees,
//! allocates again and starts a thread. Also limits that are lifted while the program runs, and
//! cgroups with a memory limit, whose processes the kernel kills if they touch more.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, fs, hint, io, process, ptr, thread};

use common::{Random, is_long, this_program};
use larder::Larder;

mod common;

#[global_allocator]
static HEAP: Larder = Larder::new().with_environment();

/// The variable with a child's task: two numbers, usually its limit and the size of its blocks.
const TASK: &str = "HEAP_TEST_LIMITS";

const LIMIT_SECONDS: libc::c_uint = 1200;

/// Size of the blocks that are allocated last; few of their pages are touched.
const OTHER_BYTES: usize = 30_000;

/// A list of blocks, linked through the blocks themselves so that it needs no other memory.
struct Blocks {
    layout: Layout,
    newest: *mut u8,
    count: usize,
}

impl Blocks {
    fn all(bytes: usize) -> Self {
        Self::up_to(bytes, usize::MAX)
    }

    /// Allocates blocks until an allocation fails or they have `most` bytes together.
    fn up_to(bytes: usize, most: usize) -> Self {
        let mut blocks = Self {
            layout: Layout::from_size_align(bytes, 16).unwrap(),
            newest: ptr::null_mut(),
            count: 0,
        };
        while blocks.bytes() < most {
            // SAFETY: the layout is not empty.
            let block = unsafe { HEAP.alloc(blocks.layout) };
            if block.is_null() {
                break;
            }
            // SAFETY: our block, large and aligned enough.
            unsafe { block.cast::<*mut u8>().write(blocks.newest) };
            // SAFETY: our block, of this length; its end must be usable too.
            unsafe { block.wrapping_add(bytes - 1).write(1) };
            blocks.newest = block;
            blocks.count += 1;
        }
        blocks
    }

    /// Writes to every page, so that all of them are resident.
    fn touch(&self) {
        let mut block = self.newest;
        while !block.is_null() {
            for at in (size_of::<*mut u8>()..self.layout.size()).step_by(4096) {
                // SAFETY: inside our block, after its link.
                unsafe { block.wrapping_add(at).write(1) };
            }
            // SAFETY: written by `up_to`.
            block = unsafe { block.cast::<*mut u8>().read() };
        }
    }

    fn bytes(&self) -> usize {
        self.count * self.layout.size()
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        while !self.newest.is_null() {
            let block = self.newest;
            // SAFETY: written by `up_to`.
            self.newest = unsafe { block.cast::<*mut u8>().read() };
            // SAFETY: allocated by `up_to` with this layout.
            unsafe { HEAP.dealloc(block, self.layout) };
        }
    }
}

fn task() -> Option<(usize, usize)> {
    let task = env::var(TASK).ok()?;
    let (limit, size) = task.split_once(' ')?;
    Some((limit.parse().ok()?, size.parse().ok()?))
}

/// Returns a command that runs one test of this program.
fn itself(test: &str) -> Command {
    let mut command = this_program();
    command.args(["--exact", test, "--nocapture"]);
    // Otherwise the C library reserves 64 MiB of addresses for each thread.
    command.env("MALLOC_ARENA_MAX", "1");
    command
}

fn set_limit(resource: libc::__rlimit_resource_t, bytes: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: our variable with valid limits.
    match unsafe { libc::setrlimit(resource, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs in a child; does nothing in the parent.
#[test]
fn child() {
    let Some((limit, size)) = task() else {
        return;
    };
    let first = Blocks::all(size);
    let had = first.bytes();
    let mut words: Vec<u8> = Vec::new();
    let refused = words.try_reserve(limit);
    drop(first);
    assert!(had > limit / 5, "{had} of {limit} bytes");
    assert!(refused.is_err(), "more than there is");

    let again = Blocks::all(size).bytes();
    // The heap's background thread runs now, and its stack may be where a block was.
    assert!(again + size >= had, "{had} bytes at first, then {again}");
    // Memory in caches and transfer caches is used before an allocation fails.
    let others = Blocks::all(OTHER_BYTES).bytes();
    assert!(
        others > had / 4 * 3,
        "{had} bytes at first, then {others} in other blocks"
    );
    HEAP.trim();
    let sum = thread::spawn(|| (0..10_000u64).collect::<Vec<_>>().iter().sum::<u64>());
    assert_eq!(sum.join().unwrap(), 49_995_000);
}

/// Block sizes. Small blocks touch all of their memory, so they run under low limits only.
const SIZES: [usize; 5] = [100, 20_000, 100_000, 1 << 20, 5_300_000];

fn run_under(test: &str, resource: libc::__rlimit_resource_t, bytes: u64, sizes: &[usize]) {
    for size in sizes {
        let mut command = itself(test);
        command.env(TASK, format!("{bytes} {size}"));
        let set = move || {
            // SAFETY: has no preconditions. Ends a child that hangs.
            unsafe { libc::alarm(LIMIT_SECONDS) };
            set_limit(resource, bytes)
        };
        // SAFETY: the closure makes two system calls and allocates nothing.
        unsafe { command.pre_exec(set) };
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(
            output.status.success(),
            "{bytes} bytes, blocks of {size}: {}\n{said}",
            output.status
        );
        assert!(said.contains("1 passed"), "the child did not run: {said}");
    }
}

#[test]
fn programs_with_few_addresses_live() {
    for (mib, sizes) in [
        (64, &SIZES[..]),
        (128, &SIZES),
        (300, &SIZES[1..]),
        (1024, &SIZES[1..]),
    ] {
        run_under("child", libc::RLIMIT_AS, mib << 20, sizes);
    }
}

#[test]
fn a_program_with_little_memory_for_data_lives() {
    run_under("child", libc::RLIMIT_DATA, 48 << 20, &SIZES);
}

/// Runs in a child that must get most of its limit; does nothing in the parent.
#[test]
fn child_that_fills_its_limit() {
    let Some((limit, size)) = task() else {
        return;
    };
    // A fifth is for the program itself, the memory that is left to it, and rounding.
    let least = limit / 100 * 80;
    for round in 0..2 {
        let had = Blocks::all(size).bytes();
        assert!(had > least, "{had} of {limit} bytes, round {round}");
    }
}

#[test]
fn a_program_has_most_of_what_a_limit_on_data_or_addresses_leaves() {
    for mib in [300_u64, 700] {
        let sizes = [1_000_000];
        let test = "child_that_fills_its_limit";
        run_under(test, libc::RLIMIT_DATA, mib << 20, &sizes);
        run_under(test, libc::RLIMIT_AS, mib << 20, &sizes);
    }
}

/// Runs in a child that lifts its limit after a failed allocation; does nothing in the parent.
#[test]
fn child_whose_limit_goes() {
    let Some((limit, size)) = task() else {
        return;
    };
    let had = Blocks::all(size);
    for resource in [libc::RLIMIT_DATA, libc::RLIMIT_AS] {
        set_limit(resource, libc::RLIM_INFINITY).unwrap();
    }
    let more = Blocks::up_to(size, 4 * limit);
    assert!(
        (limit / 5..limit).contains(&had.bytes()),
        "{} bytes",
        had.bytes()
    );
    assert!(more.bytes() >= 4 * limit, "{} bytes", more.bytes());
}

#[test]
fn what_was_refused_is_served_once_the_limit_goes() {
    run_under(
        "child_whose_limit_goes",
        libc::RLIMIT_DATA,
        48 << 20,
        &SIZES,
    );
    run_under(
        "child_whose_limit_goes",
        libc::RLIMIT_AS,
        300 << 20,
        &SIZES[1..],
    );
}

/// A cgroup with a memory limit, inside the cgroup of this process.
struct Group {
    folder: PathBuf,
    limit: &'static str,
}

impl Group {
    /// Returns `None` if this process may not create such a cgroup.
    fn new(name: &str, bytes: usize) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path_of = |head: &str| {
            let line = own.lines().find_map(|line| line.split_once(head));
            line.map(|(_, path)| path.trim_start_matches('/').to_owned())
        };
        let places = [
            ("/sys/fs/cgroup/memory", ":memory:", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "0::", "memory.max"),
        ];
        places.into_iter().find_map(|(root, head, limit)| {
            let folder = PathBuf::from(root)
                .join(path_of(head)?)
                .join(format!("larder-limits-{name}-{}", process::id()));
            fs::create_dir(&folder).ok()?;
            let group = Self { folder, limit };
            group.allow(bytes).ok()?;
            Some(group)
        })
    }

    fn allow(&self, bytes: usize) -> io::Result<()> {
        fs::write(self.folder.join(self.limit), bytes.to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        fs::remove_dir(&self.folder).ok();
    }
}

/// Waits until the parent has put this process into the cgroup, or has changed the limit.
fn wait_for_a_line() {
    io::stdin().lock().read_line(&mut String::new()).unwrap();
}

/// Runs in a child in a cgroup with a limit; does nothing in the parent.
#[test]
fn child_in_a_group() {
    let Some((limit, greed)) = task() else {
        return;
    };
    wait_for_a_line();
    // Half of the limit, ten times in a row, in blocks of every size.
    for size in SIZES.into_iter().cycle().take(2 * SIZES.len()) {
        Blocks::up_to(size, limit / 2).touch();
    }
    if greed == 0 {
        println!("the limit may go");
        wait_for_a_line();
    }
    let more = Blocks::up_to(SIZES[1], 2 * limit);
    more.touch();
    assert!(more.bytes() >= 2 * limit, "{} bytes", more.bytes());
}

/// Runs two threads that together hold at most `live` bytes, in fully written blocks of 16 KiB to 1
/// MiB. The seed selects whether a thread frees single blocks or half of its blocks when there is
/// no room, and whether sizes alternate between the lower and the upper half of their range.
#[test]
fn child_of_random_sizes() {
    let Some((live, seed)) = task() else {
        return;
    };
    wait_for_a_line();
    // All seeds together take ten minutes in the long form, and a few seconds otherwise.
    let blocks = if is_long() { 150_000 } else { 5_000 };
    thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || churn_within(live / 2, blocks, seed, number));
        }
    });
}

fn churn_within(live: usize, count: usize, seed: usize, thread: u64) {
    let mut random = Random::new(1000 * thread + seed as u64);
    let (halves, in_turn) = (seed % 2 == 1, seed / 2 % 2 == 1);
    let (mut blocks, mut held, mut turn) = (Vec::new(), 0, 0);
    for number in 0..count {
        let doubling = match in_turn {
            true => 3 * (turn % 2) + random.next(3),
            false => random.next(6),
        };
        let bytes = (16 << 10 << doubling) + random.next(16 << 10 << doubling);
        let layout = Layout::from_size_align(bytes, 16).unwrap();
        // SAFETY: the layout is not empty.
        let block = unsafe { HEAP.alloc(layout) };
        assert!(!block.is_null());
        let granted = HEAP.usable_size(block).unwrap();
        let freed = match halves {
            true if held + granted > live => blocks.len() / 2,
            _ => 0,
        };
        turn += usize::from(freed > 0 || number % 10_000 == 0);
        let mut left = blocks.len() - freed;
        while blocks.len() > left || held + granted > live {
            left = left.min(blocks.len());
            let (block, layout, granted) = blocks.swap_remove(random.next(blocks.len()));
            // SAFETY: our block, with this layout.
            unsafe { HEAP.dealloc(block, layout) };
            held -= granted;
        }
        // SAFETY: our block, of this length.
        unsafe { block.write_bytes(1, bytes) };
        blocks.push((block, layout, granted));
        held += granted;
    }
    for (block, layout, _) in blocks {
        // SAFETY: our block, with this layout.
        unsafe { HEAP.dealloc(block, layout) };
    }
}

/// Runs a child in a cgroup. If the child asks for it, the limit grows eightfold.
fn run_in(group: &Group, limit: usize, child: &str, task: [usize; 2], mode: &str) -> ExitStatus {
    group.allow(limit).unwrap();
    let mut command = itself(child);
    command.env(TASK, format!("{} {}", task[0], task[1]));
    command.env("LARDER_MODE", mode);
    let processes = group.folder.join("cgroup.procs");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    fs::write(processes, child.id().to_string()).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"begin\n").unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        if line.contains("the limit may go") {
            group.allow(8 * limit).unwrap();
            stdin.write_all(b"it has gone\n").unwrap();
        }
    }
    child.wait().unwrap()
}

#[test]
fn a_program_in_a_group_with_little_memory_lives_and_has_more_once_the_limit_goes() {
    const LIMIT: usize = 96 << 20;
    let Some(group) = Group::new("little", LIMIT) else {
        println!("skipped: this process may make no group with a limit on memory");
        return;
    };
    let run = |greed| {
        run_in(
            &group,
            LIMIT,
            "child_in_a_group",
            [LIMIT, greed],
            "balanced",
        )
    };
    let status = run(0);
    assert!(status.success(), "{status}");
    // The limit is effective: the kernel kills a process that touches more.
    let status = run(1);
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
}

#[test]
fn programs_live_in_a_group_that_has_a_seventh_more_than_they_use() {
    const LIMIT: usize = 138 << 20;
    // The limit is 1.15 times this.
    let live = LIMIT / 23 * 20;
    let Some(group) = Group::new("tight", LIMIT) else {
        println!("skipped: this process may make no group with a limit on memory");
        return;
    };
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        // Threads that leave the child little processor time.
        for _ in 0..8 {
            scope.spawn(|| {
                while is_long() && !ended.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        let lives = ["balanced", "memory"].map(|mode| {
            [0, 1, 2, 3].map(|seed| {
                let child = "child_of_random_sizes";
                run_in(&group, LIMIT, child, [live, seed], mode).success()
            })
        });
        ended.store(true, Ordering::Relaxed);
        assert_eq!(lives, [[true; 4]; 2]);
    });
}
