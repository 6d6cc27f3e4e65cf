//! Programs that the system gives little: a child process with a limit allocates until the answer
//! is null, frees, allocates again and starts a thread.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{env, io, ptr, thread};

use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new();

/// Set for a child: the limit it runs under, and the size of its blocks, in bytes.
const TASK: &str = "LARDER_TEST_LIMITS";

/// Longest life of a child.
const LIMIT_SECONDS: libc::c_uint = 120;

/// Size of the blocks that come after; few of their pages are touched.
const OTHER_BYTES: usize = 30_000;

/// Blocks linked through themselves, so that keeping them needs no memory.
struct Blocks {
    layout: Layout,
    newest: *mut u8,
    count: usize,
}

impl Blocks {
    /// Allocates blocks until there are no more.
    fn all(bytes: usize) -> Self {
        let mut blocks = Self {
            layout: Layout::from_size_align(bytes, 16).unwrap(),
            newest: ptr::null_mut(),
            count: 0,
        };
        loop {
            // SAFETY: the layout is not empty.
            let block = unsafe { HEAP.alloc(blocks.layout) };
            if block.is_null() {
                return blocks;
            }
            // SAFETY: ours, long and aligned enough.
            unsafe { block.cast::<*mut u8>().write(blocks.newest) };
            // SAFETY: ours, that long: its end must be there too.
            unsafe { block.wrapping_add(bytes - 1).write(1) };
            blocks.newest = block;
            blocks.count += 1;
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
            // SAFETY: written by `all`.
            self.newest = unsafe { block.cast::<*mut u8>().read() };
            // SAFETY: from `all`, with this layout.
            unsafe { HEAP.dealloc(block, self.layout) };
        }
    }
}

/// What a child does; in the parent it does nothing.
#[test]
fn child() {
    let numbers = env::var(TASK).ok().and_then(|task| {
        let (limit, size) = task.split_once(' ')?;
        Some((limit.parse::<usize>().ok()?, size.parse().ok()?))
    });
    let Some((limit, size)) = numbers else {
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
    // The heap's own thread runs now, whose stack may lie where a block was.
    assert!(again + size >= had, "{had} bytes at first, then {again}");
    // What caches and transfer caches keep is used before the answer is null.
    let others = Blocks::all(OTHER_BYTES).bytes();
    assert!(
        others > had / 4 * 3,
        "{had} bytes at first, then {others} in other blocks"
    );
    HEAP.trim();
    let sum = thread::spawn(|| (0..10_000u64).collect::<Vec<_>>().iter().sum::<u64>());
    assert_eq!(sum.join().unwrap(), 49_995_000);
}

/// Small ones touch all of their memory, so only low limits are tried with them.
const SIZES: [usize; 5] = [100, 20_000, 100_000, 1 << 20, 5_300_000];

/// Runs a child for each block size under a limit.
fn run_under(resource: libc::__rlimit_resource_t, bytes: u64, sizes: &[usize]) {
    for size in sizes {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture"]);
        command.env(TASK, format!("{bytes} {size}"));
        let set = move || {
            // SAFETY: has no conditions. A child that hangs is ended.
            unsafe { libc::alarm(LIMIT_SECONDS) };
            let limit = libc::rlimit {
                rlim_cur: bytes,
                rlim_max: bytes,
            };
            // SAFETY: the limits are there to be read.
            match unsafe { libc::setrlimit(resource, &raw const limit) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure makes two system calls and allocates nothing.
        unsafe { command.pre_exec(set) };
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(
            output.status.success(),
            "blocks of {size}: {}\n{said}",
            output.status
        );
        assert!(said.contains("1 passed"), "the child did not run: {said}");
    }
}

#[test]
fn a_program_with_64_mib_of_addresses_lives() {
    run_under(libc::RLIMIT_AS, 64 << 20, &SIZES);
}

#[test]
fn a_program_with_128_mib_of_addresses_lives() {
    run_under(libc::RLIMIT_AS, 128 << 20, &SIZES);
}

#[test]
fn a_program_with_300_mib_of_addresses_lives() {
    run_under(libc::RLIMIT_AS, 300 << 20, &SIZES[1..]);
}

#[test]
fn a_program_with_1_gib_of_addresses_lives() {
    run_under(libc::RLIMIT_AS, 1 << 30, &SIZES[1..]);
}

#[test]
fn a_program_with_little_memory_for_data_lives() {
    run_under(libc::RLIMIT_DATA, 48 << 20, &SIZES);
}
