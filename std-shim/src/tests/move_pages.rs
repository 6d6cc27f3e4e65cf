//! Long blocks that cannot grow in place: their contents, zeros at the old place, and the results
//! of a system that moves no pages, or loses some.

use std::alloc::Layout;

use super::drive::World;
use super::faulty::{Call, Faulty, Plan};
use super::verbs::{Random, is_filled};
use crate::arena::Arena;
use crate::config::Config;
use crate::os::{Moved, Native, Os};

const MIB: usize = 1 << 20;
const ARENA_BYTES: usize = 512 * MIB;

/// Returns whether the system under the tests moves pages.
fn system_moves() -> bool {
    let bytes = 16 * Native.page_bytes();
    let start = Native.reserve(2 * bytes, bytes).unwrap().as_ptr();
    // SAFETY: reserved just now.
    assert!(unsafe { Native.commit(start, 2 * bytes) });
    // SAFETY: committed, two parts.
    let moved = unsafe { Native.move_pages(start, start.wrapping_add(bytes), bytes) };
    // SAFETY: ours and not used.
    unsafe { Native.release(start, 2 * bytes) };
    moved == Moved::Whole
}

fn world(plan: Plan) -> World {
    World::with(Faulty::new(plan), 1, 1, ARENA_BYTES, &Config::BALANCED)
}

/// A block with a distinct word in every page.
struct Stamped {
    start: *mut u8,
    bytes: usize,
    seed: u64,
}

/// Distance of the words: less than a page, and no divisor of a page.
const STRIDE: usize = 4088;

impl Stamped {
    fn new(world: &World, bytes: usize, seed: u64) -> Self {
        let start = world.verbs().process.alloc_large(bytes, 16).unwrap();
        let mut block = Self {
            start: start.as_ptr(),
            bytes: 0,
            seed,
        };
        block.point(bytes);
        block
    }

    fn word(&self, number: usize) -> *mut u64 {
        self.start.wrapping_add(number * STRIDE).cast()
    }

    /// Writes the words that are new in `bytes` bytes.
    fn point(&mut self, bytes: usize) {
        for number in self.bytes / STRIDE..bytes / STRIDE {
            // SAFETY: inside the block.
            unsafe {
                self.word(number).write_unaligned(self.seed ^ number as u64);
            };
        }
        self.bytes = bytes;
    }

    fn check(&self) {
        for number in 0..self.bytes / STRIDE {
            // SAFETY: inside the block.
            let found = unsafe { self.word(number).read_unaligned() };
            assert_eq!(found, self.seed ^ number as u64, "word {number}");
        }
    }

    /// Grows without a copy if possible. Returns whether it was.
    fn grow(&mut self, world: &World, bytes: usize) -> bool {
        let process = world.verbs().process;
        let layout = Layout::from_size_align(self.bytes, 16).unwrap();
        // SAFETY: the test's block.
        let grown = unsafe { process.grow_elsewhere(self.start, layout, bytes) };
        if let Some(grown) = &grown {
            self.start = grown.block.as_ptr();
            self.check();
            self.point(bytes);
        }
        self.check();
        grown.is_some()
    }

    fn free(self, world: &World) {
        self.check();
        assert!(world.verbs().process.free_large(self.start, self.bytes));
    }
}

/// Checks and frees the last blocks of a world, and ends it.
fn end(world: World, blocks: impl IntoIterator<Item = Stamped>) {
    blocks.into_iter().for_each(|block| block.free(&world));
    world.end();
}

/// Allocates a zeroed block, checks it and fills it.
fn zeroed(world: &World, bytes: usize) -> Stamped {
    let process = world.verbs().process;
    let start = process.alloc_large(bytes, 16).unwrap().as_ptr();
    let arena = process.arena_of(start).unwrap();
    // SAFETY: given just now, that long.
    unsafe { arena.zero(start, bytes) };
    // SAFETY: given just now, that long.
    let found = unsafe { std::slice::from_raw_parts(start, bytes) };
    assert!(is_filled(found, 0));
    let mut block = Stamped {
        start,
        bytes: 0,
        seed: 77,
    };
    block.point(bytes);
    block
}

#[test]
fn pages_move_and_what_they_leave_is_usable_and_zero() {
    if !system_moves() {
        return;
    }
    let page = Native.page_bytes();
    let start = Native.reserve(8 * page, page).unwrap().as_ptr();
    let to = start.wrapping_add(4 * page);
    // SAFETY: reserved just now.
    assert!(unsafe { Native.commit(start, 8 * page) });
    for round in 1..4_u8 {
        // SAFETY: committed, ours.
        unsafe { start.write_bytes(round, 3 * page) };
        // SAFETY: committed, ours.
        unsafe { to.write_bytes(0xee, 4 * page) };
        // SAFETY: committed, ours, two parts.
        let moved = unsafe { Native.move_pages(start, to, 3 * page) };
        assert_eq!(moved, Moved::Whole);
        // SAFETY: committed, ours.
        let all = unsafe { std::slice::from_raw_parts(start, 8 * page) };
        assert!(is_filled(&all[..3 * page], 0));
        assert!(is_filled(&all[4 * page..7 * page], round));
        assert!(is_filled(&all[7 * page..], 0xee));
    }
    // SAFETY: ours, not used any more.
    unsafe { Native.release(start, 8 * page) };
}

/// Maps twelve pages in which every byte is its page's number. Returns the address of the first.
#[cfg(target_os = "linux")]
fn numbered_pages(page: usize) -> *mut u8 {
    let start = Native.reserve(12 * page, page).unwrap().as_ptr();
    // SAFETY: reserved just now.
    assert!(unsafe { Native.commit(start, 12 * page) });
    for number in 0..12 {
        let place = start.wrapping_add(number * page);
        // SAFETY: committed, ours.
        unsafe { place.write_bytes(number as u8, page) };
    }
    start
}

/// Tries to move pages 1 to 3 behind 6 to 8, which must be refused and change none of the twelve.
#[cfg(target_os = "linux")]
fn assert_unfit(start: *mut u8, page: usize) {
    let (from, to) = (start.wrapping_add(page), start.wrapping_add(6 * page));
    // SAFETY: committed, ours, two parts.
    let moved = unsafe { Native.move_pages(from, to, 3 * page) };
    assert_eq!(moved, Moved::Unfit);
    for number in 0..12 {
        // SAFETY: committed, ours.
        let found = unsafe { std::slice::from_raw_parts(start.wrapping_add(number * page), page) };
        assert!(is_filled(found, number as u8), "page {number}");
    }
    // SAFETY: ours, not used any more.
    unsafe { Native.release(start, 12 * page) };
}

/// Returns whether the system has these pages in several mappings.
#[cfg(target_os = "linux")]
fn are_several_mappings(start: *mut u8, bytes: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let inside = |line: &&str| {
        let (first, _) = line.split_once('-').unwrap();
        let first = usize::from_str_radix(first, 16).unwrap();
        first > start.addr() && first < start.addr() + bytes
    };
    maps.lines().filter(inside).count() > 0
}

#[test]
#[cfg(target_os = "linux")]
fn pages_that_the_program_gave_a_mapping_of_their_own_stay_where_they_are() {
    let page = Native.page_bytes();
    for odd in [1, 2, 3] {
        let start = numbered_pages(page);
        let place = start.wrapping_add(odd * page).cast();
        // SAFETY: ours; the advice changes no contents.
        let refused = unsafe { libc::madvise(place, page, libc::MADV_DONTDUMP) };
        // Emulators of programs ignore the advice.
        if refused == 0 && are_several_mappings(start, 12 * page) {
            assert_unfit(start, page);
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn locked_pages_stay_where_they_are() {
    let page = Native.page_bytes();
    let start = numbered_pages(page);
    // SAFETY: ours; all of the mapping, so that it stays one. The call itself: sanitizers put nothing in
    // the place of the C library's.
    if unsafe { libc::syscall(libc::SYS_mlock, start, 12 * page) } == 0 {
        assert_unfit(start, page);
    }
}

#[test]
fn a_block_between_neighbours_grows_without_a_copy_and_leaves_clean_memory() {
    if !system_moves() {
        return;
    }
    let world = world(Plan::Willing);
    // Dirty when it is allocated.
    Stamped::new(&world, 4 * MIB, 1).free(&world);
    let mut block = Stamped::new(&world, 4 * MIB - 5, 1);
    let wall = Stamped::new(&world, MIB, 2);
    let before = block.start;
    assert!(block.grow(&world, 9 * MIB));
    assert_ne!(block.start, before);
    assert!(world.os.calls(Call::Move) > 0);
    assert_eq!(world.verbs().process.idle_bytes(), 0, "nothing is dirty");
    world.assert_sound();
    let again = zeroed(&world, 4 * MIB);
    assert_eq!(again.start, before, "the place is free");
    end(world, [block, wall, again]);
}

#[test]
fn a_block_that_lands_on_memory_in_use_lately_is_copied_there() {
    let world = world(Plan::Willing);
    let mut block = Stamped::new(&world, 3 * MIB, 1);
    let wall = Stamped::new(&world, MIB, 2);
    Stamped::new(&world, 20 * MIB, 3).free(&world);
    assert!(block.grow(&world, 6 * MIB));
    assert_eq!(world.os.calls(Call::Move), 0);
    end(world, [block, wall]);
}

#[test]
fn short_blocks_wrong_addresses_and_impossible_sizes_do_not_move() {
    let world = world(Plan::Willing);
    let mut short = Stamped::new(&world, 2 * MIB - 1, 1);
    assert!(!short.grow(&world, 4 * MIB));
    let mut long = Stamped::new(&world, 4 * MIB, 2);
    for bytes in [isize::MAX as usize, usize::MAX] {
        assert!(!long.grow(&world, bytes));
    }
    let layout = Layout::from_size_align(3 * MIB, 16).unwrap();
    let inside = long.start.wrapping_add(MIB);
    // SAFETY: refused: no block starts there.
    let grown = unsafe { (world.verbs().process).grow_elsewhere(inside, layout, 8 * MIB) };
    assert!(grown.is_none());
    let layout = Layout::from_size_align(5 * MIB, 16).unwrap();
    // SAFETY: refused: it is shorter.
    let grown = unsafe { (world.verbs().process).grow_elsewhere(long.start, layout, 8 * MIB) };
    assert!(grown.is_none());
    assert_eq!(world.os.calls(Call::Move), 0);
    end(world, [short, long]);
}

#[test]
fn alignments_are_kept() {
    let world = world(Plan::Willing);
    let process = world.verbs().process;
    let wall = Stamped::new(&world, MIB, 1);
    for align in [16, 4 << 10, MIB, 8 * MIB] {
        let layout = Layout::from_size_align(3 * MIB, align).unwrap();
        let block = process.alloc_large(layout.size(), align).unwrap().as_ptr();
        let behind = Stamped::new(&world, MIB, 2);
        // SAFETY: the test's block.
        let grown = unsafe { process.grow_elsewhere(block, layout, 7 * MIB) };
        let block = grown.map_or(block, |grown| grown.block.as_ptr());
        assert!(block.addr().is_multiple_of(align));
        assert!(process.free_large(block, 7 * MIB));
        behind.free(&world);
    }
    wall.free(&world);
    world.end();
}

/// Blocks that grow side by side, some freed and begun anew, with zeroed ones between.
fn churn(world: &World, random: &mut Random, rounds: usize) -> usize {
    let (mut blocks, mut elsewhere) = (Vec::new(), 0);
    for round in 0..rounds {
        let bytes: usize = blocks.iter().map(|block: &Stamped| block.bytes).sum();
        match random.next(16) {
            0..5 => blocks.push(Stamped::new(
                world,
                random.next(3 * MIB) + MIB,
                round as u64,
            )),
            5 => blocks.push(zeroed(world, random.next(3 * MIB) + MIB)),
            6 => world.verbs().process.tick(),
            7 if random.next(4) == 0 => drop(world.verbs().process.trim()),
            8.. if !blocks.is_empty() && bytes < ARENA_BYTES / 8 => {
                let index = random.next(blocks.len());
                let max = blocks[index].bytes + random.next(blocks[index].bytes) + 1;
                elsewhere += usize::from(blocks[index].grow(world, max));
            }
            _ if !blocks.is_empty() => blocks.swap_remove(random.next(blocks.len())).free(world),
            _ => {}
        }
        if round % 32 == 0 {
            world.assert_sound();
        }
    }
    for block in blocks {
        block.free(world);
    }
    elsewhere
}

#[test]
fn blocks_grow_side_by_side_whatever_the_system_refuses() {
    let plans = [
        Plan::Willing,
        Plan::From(Call::Move, 1),
        Plan::From(Call::Move, 2),
        Plan::From(Call::Move, 9),
        Plan::From(Call::Discard, 1),
        Plan::From(Call::Decommit, 1),
    ];
    for (seed, plan) in plans.into_iter().enumerate() {
        let world = world(plan);
        let grown = churn(&world, &mut Random(seed as u64 * 2 + 1), 500);
        let moves = world.os.calls(Call::Move);
        match plan {
            Plan::From(Call::Move, first) => assert!(moves <= first, "a refusal is the last"),
            _ if system_moves() => assert!(grown > 20 && moves > 20, "{grown}, {moves}"),
            _ => {}
        }
        world.end();
    }
}

#[test]
fn a_block_of_which_half_has_moved_leaves_what_was_copied_dirty() {
    if !system_moves() {
        return;
    }
    // Its second growth moves two mappings, and the second of them is refused.
    let world = world(Plan::Once(Call::Move, 3));
    let mut block = Stamped::new(&world, 3 * MIB, 1);
    let wall = Stamped::new(&world, MIB, 2);
    assert!(block.grow(&world, 7 * MIB));
    let (before, behind) = (block.start, Stamped::new(&world, MIB, 3));
    assert!(block.grow(&world, 15 * MIB));
    assert_eq!(world.os.calls(Call::Move), 3);
    assert_eq!(
        world.verbs().process.idle_bytes(),
        4 * MIB as u64,
        "copied from"
    );
    let again = zeroed(&world, 7 * MIB);
    assert_eq!(again.start, before);
    end(world, [block, wall, behind, again]);
}

#[test]
fn a_block_that_is_not_to_be_moved_is_copied_and_others_move_on() {
    if !system_moves() {
        return;
    }
    let world = world(Plan::Once(Call::Move, 1));
    world.os.be(|manner| manner.refused_move = Moved::Unfit);
    let mut first = Stamped::new(&world, 3 * MIB, 1);
    let mut second = Stamped::new(&world, 3 * MIB, 2);
    let wall = Stamped::new(&world, MIB, 3);
    assert!(first.grow(&world, 7 * MIB));
    assert_eq!(world.verbs().process.idle_bytes(), 3 * MIB as u64, "copied");
    assert!(second.grow(&world, 7 * MIB));
    assert_eq!(world.os.calls(Call::Move), 2);
    assert_eq!(world.verbs().process.idle_bytes(), 3 * MIB as u64, "moved");
    end(world, [first, second, wall]);
}

#[test]
fn marks_of_seams_go_with_the_memory_that_had_them() {
    if !system_moves() {
        return;
    }
    let world = world(Plan::Willing);
    let seams = || -> usize {
        let arenas = world.verbs().process.arenas();
        arenas.map(Arena::seams).sum()
    };
    let mut max = 0;
    for round in 0..4 {
        let mut blocks: Vec<_> = (0..8)
            .map(|seed| Stamped::new(&world, 2 * MIB, seed))
            .collect();
        for bytes in [5 * MIB, 9 * MIB] {
            for block in &mut blocks {
                block.grow(&world, bytes);
            }
        }
        assert!(seams() > 0);
        for block in blocks {
            block.free(&world);
        }
        world.verbs().process.trim();
        max = max.max(seams());
        assert!(max <= 4, "round {round}: {max} marks of nothing");
    }
    world.end();
}

#[test]
fn in_the_child_of_a_fork_a_move_goes_over_the_end_of_what_was_committed() {
    if !system_moves() {
        return;
    }
    let world = world(Plan::Willing);
    let first = Stamped::new(&world, MIB, 1);
    let arenas = || world.verbs().process.arenas();
    arenas().for_each(Arena::in_child);
    let committed: u64 = arenas().map(|arena| arena.numbers().1).sum();
    let mut block = Stamped::new(&world, committed as usize, 2);
    let wall = Stamped::new(&world, MIB, 3);
    assert!(block.grow(&world, 3 * committed as usize));
    assert_eq!(world.os.calls(Call::Move), 2);
    end(world, [first, block, wall]);
}

#[test]
fn memory_that_was_given_back_and_came_again_is_known_as_another_mapping() {
    if !system_moves() {
        return;
    }
    let world = world(Plan::Willing);
    let process = world.verbs().process;
    let wall = Stamped::new(&world, 3 * MIB, 1);
    let mut block = Stamped::new(&world, 3 * MIB, 2);
    let behind = Stamped::new(&world, MIB, 3);
    assert!(block.grow(&world, 7 * MIB));
    let arena = process.arena_of(block.start).unwrap();
    assert!(arena.resize(block.start, 2 * MIB));
    process.trim();
    assert!(world.os.calls(Call::Decommit) > 0);
    assert!(arena.resize(block.start, 6 * MIB));
    block.bytes = 2 * MIB;
    block.point(6 * MIB);
    let last = Stamped::new(&world, MIB, 4);
    assert_eq!(world.os.calls(Call::Move), 1);
    assert!(block.grow(&world, 14 * MIB));
    assert_eq!(
        world.os.calls(Call::Move),
        3,
        "what had moved, and what came"
    );
    assert_eq!(process.idle_bytes(), 0, "nothing was copied");
    end(world, [wall, block, behind, last]);
}

#[test]
fn a_lost_place_is_never_used_again_and_the_block_is_as_it_was() {
    if !system_moves() {
        return;
    }
    // The second piece of a block in two mappings is lost: the first one comes back.
    for nth in [1, 3] {
        let world = world(Plan::Once(Call::Move, nth));
        world.os.be(|manner| manner.refused_move = Moved::Lost);
        let mut block = Stamped::new(&world, 3 * MIB, 1);
        let walls = [4, 5, 6].map(|seed| {
            let wall = Stamped::new(&world, MIB, seed);
            let before = block.start;
            if block.grow(&world, block.bytes + 3 * MIB) {
                assert_ne!(block.start, before);
            } else {
                assert_eq!(block.start, before);
            }
            wall
        });
        let live: u64 = (world.verbs().process.arenas())
            .map(|arena| arena.numbers().0)
            .sum();
        let known = walls.iter().chain([&block]).map(|block| block.bytes as u64);
        let lost = live - known.sum::<u64>();
        // The first piece is back, and its pages are not kept in the place that is lost.
        assert_eq!(world.os.calls(Call::Discard), nth / 2);
        // Its place stays taken, up to the end of the pages that were to move.
        let [least, max] = [3, 7].map(|mib| mib * MIB as u64);
        assert!((least..max).contains(&lost), "{lost}");
        // Code that got the lost place would crash here.
        churn(&world, &mut Random(nth as u64), 200);
        block.free(&world);
        walls.into_iter().for_each(|wall| wall.free(&world));
    }
}
