//! Accesses to guard pages, and the share of blocks that have guard pages.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;

use crate::common::{Random, is_long};
use crate::{HEAP, run};

const PAGE_BYTES: usize = 4096;

/// Touches memory next to a block, or a freed block, with the calls of C or of Rust.
pub(crate) fn touch(verbs: &str, place: &str, bytes: usize) {
    let layout = Layout::from_size_align(bytes, 8).unwrap();
    let block = match verbs {
        "c" => HEAP.malloc(bytes),
        // SAFETY: the layout is not empty.
        _ => unsafe { HEAP.alloc(layout) },
    };
    println!("{block:p}");
    let (page, room) = (block.addr() % PAGE_BYTES, bytes.next_multiple_of(16));
    let at_end = page + room == PAGE_BYTES;
    let at = match (place, verbs) {
        ("past", _) if at_end => block.wrapping_add(room),
        ("past", _) => block.wrapping_add(PAGE_BYTES),
        ("before", _) => block.wrapping_sub(page + 1),
        (_, "c") => {
            // SAFETY: a block of the heap, freed once.
            unsafe { HEAP.free(block) };
            block
        }
        _ => {
            // SAFETY: a block of the heap with this layout, freed once.
            unsafe { HEAP.dealloc(block, layout) };
            block
        }
    };
    // SAFETY: none: the process must end here.
    unsafe { at.write_volatile(1) };
    println!("went on");
}

#[test]
fn who_touches_a_guard_or_a_freed_block_ends_by_the_fault_that_is_explained() {
    let mut lengths = vec![1, 100, 1024, 4000];
    if is_long() {
        let mut random = Random::new(1);
        lengths.extend((0..496).map(|_| 1 + random.next(4080)));
    }
    for (place, words) in [
        ("past", "past the end of a block"),
        ("before", "before the start of a block"),
        ("freed", "a block that was freed"),
    ] {
        for (verbs, bytes) in ["c", "rust"]
            .into_iter()
            .flat_map(|verbs| lengths.iter().map(move |&bytes| (verbs, bytes)))
        {
            let task = format!("touch {verbs} {place} {bytes}");
            let end = run("guard", &task, &[("LARDER_GUARD_FAULTS", "yes")]);
            let (said, report) = (end.said, end.report);
            let what = format!("{task}: {said}{report}");
            assert_eq!(end.status.signal(), Some(libc::SIGSEGV), "{what}");
            let first = format!("larder: read or wrote {words}: 0x");
            assert!(report.starts_with(&first), "{what}");
            let block = said
                .lines()
                .find_map(|line| line.find("0x").map(|at| &line[at..]));
            let unit = if bytes == 1 { "byte" } else { "bytes" };
            let second = format!("  block {}: {bytes} {unit}, ", block.unwrap());
            assert!(
                report.lines().nth(1).unwrap().starts_with(&second),
                "{what}"
            );
            assert_eq!(report.contains("  freed by"), place == "freed", "{what}");
        }
    }
}

const ROUNDS: usize = 100_000;

/// Returns the number of blocks with a guard page, in a loop that frees each block.
pub(crate) fn blocks_in_pages() -> usize {
    // A block in a page of its own is exactly as long as requested.
    const LAYOUT: Layout = Layout::new::<[u8; 100]>();
    let has_page = |_: &usize| {
        // SAFETY: the layout is not empty.
        let block = black_box(unsafe { HEAP.alloc(LAYOUT) });
        let has_page = HEAP.usable_size(block) == Some(LAYOUT.size());
        // SAFETY: a block of the heap with this layout, freed once.
        unsafe { HEAP.dealloc(block, LAYOUT) };
        has_page
    };
    (0..ROUNDS).filter(has_page).count()
}

#[test]
fn of_a_loop_that_frees_what_it_allocates_about_one_block_in_so_many_has_a_page() {
    for (mode, expected) in [
        ("plain", 0),
        ("guard-10", ROUNDS / 10),
        ("guard-1000", ROUNDS / 1000),
    ] {
        let end = run(mode, "loop", &[]);
        end.assert_well(mode);
        let mut lines = end.said.lines();
        let found = lines.find_map(|line| line.strip_prefix("said ")?.parse().ok());
        // Refills of the thread's cache count as well as frees, so more blocks may have a page.
        let range = expected * 8 / 10..=expected * 3;
        assert!(range.contains(&found.unwrap()), "{mode}: {found:?}");
    }
}
