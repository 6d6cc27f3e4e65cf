//! Resizes through the lock: calls by other threads during a request to the sub-allocator, and threads that all grow.

use std::cell::{Cell, RefCell};

use crate::common::{self, GIB, GRANULE, UNIT, range, table};
use larder_core::{
    AddrRange, BestFit, Block, BlockAllocator, FixedRange, GrowRequest, RegionPool, Rejected,
    Request, ResizeError, Shared, SubAllocError, SubAllocator,
};
use larder_model::Random;

type Act = Box<dyn FnOnce(GrowRequest)>;

/// A fixed range that runs `act` before its next answer.
struct Busy {
    range: FixedRange,
    act: Cell<Option<Act>>,
    calls: RefCell<Vec<(bool, u64)>>,
}

impl SubAllocator for Busy {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        if let Some(act) = self.act.take() {
            act(request);
        }
        self.calls.borrow_mut().push((true, request.bytes));
        self.range.grow(request)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.calls.borrow_mut().push((false, range.bytes()));
        self.range.release(range)
    }
}

type Allocator = Shared<RegionPool<'static>, Busy>;

fn allocator() -> &'static Allocator {
    let source = Busy {
        range: FixedRange::new(range(UNIT, 64 * UNIT)),
        act: Cell::new(None),
        calls: RefCell::default(),
    };
    let bfc = RegionPool::new(common::ranged(UNIT, GIB), table(64)).unwrap();
    Box::leak(Box::new(Shared::new(bfc, source)))
}

fn alloc(allocator: &Allocator, bytes: u64) -> Block {
    allocator.alloc(&Request::new(bytes)).unwrap().block
}

/// Resizes a block and runs `act` in the middle of the call.
fn resize_while(
    allocator: &'static Allocator,
    block: Block,
    bytes: u64,
    act: impl FnOnce(&'static Allocator) + 'static,
) -> Result<Block, Rejected<ResizeError>> {
    allocator.source().calls.take();
    let act: Act = Box::new(move |_| act(allocator));
    allocator.source().act.set(Some(act));
    let result = allocator.resize(block, bytes);
    assert!(allocator.source().act.take().is_none(), "it was asked");
    allocator.with(|bfc| bfc.check_invariants()).unwrap();
    let held = allocator.stats().reserved_bytes;
    assert_eq!(held, allocator.source().range.used_bytes());
    result
}

#[test]
fn who_takes_the_free_end_meanwhile_has_it_and_what_was_got_goes_back() {
    let allocator = allocator();
    let block = alloc(allocator, UNIT / 2);
    let result = resize_while(allocator, block, 2 * UNIT, |allocator| {
        let _taken = alloc(allocator, GRANULE);
    });
    let rejected = result.unwrap_err();
    assert_eq!(rejected.error, ResizeError::NoRoom);
    assert_eq!(rejected.value.bytes(), UNIT / 2);
    let calls = allocator.source().calls.take();
    assert_eq!(calls, [(true, UNIT), (false, UNIT)]);
    allocator.free(rejected.value).unwrap();
}

#[test]
fn who_frees_right_behind_it_meanwhile_does_no_harm() {
    let allocator = allocator();
    let block = alloc(allocator, UNIT / 2);
    // The rest of the range is free, although another block was in it.
    let first = alloc(allocator, UNIT / 4);
    allocator.free(first).unwrap();
    let result = resize_while(allocator, block, 2 * UNIT, |allocator| {
        let gone = alloc(allocator, GRANULE);
        allocator.free(gone).unwrap();
    });
    assert_eq!(result.unwrap().bytes(), 2 * UNIT);
    assert_eq!(allocator.source().calls.take(), [(true, UNIT)]);
}

#[test]
fn a_limit_lowered_meanwhile_is_kept() {
    let allocator = allocator();
    let block = alloc(allocator, UNIT);
    let result = resize_while(allocator, block, 3 * UNIT, |allocator| {
        allocator.adjust(2 * UNIT);
    });
    let rejected = result.unwrap_err();
    assert_eq!(rejected.error, ResizeError::Limit);
    assert_eq!(rejected.value.bytes(), UNIT);
    let calls = allocator.source().calls.take();
    assert_eq!(calls, [(true, 2 * UNIT), (false, 2 * UNIT)]);
    let block = allocator.resize(rejected.value, 2 * UNIT).unwrap();
    allocator.free(block).unwrap();
}

#[test]
fn who_grows_the_range_meanwhile_has_what_lies_behind_and_nothing_is_lost() {
    let allocator = allocator();
    let block = alloc(allocator, UNIT);
    let addr = block.addr();
    // The source gives the range right after the block to the other allocation.
    let result = resize_while(allocator, block, 3 * UNIT, |allocator| {
        let other = alloc(allocator, UNIT);
        assert_eq!(other.addr().get(), 2 * UNIT);
    });
    let rejected = result.unwrap_err();
    assert_eq!(rejected.error, ResizeError::NoRoom);
    assert_eq!(rejected.value.addr(), addr);
    assert_eq!(allocator.stats().reserved_bytes, 2 * UNIT);
    allocator.free(rejected.value).unwrap();
}

#[test]
fn threads_that_grow_move_and_free_their_blocks_never_share_a_byte() {
    let bfc = RegionPool::new(common::ranged(UNIT, GIB), table(1 << 10)).unwrap();
    let source = FixedRange::new(range(UNIT, 1 << 14 << 16));
    let allocator: Shared<RegionPool<'_>, _> = Shared::new(bfc, source);
    let in_place = std::thread::scope(|scope| {
        let threads = [1, 2, 3].map(|seed| {
            let allocator = &allocator;
            scope.spawn(move || grow_and_move(allocator, seed))
        });
        threads.map(|thread| thread.join().expect("no panic"))
    });
    assert!(in_place.iter().sum::<u32>() > 0, "{in_place:?}");
    allocator.with(|bfc| bfc.check_invariants()).unwrap();
    assert_eq!(allocator.stats().live_bytes, 0);
    assert_eq!(allocator.stats().requested_bytes, 0);
    allocator.trim();
    let held = allocator.stats().reserved_bytes;
    assert_eq!(held, allocator.source().used_bytes(), "nothing is lost");
}

/// Grows and shrinks one block, in place or by moving it. Returns how often it grew in place.
fn grow_and_move(allocator: &Shared<RegionPool<'_>, FixedRange>, seed: u64) -> u32 {
    let mut random = Random::new(seed);
    let mut block = allocator.alloc(&Request::new(1)).unwrap().block;
    let mut in_place = 0;
    for _ in 0..2000 {
        let bytes = 1 + random.below(4 * UNIT);
        let (range, grows) = (block.range(), bytes > block.bytes());
        block = match allocator.resize(block, bytes) {
            Ok(block) => {
                assert_eq!(block.addr(), range.start());
                in_place += u32::from(grows);
                block
            }
            Err(rejected) => {
                assert_eq!(rejected.error, ResizeError::NoRoom);
                assert_eq!(rejected.value.range(), range);
                let other = allocator.alloc(&Request::new(bytes)).unwrap().block;
                assert!(!other.range().overlaps(range));
                allocator.free(rejected.value).unwrap();
                other
            }
        };
        assert_eq!(allocator.requested_bytes(&block), Some(bytes));
    }
    allocator.free(block).unwrap();
    in_place
}
