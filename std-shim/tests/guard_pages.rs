//! Guard pages in a Rust program: one for each block that is not from its thread's cache. Programs in C are tested in
//! `malloc`.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(all(target_os = "linux", not(miri)))]

mod common;

use std::alloc::{GlobalAlloc, Layout};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::{env, ptr, slice};

use common::{Random, is_long};
use larder::{Larder, OnMisuse};

static HEAP: Larder = Larder::new().with_guard_pages(1).with_fault_reports(true);

/// Pages at hand, and bytes of one.
const PAGES: usize = 256;
const PAGE_BYTES: usize = 4096;

/// Set for a child: what it does, and to how long a block.
const TASK: &str = "HEAP_TEST_GUARD";

/// One at a time: the pages and the reports are the process's.
static TURN: Mutex<()> = Mutex::new(());

fn free(block: *mut u8) {
    // SAFETY: a block of the heap, or the heap says that it is none.
    unsafe { HEAP.free(block) }
}

fn resize(block: *mut u8, bytes: usize) -> *mut u8 {
    // SAFETY: a block of the heap, or the heap says that it is none.
    unsafe { HEAP.resize(block, bytes) }
}

/// A way to ask for blocks and to give them back: by their address, or as a global allocator is asked.
#[derive(Clone, Copy)]
enum Verbs {
    C,
    Rust,
}

use Verbs::{C, Rust};

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).unwrap()
}

impl Verbs {
    fn alloc(self, bytes: usize) -> *mut u8 {
        match self {
            C => HEAP.malloc(bytes),
            // SAFETY: the tests ask for no block of nothing.
            Rust => unsafe { HEAP.alloc(layout(bytes)) },
        }
    }

    fn alloc_zeroed(self, bytes: usize) -> *mut u8 {
        match self {
            C => HEAP.malloc_zeroed(bytes),
            // SAFETY: the tests ask for no block of nothing.
            Rust => unsafe { HEAP.alloc_zeroed(layout(bytes)) },
        }
    }

    fn free(self, block: *mut u8, bytes: usize) {
        match self {
            C => free(block),
            // SAFETY: a block of the heap, or the heap says that it is none.
            Rust => unsafe { HEAP.dealloc(block, layout(bytes)) },
        }
    }

    fn resize(self, block: *mut u8, bytes: usize, new_bytes: usize) -> *mut u8 {
        match self {
            C => resize(block, new_bytes),
            // SAFETY: a block of the heap, or the heap says that it is none.
            Rust => unsafe { HEAP.realloc(block, layout(bytes), new_bytes) },
        }
    }
}

/// Runs in a child; in the parent it does nothing.
#[test]
fn child() {
    let Ok(task) = env::var(TASK) else {
        return;
    };
    let mut words = task.split(' ');
    let mut next = || words.next().unwrap();
    let (verbs, what, bytes) = (next(), next(), next());
    let verbs = if verbs == "c" { C } else { Rust };
    let bytes: usize = bytes.parse().unwrap();
    let block = verbs.alloc(bytes);
    println!("{block:p}");
    let (page, room) = (block.addr() % PAGE_BYTES, bytes.next_multiple_of(16));
    let at_end = page + room == PAGE_BYTES;
    let at = match what {
        "past" if at_end => block.wrapping_add(room),
        "past" => block.wrapping_add(PAGE_BYTES),
        "before" => block.wrapping_sub(page + 1),
        "freed" => {
            verbs.free(block, bytes);
            block
        }
        _ => unreachable!(),
    };
    // SAFETY: none: the child is to end here.
    unsafe { at.write_volatile(1) };
    println!("went on");
}

fn run(verbs: &str, what: &str, bytes: usize) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]);
    command
        .env(TASK, format!("{verbs} {what} {bytes}"))
        .output()
        .unwrap()
}

#[test]
fn who_touches_a_guard_or_a_freed_block_ends_by_the_fault_that_is_explained() {
    for (what, words) in [
        ("past", "larder: read or wrote past the end of a block: 0x"),
        (
            "before",
            "larder: read or wrote before the start of a block: 0x",
        ),
        ("freed", "larder: read or wrote a block that was freed: 0x"),
    ] {
        let mut lengths = vec![1, 100, 1024, 4000];
        if is_long() {
            let mut random = Random::new(1);
            lengths.extend((0..496).map(|_| 1 + random.next(4080)));
        }
        for (verbs, bytes) in ["c", "rust"]
            .into_iter()
            .flat_map(|verbs| lengths.iter().map(move |&bytes| (verbs, bytes)))
        {
            let output = run(verbs, what, bytes);
            let said = String::from_utf8_lossy(&output.stdout);
            let report = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.signal(),
                Some(libc::SIGSEGV),
                "{what} {bytes}: {said}{report}"
            );
            assert!(report.starts_with(words), "{what} {bytes}: {report}");
            let block = said
                .lines()
                .find_map(|line| line.find("0x").map(|at| &line[at..]));
            let second = format!("  block {}: {bytes} bytes, ", block.unwrap());
            assert!(
                report.lines().nth(1).unwrap().starts_with(&second),
                "{report}"
            );
            assert_eq!(report.contains("  freed by"), what == "freed", "{report}");
        }
    }
}

/// The first lines of what `f` has reported, without addresses.
fn reports(f: impl FnOnce()) -> Vec<String> {
    static REPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    HEAP.on_misuse(OnMisuse::Call(|report| {
        let first = report.split(": 0x").next().unwrap();
        REPORTS.lock().unwrap().push(first.to_owned());
    }));
    f();
    std::mem::take(&mut REPORTS.lock().unwrap())
}

#[test]
fn misuse_that_does_not_fault_is_reported_and_does_nothing_else() {
    let _turn = TURN.lock().unwrap();
    for (verbs, bytes) in [C, Rust]
        .into_iter()
        .flat_map(|verbs| [1, 100, 1023, 4000].map(|bytes| (verbs, bytes)))
    {
        let block = verbs.alloc(bytes);
        let said = reports(|| {
            verbs.free(block.wrapping_add(1), bytes);
            assert!(
                verbs
                    .resize(block.wrapping_add(1), bytes, bytes + 1)
                    .is_null()
            );
        });
        assert_eq!(
            said,
            [
                "larder: freed an address where no block of this heap starts",
                "larder: resized an address where no block of this heap starts"
            ]
        );
        assert_eq!(HEAP.usable_size(block), Some(bytes));
        let has_slack = !bytes.is_multiple_of(16);
        let said = reports(|| {
            if has_slack {
                // SAFETY: in the block's page, behind its end.
                let slack = unsafe { &mut *block.wrapping_add(bytes) };
                *slack = !*slack;
            }
            verbs.free(block, bytes);
        });
        let expected = ["larder: wrote past the end of a block"];
        assert_eq!(said, expected[..usize::from(has_slack)]);
        let said = reports(|| {
            verbs.free(block, bytes);
            assert!(verbs.resize(block, bytes, bytes + 1).is_null());
        });
        assert_eq!(
            said,
            [
                "larder: freed a block twice",
                "larder: resized a block that was freed"
            ]
        );
        assert_eq!(HEAP.usable_size(block), None);
    }
}

#[test]
fn a_free_or_resize_with_another_layout_is_reported() {
    let _turn = TURN.lock().unwrap();
    let (block, other) = (Rust.alloc(100), Rust.alloc(100));
    let said = reports(|| {
        Rust.free(block, 99);
        Rust.free(Rust.resize(other, 101, 200), 200);
    });
    let expected = "larder: freed a block with another layout than it was allocated with";
    assert_eq!(said, [expected; 2]);
}

#[test]
fn random_programs_find_every_block_whole_with_and_without_a_page() {
    let _turn = TURN.lock().unwrap();
    for verbs in [C, Rust] {
        let said = reports(|| random_program(verbs));
        assert!(said.is_empty(), "{said:?}");
    }
}

fn random_program(verbs: Verbs) {
    let mut random = Random::new(1);
    let mut held = [(ptr::null_mut::<u8>(), 0_usize, 0_u8); PAGES + 100];
    let mut in_pages = 0;
    for round in 0..40_000 {
        let place = random.next(held.len());
        let (block, bytes, fill) = held[place];
        let wanted = 1 + random.next(5000);
        let check = |block: *mut u8, bytes, fill| {
            // SAFETY: ours, that long.
            let found = unsafe { slice::from_raw_parts(block, bytes) };
            assert!(found.iter().all(|&byte| byte == fill), "{round}");
        };
        let block = match random.next(4) {
            _ if block.is_null() => verbs.alloc(wanted),
            0 => {
                check(block, bytes, fill);
                verbs.free(block, bytes);
                let zeroed = verbs.alloc_zeroed(wanted);
                check(zeroed, wanted, 0);
                zeroed
            }
            1 => {
                verbs.free(block, bytes);
                verbs.alloc(wanted)
            }
            _ => {
                let moved = verbs.resize(block, bytes, wanted);
                check(moved, bytes.min(wanted), fill);
                moved
            }
        };
        assert!(!block.is_null() && block.addr().is_multiple_of(8));
        let usable = HEAP.usable_size(block).unwrap();
        assert!(usable >= wanted);
        in_pages += usize::from(!wanted.is_multiple_of(16) && usable == wanted);
        let fill = random.next(256) as u8;
        // SAFETY: ours, that long.
        unsafe { block.write_bytes(fill, wanted) };
        held[place] = (block, wanted, fill);
    }
    for (block, bytes, _) in held {
        verbs.free(block, bytes);
    }
    assert!(in_pages > 1000, "{in_pages} blocks had a page");
}

#[test]
fn blocks_lie_at_both_sides_of_their_pages() {
    let _turn = TURN.lock().unwrap();
    let blocks: Vec<*mut u8> = (0..60).map(|_| HEAP.malloc(2000)).collect();
    let at_start = blocks.iter().filter(|block| block.addr() % PAGE_BYTES == 0);
    let at_end = blocks
        .iter()
        .filter(|block| block.addr() % PAGE_BYTES == PAGE_BYTES - 2000);
    let (at_start, at_end) = (at_start.count(), at_end.count());
    assert!(
        at_start > 0 && at_end > 0 && at_start + at_end == 60,
        "{at_start} {at_end}"
    );
    blocks.into_iter().for_each(free);
}
