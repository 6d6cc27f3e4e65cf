//! Random misuses of blocks, with and without guard pages. If the block has no guard pages, the
//! child says so and does nothing else.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, thread};

use crate::common::{Random, is_long};
use crate::{End, HEAP, run};

/// Each kind of misuse, and whether every guarded block shows it.
const KINDS: [(&str, bool); 5] = [
    ("reads_after_free", true),
    ("writes_after_free", true),
    ("overruns", true),
    // The bytes before a block at the end of its page are not checked.
    ("underruns", false),
    ("frees_twice", true),
];

const NUMBERS: [usize; 4] = [1, 10, 100, 1000];
const NOT_GUARDED: &str = "no guard pages\n";

/// Says in which line of this file the next misuse is.
fn next_line(line: u32) {
    println!("line {}", line + 1);
}

#[inline(never)]
fn allocates(layout: Layout) -> *mut u8 {
    // SAFETY: the layout is not empty.
    black_box(unsafe { alloc(layout) })
}

#[inline(never)]
fn frees(block: *mut u8, layout: Layout) {
    // SAFETY: a block with this layout.
    unsafe { dealloc(block, layout) };
    black_box(block);
}

#[inline(never)]
fn reads_after_free(block: *mut u8, layout: Layout, random: &mut Random) {
    frees(block, layout);
    let byte = block.wrapping_add(random.next(layout.size()));
    next_line(line!() + 1);
    // SAFETY: none: the heap must find this.
    black_box(unsafe { byte.read_volatile() });
}

#[inline(never)]
fn writes_after_free(block: *mut u8, layout: Layout, random: &mut Random) {
    frees(block, layout);
    let byte = block.wrapping_add(random.next(layout.size()));
    next_line(line!() + 1);
    // SAFETY: none: the heap must find this.
    unsafe { byte.write_volatile(1) };
    black_box(block);
}

#[inline(never)]
fn overruns(block: *mut u8, layout: Layout, random: &mut Random) {
    let end = block.wrapping_add(layout.size());
    let bytes = 1 + random.next(64);
    next_line(line!() + 2);
    for byte in (0..bytes).map(|byte| end.wrapping_add(byte)) {
        // SAFETY: none: the heap must find this. A changed byte is never the one that was there.
        unsafe { byte.write_volatile(!byte.read_volatile()) };
    }
    next_line(line!() + 1);
    // SAFETY: none: the heap must find this.
    unsafe { dealloc(block, layout) };
    black_box(block);
}

#[inline(never)]
fn underruns(block: *mut u8, layout: Layout, random: &mut Random) {
    let bytes = 1 + random.next(64);
    next_line(line!() + 2);
    for byte in (1..=bytes).map(|byte| block.wrapping_sub(byte)) {
        // SAFETY: none: the heap must find this.
        unsafe { byte.write_volatile(!byte.read_volatile()) };
    }
    frees(block, layout);
}

#[inline(never)]
fn frees_twice(block: *mut u8, layout: Layout, _: &mut Random) {
    frees(block, layout);
    next_line(line!() + 1);
    // SAFETY: none: the heap must find this.
    unsafe { dealloc(block, layout) };
    black_box(block);
}

/// Misuses the first block that has guard pages, among some hundred others.
pub(crate) fn task(kind: &str, seed: u64) {
    let mut random = Random::new(seed);
    match random.next(2) {
        0 => misuse(kind, &mut random),
        _ => thread::scope(|scope| {
            scope.spawn(|| misuse(kind, &mut random));
        }),
    }
}

fn misuse(kind: &str, random: &mut Random) {
    let one_in: usize = env::var("LARDER_GUARD").unwrap().parse().unwrap();
    let held: Vec<Vec<u8>> = (0..random.next(100))
        .map(|_| vec![1; random.next(5000)])
        .collect();
    let blocks = (0..3 * one_in).map(|_| {
        // An odd length is no size class, so only a block with guard pages has it exactly.
        let layout = Layout::from_size_align(2 * random.next(2000) + 1, 8).unwrap();
        (allocates(layout), layout)
    });
    let blocks: Vec<_> = blocks.collect();
    let mut blocks = blocks.into_iter();
    let guarded = blocks.find(|(block, layout)| HEAP.usable_size(*block) == Some(layout.size()));
    let Some((block, layout)) = guarded else {
        return print!("{NOT_GUARDED}");
    };
    // SAFETY: our block, of this length.
    unsafe { block.write_bytes(1, layout.size()) };
    println!("block {block:p}");
    let act = match kind {
        "reads_after_free" => reads_after_free,
        "writes_after_free" => writes_after_free,
        "overruns" => overruns,
        "underruns" => underruns,
        "frees_twice" => frees_twice,
        _ => panic!("{kind}"),
    };
    act(block, layout, random);
    drop(black_box(held));
    println!("went on");
}

/// Returns the end of the misuse in a word.
fn outcome(kind: &str, must_be_reported: bool, end: &End) -> Result<&'static str, &'static str> {
    let End {
        status,
        said,
        report,
    } = end;
    if status.success() && report.is_empty() {
        return match () {
            () if said == NOT_GUARDED => Ok("no guard pages"),
            () if said.ends_with("went on\n") && !must_be_reported => Ok("on the other side"),
            () => Err("not found"),
        };
    }
    let words = match kind {
        "reads_after_free" | "writes_after_free" => &["read or wrote a block that was freed"][..],
        "overruns" => &[
            "read or wrote past the end of a block",
            "wrote past the end of a block",
        ],
        "underruns" => &["read or wrote before the start of a block"],
        _ => &["freed a block twice"],
    };
    if !words
        .iter()
        .any(|words| report.starts_with(&format!("larder: {words}: 0x")))
    {
        return Err("silent, or with another report");
    }
    let is_fault = report.starts_with("larder: read or wrote");
    let signal = if is_fault {
        libc::SIGSEGV
    } else {
        libc::SIGABRT
    };
    if std::os::unix::process::ExitStatusExt::signal(status) != Some(signal) {
        return Err("ended otherwise");
    }
    let allocated = first_frame(report, "allocated by");
    let found = first_frame(report, "found by");
    if !cfg!(feature = "heap-profile") {
        let program = env::current_exe().unwrap();
        let is_place = |frame: &str| frame.contains(&format!("{}+0x", program.display()));
        let has_places = is_place(allocated) && is_place(found);
        return has_places.then_some("reported").ok_or("no places");
    }
    if !allocated.contains("allocates") || !found.contains(kind) {
        return Err("the wrong function");
    }
    // The last line that the child said.
    let line = said
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("line "));
    let place = format!("misuses.rs:{}", line.unwrap());
    let has_lines = cfg!(debug_assertions) || report.contains("misuses.rs:");
    let is_right = !has_lines || found.ends_with(&place);
    is_right.then_some("reported").ok_or("the wrong line")
}

/// Returns the first frame below a heading.
fn first_frame<'a>(report: &'a str, heading: &str) -> &'a str {
    let mut lines = report.lines().skip_while(|line| !line.contains(heading));
    lines.nth(1).unwrap_or_default()
}

/// Runs the misuses, and prints how many ended in which way.
pub(crate) fn check_all() {
    let count = env::var("HEAP_TEST_MISUSES").map(|count| count.parse().unwrap());
    let count = count.unwrap_or(if is_long() { 1000 } else { 40 });
    let next = AtomicUsize::new(0);
    let (ends, wrong) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    let workers = thread::available_parallelism().map_or(4, |count| count.get().max(4));
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    let one_in = NUMBERS[seed % NUMBERS.len()];
                    let (kind, must) = KINDS[seed / NUMBERS.len() % KINDS.len()];
                    let end = run(one_in, &["misuse", kind, &seed.to_string()]);
                    let outcome = outcome(kind, must, &end);
                    if let Err(cause) = outcome {
                        let what = format!("{kind}, seed {seed}, one in {one_in}: {cause}");
                        let text = format!("{what}: {}\n{}{}", end.status, end.said, end.report);
                        wrong.lock().unwrap().push(text);
                    }
                    let (Ok(word) | Err(word)) = outcome;
                    let mut ends = ends.lock().unwrap();
                    *ends.entry((one_in, word)).or_insert(0) += 1;
                }
            });
        }
    });
    for ((one_in, word), count) in ends.into_inner().unwrap() {
        println!("one in {one_in}: {count} {word}");
    }
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} wrong: {}", wrong.len(), wrong[0]);
}
