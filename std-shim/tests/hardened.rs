//! The hardened heap as global allocator: correct programs run as usual, and a free or resize that does not fit the
//! block ends the process. Programs in C and C++ are tested in `malloc`.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(all(unix, not(miri)))]

#[path = "../src/tests/random.rs"]
mod random;

use std::alloc::{GlobalAlloc, Layout};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use larder::{Larder, OnMisuse};
use random::Random;

#[global_allocator]
static HEAP: Larder = Larder::hardened();

/// A block that knows what it holds.
struct Held {
    start: *mut u8,
    layout: Layout,
    fill: u8,
}

// SAFETY: the block belongs to the value.
unsafe impl Send for Held {}

impl Held {
    fn new(random: &mut Random) -> Self {
        let size = match random.next(100) {
            0 => random.next(3 << 20),
            1..10 => random.next(200 << 10),
            10..30 => random.next(5000),
            _ => random.next(200),
        };
        let align = 1
            << if random.next(10) == 0 {
                random.next(17)
            } else {
                random.next(5)
            };
        let layout = Layout::from_size_align(size + 1, align).unwrap();
        let start = match random.next(2) {
            // SAFETY: the layout is not empty.
            0 => unsafe { HEAP.alloc(layout) },
            // SAFETY: the layout is not empty.
            _ => unsafe { HEAP.alloc_zeroed(layout) },
        };
        assert!(!start.is_null() && start.addr().is_multiple_of(align));
        let held = Self {
            start,
            layout,
            fill: 0,
        };
        held.assert_filled(layout.size());
        held.filled(random.next(256) as u8)
    }

    fn filled(mut self, fill: u8) -> Self {
        self.fill = fill;
        // SAFETY: a block of ours, that long.
        unsafe { self.start.write_bytes(fill, self.layout.size()) };
        self
    }

    fn assert_filled(&self, bytes: usize) {
        // SAFETY: a block of ours, at least that long.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, bytes) };
        assert!(bytes.iter().all(|&byte| byte == self.fill));
    }

    fn resize(mut self, random: &mut Random) -> Self {
        let size = random.next(2 * self.layout.size()) + 1;
        // SAFETY: a block of ours with this layout, and a size that is not 0.
        self.start = unsafe { HEAP.realloc(self.start, self.layout, size) };
        assert!(!self.start.is_null());
        self.assert_filled(size.min(self.layout.size()));
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        let fill = self.fill.wrapping_add(1);
        self.filled(fill)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.assert_filled(self.layout.size());
        // SAFETY: a block of ours with this layout.
        unsafe { HEAP.dealloc(self.start, self.layout) };
    }
}

#[test]
fn random_programs_of_threads_find_every_block_whole() {
    let seed = 1;
    let shared: Mutex<Vec<Held>> = Mutex::default();
    thread::scope(|scope| {
        for number in 0..4 {
            let shared = &shared;
            scope.spawn(move || {
                let mut random = Random(seed + number);
                let mut own = Vec::new();
                for _ in 0..8000 {
                    match random.next(4) {
                        0 | 1 => own.push(Held::new(&mut random)),
                        2 if !own.is_empty() => {
                            let held: Held = own.swap_remove(random.next(own.len()));
                            match random.next(3) {
                                0 => own.push(held.resize(&mut random)),
                                1 => shared.lock().unwrap().push(held),
                                _ => {}
                            }
                        }
                        _ => drop(shared.lock().unwrap().pop()),
                    }
                    if own.len() > 300 {
                        own.clear();
                    }
                }
            });
        }
    });
    assert!(HEAP.stats().live_bytes > 0);
    HEAP.trim();
    drop(shared);
}

#[test]
fn steps_are_not_planned_and_harm_nothing() {
    for _ in 0..5 {
        let _step = larder::step();
        drop(vec![1_u8; 1 << 20]);
        drop(vec![2_u8; 100_000]);
    }
    assert_eq!(HEAP.stats().steps.steps, 0);
}

#[test]
fn a_block_has_as_many_bytes_as_were_asked_for() {
    for bytes in [0, 1, 16, 100, 4096, 300_000] {
        let block = HEAP.malloc(bytes);
        assert_eq!(HEAP.usable_size(block), Some(bytes));
        // SAFETY: a block of ours.
        unsafe { HEAP.free(block) };
        assert_eq!(HEAP.usable_size(block), None);
    }
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

const OTHER_LAYOUT: &str = "larder: freed a block with another layout than it was allocated with";

/// The misuse of a process, and the report of it.
const MISUSES: [(&str, fn(), &str); 8] = [
    ("shorter", || free_as(layout(99, 8)), OTHER_LAYOUT),
    ("longer", || free_as(layout(101, 8)), OTHER_LAYOUT),
    ("aligned", || free_as(layout(100, 32)), OTHER_LAYOUT),
    (
        "without a class",
        || free_as(layout(1 << 20, 8)),
        OTHER_LAYOUT,
    ),
    ("as a word", || free_as(layout(8, 8)), OTHER_LAYOUT),
    ("twice", free_twice, "larder: freed a block twice"),
    ("resized", || resize_as(layout(90, 8), 95), OTHER_LAYOUT),
    ("moved", || resize_as(layout(90, 8), 900), OTHER_LAYOUT),
];

fn block() -> *mut u8 {
    // SAFETY: the layout is not empty.
    unsafe { HEAP.alloc(layout(100, 8)) }
}

fn free_as(layout: Layout) {
    // SAFETY: broken, which ends the process.
    unsafe { HEAP.dealloc(block(), layout) };
}

fn free_twice() {
    let block = block();
    for _ in 0..2 {
        // SAFETY: broken the second time, which ends the process.
        unsafe { HEAP.dealloc(block, layout(100, 8)) };
    }
}

fn resize_as(layout: Layout, size: usize) {
    // SAFETY: broken, which ends the process.
    unsafe { HEAP.realloc(block(), layout, size) };
}

/// The variable that selects a process's misuse.
const MISUSE: &str = "HEAP_TEST_MISUSE";

#[test]
fn a_free_or_resize_that_does_not_fit_its_block_ends_the_process() {
    for (number, (name, _, words)) in MISUSES.iter().enumerate() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "does_one_thing_wrong",
                "--nocapture",
                "--ignored",
            ])
            .env(MISUSE, number.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGABRT),
            "{name}: {said}"
        );
        assert!(said.starts_with(words), "{name}: {said}");
    }
}

#[test]
#[ignore = "another test starts it"]
fn does_one_thing_wrong() {
    let Ok(number) = std::env::var(MISUSE) else {
        println!("nobody asks for a misuse");
        return;
    };
    let (_, misuse, _) = MISUSES[number.parse::<usize>().unwrap()];
    misuse();
}

/// The heap's reports, without addresses.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Asserts that `misuse` is told so, and nothing else.
#[track_caller]
fn is_told(expected: &[&str], misuse: impl FnOnce()) {
    misuse();
    let told = std::mem::take(&mut *TOLD.lock().unwrap());
    assert_eq!(told, expected);
}

#[test]
#[ignore = "another test starts it"]
fn does_all_things_wrong() {
    HEAP.on_misuse(OnMisuse::Call(|report| {
        let first = report.split(": 0x").next().unwrap_or_default();
        TOLD.lock().unwrap().push(first.to_owned());
    }));
    const PAST: &str = "larder: wrote past the end of a block";
    const AFTER: &str = "larder: wrote to a block that was freed";
    const NO_BLOCK: &str = "larder: freed an address where no block of this heap starts";
    let write = |block: *mut u8, at: usize| {
        let place = block.wrapping_add(at);
        // Another value than was there: the fill is any odd one.
        // SAFETY: broken by the cases below, in memory of the heap.
        let there = unsafe { place.read() };
        // SAFETY: the same memory.
        unsafe { place.write(!there) };
    };
    // SAFETY: broken by the cases below, which are told.
    let free = |block: *mut u8| unsafe { HEAP.free(block) };
    // SAFETY: broken by the cases below, which are told.
    let resize = |block: *mut u8, bytes| unsafe { HEAP.resize(block, bytes) };

    let one = HEAP.malloc(100);
    write(one, 100);
    is_told(&[PAST], || free(one));
    is_told(&["larder: freed a block twice"], || free(one));
    is_told(&["larder: resized a block that was freed"], || {
        assert!(resize(one, 10).is_null());
    });
    // Looked at again with the next allocation, since it went last.
    is_told(&[AFTER], || {
        let late = HEAP.malloc(100);
        free(late);
        write(late, 5);
        free(HEAP.malloc(10));
    });

    let other = HEAP.malloc(100);
    is_told(&[NO_BLOCK], || free(other.wrapping_add(16)));
    is_told(
        &["larder: resized an address where no block of this heap starts"],
        || {
            assert!(resize(other.wrapping_add(16), 10).is_null());
        },
    );
    for (bytes, align) in [(99, 8), (100, 32)] {
        is_told(&[OTHER_LAYOUT], || HEAP.check_layout(other, bytes, align));
    }
    is_told(&[], || HEAP.check_layout(other, 100, 16));
    write(other, 100);
    // Found before the block has its new length, where it is.
    is_told(&[PAST], || assert_eq!(resize(other, 103), other));
    assert_eq!(HEAP.usable_size(other), Some(103));
    is_told(&[], || free(other));

    let nothing = HEAP.malloc(0);
    is_told(&[], || free(nothing));
    is_told(&[NO_BLOCK], || free(nothing));
    let long = HEAP.malloc(1 << 20);
    is_told(&[], || free(long));
    is_told(&[NO_BLOCK], || free(long));
    println!("all was told");
}

#[test]
fn each_misuse_is_told_to_a_hook_and_the_program_goes_on() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "does_all_things_wrong",
            "--nocapture",
            "--ignored",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complaints}");
    assert!(said.contains("all was told"), "{said}");
}

#[test]
#[ignore = "another test starts it"]
fn panics_in_a_hook() {
    HEAP.on_misuse(OnMisuse::Call(|_| panic!("no")));
    let block = HEAP.malloc(100);
    // SAFETY: freed once, and then again, which is told.
    unsafe { HEAP.free(block) };
    // SAFETY: broken, which is told.
    let freed = std::panic::catch_unwind(|| unsafe { HEAP.free(block) });
    println!("the allocator has unwound: {freed:?}");
}

#[test]
fn a_hook_that_panics_ends_the_process_and_does_not_unwind_through_the_allocator() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "panics_in_a_hook", "--nocapture", "--ignored"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
    assert!(!said.contains("unwound"), "{said}");
}
