//! Random misuse of a global allocator's verbs by a Rust program, among correct allocations, frees and writes: the
//! hook gets each misuse with its text and the block's address, and nothing else. Programs in C are tested in
//! `malloc`.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(all(target_os = "linux", not(miri)))]

#[path = "common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout};
use std::process::Command;
use std::sync::Mutex;
use std::{env, ptr};

use common::{Random, is_long};
use larder::{Larder, OnMisuse};

static HEAP: Larder = Larder::new().with_environment();

const TWICE: &str = "freed a block twice";
const NO_BLOCK: &str = "freed an address where no block of this heap starts";
const LAYOUT: &str = "freed a block with another layout than it was allocated with";
const PAST: &str = "wrote past the end of a block";
const BEFORE: &str = "wrote before the start of a block";
const AFTER: &str = "wrote to a block that was freed";
const RESIZED_FREED: &str = "resized a block that was freed";
const RESIZED_NO_BLOCK: &str = "resized an address where no block of this heap starts";

/// Each kind of misuse with what is said of it, and the modes that find it.
const KINDS: [(&str, &str, &str); 11] = [
    ("twice", TWICE, "hardened checking guard"),
    ("resize-freed", RESIZED_FREED, "hardened checking guard"),
    ("inside", NO_BLOCK, "hardened checking guard"),
    ("resize-inside", RESIZED_NO_BLOCK, "hardened checking guard"),
    ("foreign", NO_BLOCK, "hardened checking"),
    ("layout", LAYOUT, "hardened checking guard"),
    ("resize-layout", LAYOUT, "hardened checking guard"),
    ("past", PAST, "hardened checking guard"),
    ("before", BEFORE, "checking"),
    ("after-free-soon", AFTER, "hardened checking"),
    ("after-free", AFTER, "hardened checking"),
];

/// Blocks at hand, and more than wait in quarantine.
const COUNT: usize = 100;
const QUARANTINE: usize = 17_000;

const TASK: &str = "HEAP_TEST_MISUSE";

static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn free(block: *mut u8, layout: Layout) {
    // SAFETY: a block of the heap, or the heap says that it is none.
    unsafe { HEAP.dealloc(block, layout) }
}

fn resize(block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
    // SAFETY: a block of the heap, or the heap says that it is none.
    unsafe { HEAP.realloc(block, layout, bytes) }
}

/// Changes a byte outside of all blocks.
fn change(byte: *mut u8) {
    // SAFETY: memory of the heap's, which looks at it.
    let byte = unsafe { &mut *byte };
    *byte = !*byte;
}

#[derive(Clone, Copy)]
struct Held {
    block: *mut u8,
    layout: Layout,
    fill: u8,
}

struct Program {
    random: Random,
    /// Whether a block must lie in a page of its own to be misused.
    in_pages: bool,
    held: Vec<Held>,
}

impl Program {
    fn new(in_pages: bool) -> Self {
        let mut program = Self {
            random: Random::new(1),
            in_pages,
            held: Vec::new(),
        };
        for _ in 0..COUNT {
            let held = program.allocate();
            program.held.push(held);
        }
        program
    }

    fn bytes(&mut self) -> usize {
        let most = match self.random.next(10) {
            0 => 300_000,
            1 | 2 => 9000,
            _ => 300,
        };
        1 + self.random.next(most)
    }

    fn fill(&mut self, block: *mut u8, layout: Layout) -> Held {
        assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()));
        let fill = self.random.next(256) as u8;
        // SAFETY: ours, that long.
        unsafe { block.write_bytes(fill, layout.size()) };
        Held {
            block,
            layout,
            fill,
        }
    }

    fn allocate(&mut self) -> Held {
        let align = 1 << self.random.next(5);
        let layout = Layout::from_size_align(self.bytes(), align).unwrap();
        // SAFETY: the layout is not empty.
        let block = unsafe { HEAP.alloc(layout) };
        self.fill(block, layout)
    }

    fn check(held: &Held, bytes: usize) {
        // SAFETY: ours, that long.
        let found = unsafe { std::slice::from_raw_parts(held.block, bytes) };
        assert!(found.iter().all(|&byte| byte == held.fill));
    }

    /// Makes the calls of a correct program.
    fn go_on(&mut self, times: usize) {
        for _ in 0..times {
            let place = self.random.next(COUNT);
            let old = self.held[place];
            Self::check(&old, old.layout.size());
            self.held[place] = if self.random.next(3) == 0 {
                let bytes = self.bytes();
                let block = resize(old.block, old.layout, bytes);
                let moved = Held { block, ..old };
                Self::check(&moved, bytes.min(old.layout.size()));
                let layout = Layout::from_size_align(bytes, old.layout.align());
                self.fill(block, layout.unwrap())
            } else {
                free(old.block, old.layout);
                self.allocate()
            };
        }
        let told = TOLD.lock().unwrap();
        assert!(told.is_empty(), "told of nothing: {told:?}");
    }

    /// A block to be misused, which another one replaces.
    fn take(&mut self) -> Held {
        loop {
            let place = self.random.next(COUNT);
            let held = self.held[place];
            let size = held.layout.size();
            // One that leaves some of its page.
            let has_page = HEAP.usable_size(held.block) == Some(size) && size < 4000;
            if self.in_pages && (!has_page || size.is_multiple_of(16)) {
                self.go_on(1);
                continue;
            }
            self.held[place] = self.allocate();
            return held;
        }
    }

    /// Does it; of which address the hook must be told.
    fn misuse(&mut self, kind: &str) -> *mut u8 {
        let Held { block, layout, .. } = self.take();
        let size = layout.size();
        let inside = block.wrapping_add(1 + self.random.next(size));
        let other = Layout::from_size_align(size + 1 + self.random.next(3 * size), layout.align());
        let ended = match kind {
            "twice" | "resize-freed" | "after-free-soon" | "after-free" => {
                free(block, layout);
                true
            }
            _ => false,
        };
        let mut address = block;
        match kind {
            "twice" => {
                let times = self.random.next(50);
                self.go_on(times);
                free(block, layout);
            }
            "resize-freed" => assert!(resize(block, layout, 1 + size).is_null()),
            "inside" => {
                address = inside;
                free(inside, layout);
            }
            "resize-inside" => {
                address = inside;
                assert!(resize(inside, layout, size + 1).is_null());
            }
            "foreign" => {
                address = match self.random.next(2) {
                    0 => (&raw mut self.in_pages).cast(),
                    _ => ptr::without_provenance_mut(1 + self.random.next(1 << 30)),
                };
                free(address, layout);
            }
            "layout" => return free_otherwise(block, other.unwrap()),
            "resize-layout" => {
                let moved = resize(block, other.unwrap(), size + 500_000);
                let layout = Layout::from_size_align(size + 500_000, layout.align());
                free(moved, layout.unwrap());
                return block;
            }
            "past" => change(block.wrapping_add(size)),
            "before" => change(block.wrapping_sub(1 + self.random.next(16))),
            "after-free-soon" => {
                change(block.wrapping_add(self.random.next(size.min(200))));
                drop_blocks(1);
            }
            _ => {
                drop_blocks(2);
                change(block.wrapping_add(self.random.next(size)));
                drop_blocks(QUARANTINE);
            }
        }
        if !ended {
            free(block, layout);
        }
        address
    }
}

fn free_otherwise(block: *mut u8, layout: Layout) -> *mut u8 {
    free(block, layout);
    block
}

/// Blocks that come and go.
fn drop_blocks(count: usize) {
    let layout = Layout::new::<[u8; 10]>();
    for _ in 0..count {
        // SAFETY: the layout is not empty.
        free(unsafe { HEAP.alloc(layout) }, layout);
    }
}

#[test]
#[ignore = "others start it"]
fn does_one_thing() {
    let Ok(task) = env::var(TASK) else {
        return;
    };
    let (mode, kind) = task.split_once(' ').unwrap();
    let (_, words, _) = KINDS.iter().find(|(known, ..)| *known == kind).unwrap();
    let mut program = Program::new(mode == "guard");
    HEAP.on_misuse(OnMisuse::Call(|report| {
        TOLD.lock().unwrap().push(report.to_owned());
    }));
    let times = if is_long() { 1000 } else { 20 };
    for round in 0..times {
        program.go_on(50);
        let address = program.misuse(kind);
        let told = std::mem::take(&mut *TOLD.lock().unwrap());
        let first = format!("larder: {words}: {address:p}\n");
        let is_right = told.len() == 1 && told[0].starts_with(&first);
        assert!(is_right, "{round}: {told:?} and not {first}");
    }
    println!("told of each");
}

#[test]
fn a_hook_is_told_of_each_misuse_at_random_moments_and_of_nothing_else() {
    for (kind, _, modes) in KINDS {
        for mode in modes.split(' ') {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "does_one_thing", "--nocapture", "--ignored"]);
            match mode {
                "guard" => command.env("LARDER_GUARD", "1"),
                mode => command.env("LARDER_MODE", mode),
            };
            let output = command.env(TASK, format!("{mode} {kind}")).output();
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            let report = String::from_utf8_lossy(&output.stderr);
            let is_right = output.status.success() && said.contains("told of each");
            assert!(is_right, "{kind} {mode}: {said}{report}");
        }
    }
}
