//! Models `resize` through the shared allocator, while other threads allocate, grow and release memory behind the
//! block: the block keeps its start, no byte is granted twice, and the limit is not exceeded.

use larder_core::{
    AddrRange, Align, BestFit, Block, BlockAllocator, GrowRequest, ResizeError, SubAllocator,
};
use loom::sync::Arc;

use crate::explore::{model, spawn};
use crate::regions::{Allocator, Gives, UNIT, alloc, allocator, check};

/// Resizes a block. Returns whether it grew, and the block, which keeps its start.
fn grow(allocator: &Allocator, block: Block, bytes: u64) -> (bool, Block) {
    let addr = block.addr();
    let (grew, block) = match allocator.resize(block, bytes) {
        Ok(block) => (true, block),
        Err(rejected) => {
            let fair = [ResizeError::NoRoom, ResizeError::Limit];
            assert!(fair.contains(&rejected.error), "{:?}", rejected.error);
            (false, rejected.value)
        }
    };
    assert_eq!(block.addr(), addr);
    assert_eq!(block.bytes() >= bytes, grew);
    (grew, block)
}

/// Frees everything, and checks that no memory is held afterwards.
fn check_end(allocator: &Allocator, blocks: impl IntoIterator<Item = Block>) {
    check(allocator);
    for block in blocks {
        allocator.free(block).unwrap();
    }
    allocator.trim();
    check(allocator);
    assert_eq!(allocator.stats().reserved_bytes, 0);
}

#[test]
fn the_memory_behind_a_block_goes_to_it_or_to_another_thread() {
    model(|| {
        let allocator = allocator(2 * UNIT, 2 * UNIT, Gives::Again);
        let block = alloc(&allocator, 1).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc(&other, UNIT / 2).unwrap());
        let (_, block) = grow(&allocator, block, UNIT);
        let theirs = thread.join().unwrap();
        assert!(!block.range().overlaps(theirs.range()), "given twice");
        check_end(&allocator, [block, theirs]);
    });
}

#[test]
fn a_block_that_grows_with_its_range_and_a_block_made_behind_it_do_not_overlap() {
    model(|| {
        let allocator = allocator(8 * UNIT, 8 * UNIT, Gives::Again);
        let block = alloc(&allocator, UNIT).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc(&other, UNIT).unwrap());
        let (_, block) = grow(&allocator, block, 2 * UNIT);
        let theirs = thread.join().unwrap();
        assert!(!block.range().overlaps(theirs.range()), "given twice");
        check_end(&allocator, [block, theirs]);
    });
}

#[test]
fn a_block_that_grows_and_a_new_one_share_what_the_limit_leaves() {
    model(|| {
        let allocator = allocator(2 * UNIT, 2 * UNIT, Gives::Again);
        let block = alloc(&allocator, UNIT).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc(&other, UNIT));
        let (grew, block) = grow(&allocator, block, 2 * UNIT);
        let theirs = thread.join().unwrap();
        assert!(!(grew && theirs.is_some()), "there is room for one");
        check_end(&allocator, theirs.into_iter().chain([block]));
    });
}

#[test]
fn the_end_cut_off_a_block_is_released_or_taken_and_never_both() {
    model(|| {
        let allocator = allocator(2 * UNIT, 2 * UNIT, Gives::Again);
        let block = alloc(&allocator, 2 * UNIT).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || other.adjust(UNIT));
        let block = allocator.resize(block, 1).unwrap();
        let mine = alloc(&allocator, UNIT);
        thread.join().unwrap();
        assert_eq!(allocator.stats().limit_bytes, UNIT);
        if let Some(mine) = &mine {
            assert!(!block.range().overlaps(mine.range()), "given twice");
            assert_eq!(
                allocator.stats().reserved_bytes,
                2 * UNIT,
                "it was released"
            );
        }
        check_end(&allocator, mine.into_iter().chain([block]));
    });
}

/// The broken twin: the bytes requested behind the block do not count during the request.
#[test]
#[should_panic(expected = "more is held than the limit allows")]
fn broken_twin_a_resize_without_a_ticket_is_found() {
    fn resize_uncounted(allocator: &Allocator, block: Block, bytes: u64) -> Block {
        let rejected = match allocator.with(|bfc| bfc.resize(block, bytes)) {
            Ok(block) => return block,
            Err(rejected) => rejected,
        };
        let request = GrowRequest {
            bytes: bytes - rejected.value.bytes(),
            align: Align::new(UNIT).unwrap(),
            at: None,
        };
        let fits = allocator.stats().reserved_bytes + request.bytes <= 2 * UNIT;
        if fits && let Ok(range) = allocator.source().grow(request) {
            allocator.with(|bfc| bfc.add_region(range)).unwrap();
        }
        rejected.value
    }
    model(|| {
        let allocator = allocator(2 * UNIT, 2 * UNIT, Gives::Again);
        let block = alloc(&allocator, UNIT).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc(&other, UNIT));
        let _block = resize_uncounted(&allocator, block, 2 * UNIT);
        thread.join().unwrap();
    });
}

/// The broken twin: the memory behind the block is examined in one critical section and taken in another.
#[test]
#[should_panic(expected = "another thread took what was free")]
fn broken_twin_a_resize_that_does_not_look_again_is_found() {
    model(|| {
        let allocator = allocator(2 * UNIT, 2 * UNIT, Gives::Again);
        let block = alloc(&allocator, UNIT / 2).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc(&other, UNIT / 2));
        let behind = AddrRange::new(block.range().end(), UNIT / 2).unwrap();
        let free = allocator.with(|bfc| {
            let seen = bfc.alloc_at(behind, None, None);
            seen.map(|block| bfc.free(block).unwrap()).is_ok()
        });
        let taken = free.then(|| allocator.with(|bfc| bfc.alloc_at(behind, None, None)));
        assert!(
            !matches!(taken, Some(Err(_))),
            "another thread took what was free"
        );
        thread.join().unwrap();
    });
}

/// The broken twin: the block is freed and allocated again at its address.
#[test]
#[should_panic(expected = "another thread took the block")]
fn broken_twin_a_block_let_go_while_it_is_resized_is_found() {
    model(|| {
        let allocator = allocator(2 * UNIT, 2 * UNIT, Gives::Again);
        let block = alloc(&allocator, UNIT / 2).unwrap();
        let larger = AddrRange::new(block.addr(), UNIT).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc(&other, UNIT / 2));
        allocator.free(block).unwrap();
        let again = allocator.with(|bfc| bfc.alloc_at(larger, None, None));
        assert!(again.is_ok(), "another thread took the block");
        thread.join().unwrap();
    });
}
