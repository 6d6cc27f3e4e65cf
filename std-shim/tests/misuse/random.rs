//! Random misuse of a global allocator, among correct allocations, frees and writes. The hook gets
//! each misuse, with its text and the block's address, and nothing else.

use std::alloc::{GlobalAlloc, Layout};
use std::os::unix::process::ExitStatusExt;
use std::ptr;
use std::sync::Mutex;

use larder::OnMisuse;

use crate::common::{Random, is_long};
use crate::{HEAP, run};

const TWICE: &str = "freed a block twice";
const NO_BLOCK: &str = "freed an address where no block of this heap starts";
const LAYOUT: &str = "freed a block with another layout than it was allocated with";
const PAST: &str = "wrote past the end of a block";
const BEFORE: &str = "wrote before the start of a block";
const AFTER: &str = "wrote to a block that was freed";
const RESIZED_FREED: &str = "resized a block that was freed";
const RESIZED_NO_BLOCK: &str = "resized an address where no block of this heap starts";

/// Each kind of misuse, its text, and the modes that detect it.
const KINDS: [(&str, &str, &str); 15] = [
    ("twice", TWICE, "hardened checking guard"),
    ("long-twice", NO_BLOCK, "hardened checking"),
    ("nothing-twice", NO_BLOCK, "hardened checking"),
    ("resize-freed", RESIZED_FREED, "hardened checking guard"),
    ("inside", NO_BLOCK, "hardened checking guard"),
    ("resize-inside", RESIZED_NO_BLOCK, "hardened checking guard"),
    ("foreign", NO_BLOCK, "hardened checking"),
    ("layout", LAYOUT, "hardened checking guard"),
    ("check-layout", LAYOUT, "hardened checking"),
    ("resize-layout", LAYOUT, "hardened checking guard"),
    ("past", PAST, "hardened checking guard"),
    ("past-resize", PAST, "hardened checking guard"),
    ("before", BEFORE, "checking"),
    ("after-free-soon", AFTER, "hardened checking"),
    ("after-free", AFTER, "hardened checking"),
];

/// The number of live blocks, and a number of blocks that exceeds the quarantine.
const COUNT: usize = 100;
const QUARANTINE: usize = 17_000;

static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn free(block: *mut u8, layout: Layout) {
    // SAFETY: a block of the heap, or an address that the heap rejects.
    unsafe { HEAP.dealloc(block, layout) }
}

fn resize(block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
    // SAFETY: a block of the heap, or an address that the heap rejects.
    unsafe { HEAP.realloc(block, layout, bytes) }
}

/// Changes a byte outside all blocks.
fn change(byte: *mut u8) {
    // SAFETY: memory of the heap, which checks it.
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
    /// Whether only blocks in pages of their own are misused.
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
        // SAFETY: our block, of this length.
        unsafe { block.write_bytes(fill, layout.size()) };
        Held {
            block,
            layout,
            fill,
        }
    }

    fn allocate(&mut self) -> Held {
        let align = 1 << self.random.next(5);
        let bytes = self.bytes();
        self.allocate_as(layout(bytes, align))
    }

    fn allocate_as(&mut self, layout: Layout) -> Held {
        // SAFETY: a heap that detects misuse serves empty layouts, too.
        let block = unsafe { HEAP.alloc(layout) };
        self.fill(block, layout)
    }

    fn check(held: &Held, bytes: usize) {
        // SAFETY: our block, of this length.
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
                self.fill(block, layout(bytes, old.layout.align()))
            } else {
                free(old.block, old.layout);
                self.allocate()
            };
        }
        let told = TOLD.lock().unwrap();
        assert!(told.is_empty(), "told of nothing: {told:?}");
    }

    /// Takes a block for misuse, and puts another one in its place.
    fn take(&mut self) -> Held {
        loop {
            let place = self.random.next(COUNT);
            let held = self.held[place];
            let size = held.layout.size();
            // The block must leave part of its page unused.
            let has_page = HEAP.usable_size(held.block) == Some(size) && size < 4000;
            if self.in_pages && (!has_page || size.is_multiple_of(16)) {
                self.go_on(1);
                continue;
            }
            self.held[place] = self.allocate();
            return held;
        }
    }

    fn victim(&mut self, kind: &str) -> Held {
        match kind {
            "nothing-twice" => self.allocate_as(layout(0, 1)),
            "long-twice" => {
                let bytes = (1 << 20) + self.random.next(1 << 20);
                self.allocate_as(layout(bytes, 1))
            }
            _ => self.take(),
        }
    }

    /// Returns an address outside the heap.
    fn foreign(&mut self) -> *mut u8 {
        match self.random.next(2) {
            0 => (&raw mut self.in_pages).cast(),
            _ => ptr::without_provenance_mut(1 + self.random.next(1 << 30)),
        }
    }

    fn other_size(&mut self, size: usize) -> usize {
        match self.random.next(3) {
            0 if size > 1 => 1 + self.random.next(size - 1),
            1 => size + (1 << 20),
            _ => size + 1 + self.random.next(3 * size),
        }
    }

    /// Returns a layout that a block does not have: another size, or a coarser alignment.
    fn other_layout(&mut self, right: Layout) -> Layout {
        match self.random.next(4) {
            0 => layout(right.size(), 32 << self.random.next(8)),
            _ => layout(self.other_size(right.size()), right.align()),
        }
    }

    /// Misuses a block. Returns the address that the hook must get.
    fn misuse(&mut self, kind: &str) -> *mut u8 {
        let Held { block, layout, .. } = self.victim(kind);
        let size = layout.size();
        match kind {
            "twice" => {
                free(block, layout);
                let times = self.random.next(50);
                self.go_on(times);
                free(block, layout);
            }
            // Immediately, because another block may be there soon.
            "long-twice" | "nothing-twice" => {
                free(block, layout);
                free(block, layout);
            }
            "resize-freed" => {
                free(block, layout);
                assert_eq!(HEAP.usable_size(block), None);
                assert!(resize(block, layout, 1 + size).is_null());
            }
            "inside" | "foreign" | "resize-inside" => {
                let address = match kind {
                    "foreign" => self.foreign(),
                    _ => block.wrapping_add(1 + self.random.next(size)),
                };
                match kind {
                    "resize-inside" => assert!(resize(address, layout, size + 1).is_null()),
                    _ => free(address, layout),
                }
                free(block, layout);
                return address;
            }
            "layout" => free(block, self.other_layout(layout)),
            "check-layout" => {
                HEAP.check_layout(block, size, layout.align());
                let other = self.other_layout(layout);
                HEAP.check_layout(block, other.size(), other.align());
                free(block, layout);
            }
            "resize-layout" => {
                let other = self::layout(self.other_size(size), layout.align());
                let moved = resize(block, other, size + 500_000);
                free(moved, self::layout(size + 500_000, layout.align()));
            }
            "past" => {
                change(block.wrapping_add(size));
                free(block, layout);
            }
            "past-resize" => {
                change(block.wrapping_add(size));
                // Resizes in place, or moves the block.
                let bytes = [size + 1, 1 + self.random.next(2 * size)][self.random.next(2)];
                let resized = resize(block, layout, bytes);
                assert!(HEAP.usable_size(resized) >= Some(bytes));
                free(resized, self::layout(bytes, layout.align()));
            }
            "before" => {
                change(block.wrapping_sub(1 + self.random.next(16)));
                free(block, layout);
            }
            "after-free-soon" => {
                free(block, layout);
                change(block.wrapping_add(self.random.next(size.min(200))));
                drop_blocks(1);
            }
            _ => {
                free(block, layout);
                drop_blocks(2);
                change(block.wrapping_add(self.random.next(size)));
                drop_blocks(QUARANTINE);
            }
        }
        block
    }
}

fn layout(bytes: usize, align: usize) -> Layout {
    Layout::from_size_align(bytes, align).unwrap()
}

fn drop_blocks(count: usize) {
    let layout = Layout::new::<[u8; 10]>();
    for _ in 0..count {
        // SAFETY: the layout is not empty.
        free(unsafe { HEAP.alloc(layout) }, layout);
    }
}

fn words_of(kind: &str) -> &'static str {
    let mut kinds = KINDS.into_iter();
    kinds.find(|(known, ..)| *known == kind).unwrap().1
}

/// Misuses blocks repeatedly, and checks what the hook gets.
pub(crate) fn told(mode: &str, kind: &str) {
    let words = words_of(kind);
    let mut program = Program::new(mode == "guard");
    HEAP.on_misuse(OnMisuse::Call(|report| {
        // The hook may allocate.
        drop_blocks(1);
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

/// Misuses one block without a hook.
pub(crate) fn once(mode: &str, kind: &str) {
    Program::new(mode == "guard").misuse(kind);
    println!("went on");
}

/// Runs a task for each kind of misuse in each mode that finds it.
fn in_each_mode(task: &str, check: impl Fn(crate::End, &'static str, &str)) {
    for (kind, words, modes) in KINDS {
        for mode in modes.split(' ') {
            let what = format!("{kind} {mode}");
            check(
                run(mode, &format!("{task} {mode} {kind}"), &[]),
                words,
                &what,
            );
        }
    }
}

#[test]
fn a_hook_is_told_of_each_misuse_at_random_moments_and_of_nothing_else() {
    in_each_mode("random", |end, _, what| {
        end.assert_well(what);
        assert!(end.said.contains("told of each"), "{what}: {}", end.said);
    });
}

#[test]
fn without_a_hook_each_misuse_ends_the_process_with_a_line_that_names_it() {
    in_each_mode("once", |end, words, what| {
        let what = format!("{what}: {}{}", end.said, end.report);
        assert_eq!(end.status.signal(), Some(libc::SIGABRT), "{what}");
        let first = format!("larder: {words}: 0x");
        assert!(end.report.starts_with(&first), "{what}");
    });
}
