//! Pinned memory stays in place, whatever happens to its block.

use super::bench::{BASE, Bench, PAGE, config, page_of, pages};
use super::scenes::{THREE, swing};
use larder_core::pages::Backing;
use larder_core::{Addr, AddrRange, Block, FreeError, Request};

fn pin(bench: &mut Bench, block: &Block) -> AddrRange {
    bench.paged.source().pin(block.range());
    bench.paged.get_mut().pin(block).unwrap();
    block.range()
}

fn unpin(bench: &mut Bench, range: AddrRange) {
    bench.paged.source().unpin(range);
    bench.paged.get_mut().unpin(range);
}

/// Two holes of two pages, and the first one's addresses, which are pinned.
fn pinned() -> (Bench, AddrRange) {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [a, _b, c, _d] = bench.blocks([2, 1, 2, 1]);
    let range = pin(&mut bench, &a);
    bench.free(a);
    bench.free(c);
    (bench, range)
}

#[test]
fn pinned_memory_is_not_moved_until_it_is_unpinned() {
    let (mut bench, _range) = pinned();
    let (calls, block) = bench.calls_of(|bench| bench.alloc(&pages(4)));
    assert_eq!((calls.create, calls.map), (2, 4));
    assert_ne!(page_of(&block), 0);
    let (mut bench, range) = pinned();
    unpin(&mut bench, range);
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(4)));
    assert_eq!((calls.create, calls.map), (0, 4));
}

#[test]
fn pinned_memory_is_not_released_until_it_is_unpinned() {
    let (mut bench, range) = pinned();
    assert_eq!(bench.paged.page_stats().idle_bytes, 2 * PAGE);
    assert_eq!(bench.release(100), 2);
    assert!(bench.paged.get_mut().plan_release(PAGE).is_none());
    unpin(&mut bench, range);
    assert_eq!(bench.release(100), 2);
}

#[test]
fn pinned_memory_serves_requests_that_fit_there() {
    let (mut bench, _range) = pinned();
    let [first, second] = bench.blocks([2, 2]);
    assert_eq!([page_of(&first), page_of(&second)].iter().sum::<u64>(), 3);
}

#[test]
fn pinned_memory_is_not_reused_elsewhere() {
    for pinned in [true, false] {
        let mut swing = swing();
        let bench = &mut swing.bench;
        let six = bench.alloc(&pages(6));
        let range = pin(bench, &six);
        bench.free(six);
        if !pinned {
            unpin(bench, range);
        }
        let (calls, three) = bench.calls_of(|bench| bench.alloc(&pages(3)));
        assert_eq!(page_of(&three), THREE);
        // In the place of the old mapping memory is created.
        let expected = if pinned { (3, 1) } else { (0, 0) };
        assert_eq!((calls.create, calls.unmap), expected);
    }
}

#[test]
fn a_small_block_pins_the_whole_handle() {
    let mut bench = Bench::new(config(256, Backing::Billed));
    let [_ballast, three, _guard] = bench.pieces([48, 3, 1]);
    bench.free(three);
    let small = bench.alloc(&Request::new(1));
    let range = pin(&mut bench, &small);
    bench.free(small);
    assert_eq!(bench.release(100), 0);
    unpin(&mut bench, range);
    assert_eq!(bench.release(100), 3);
}

/// As little as 256 bytes of a block pin the page under them.
#[test]
fn a_part_of_a_block_pins_what_is_under_it() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [a, _b] = bench.blocks([1, 1]);
    let part = AddrRange::new(a.addr(), 256).unwrap();
    bench.paged.source().pin(part);
    bench.paged.get_mut().pin_range(part);
    bench.free(a);
    let (calls, block) = bench.calls_of(|bench| bench.alloc(&pages(2)));
    assert_eq!(calls.create, 2, "the pinned page stays");
    assert_ne!(page_of(&block), 0);
    bench.free(block);
    unpin(&mut bench, part);
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(3)));
    assert_eq!(calls.create, 0, "it serves again");
}

#[test]
fn each_pin_is_undone_by_an_unpin() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [a, _b] = bench.blocks([1, 1]);
    let range = pin(&mut bench, &a);
    pin(&mut bench, &a);
    bench.free(a);
    unpin(&mut bench, range);
    assert_eq!(bench.release(100), 0);
    unpin(&mut bench, range);
    // One too many is ignored, and so is a range of others.
    bench.paged.get_mut().unpin(range);
    bench
        .paged
        .get_mut()
        .unpin(AddrRange::new(Addr::new(BASE - PAGE), PAGE).unwrap());
    bench
        .paged
        .get_mut()
        .unpin(AddrRange::new(Addr::new(BASE), 65 * PAGE).unwrap());
    assert_eq!(bench.release(100), 1);
}

#[test]
fn blocks_that_share_a_page_pin_it_each() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let half = Request::new(PAGE / 2).without_wait();
    let (a, b) = (bench.alloc(&half), bench.alloc(&half));
    let (first, second) = (pin(&mut bench, &a), pin(&mut bench, &b));
    bench.free(a);
    bench.free(b);
    unpin(&mut bench, first);
    assert_eq!(bench.release(100), 0);
    unpin(&mut bench, second);
    assert_eq!(bench.release(100), 1);
}

#[test]
fn a_block_of_another_allocator_is_not_pinned() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [a] = bench.blocks([1]);
    let mut other = Bench::new(config(64, Backing::Billed));
    let [b] = other.blocks([1]);
    assert_eq!(bench.paged.get_mut().pin(&b), Err(FreeError::Unknown));
    bench.free(a);
    other.free(b);
    assert_eq!((bench.release(1), other.release(1)), (1, 1));
}
