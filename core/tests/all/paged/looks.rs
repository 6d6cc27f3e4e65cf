//! The bound on the chunks that one search examines, however many are free.

use super::bench::{Bench, PAGE, config, pages};
use larder_core::pages::Backing;
use larder_core::{BestFit, BlockAllocator, Request};

/// The chunks that one search examines without success.
const LOOKS: u64 = 1024;
/// And one for what may move although more can be created.
const FEW_LOOKS: u64 = 64;

/// So many holes of one page, none of which holds a whole handle, and a limit at what is held if it is `full`.
fn holes(count: u64, full: bool) -> Bench {
    let mut bench = Bench::with_tables(
        config(4 * count, Backing::Billed),
        4 * count as usize,
        1024,
        4096,
    );
    // In handles of a 256th.
    let [all] = bench.blocks([2 * count]);
    bench.free(all, None);
    let paged = &mut bench.paged;
    let blocks: Vec<_> = (0..2 * count)
        .map(|_| paged.get_mut().alloc(&pages(1)).unwrap().block)
        .collect();
    blocks
        .into_iter()
        .step_by(2)
        .for_each(|block| paged.get_mut().free(block).unwrap());
    if full {
        paged.get_mut().set_limit(2 * count * PAGE);
    }
    assert_eq!(u64::from(paged.get_mut().report().free_chunks), count);
    bench
}

/// Returns the chunks examined for one request; asking for their number is a search, too.
fn looks_of(bench: &mut Bench, request: &Request) -> u64 {
    let before = bench.paged.page_stats().looks;
    let _block = bench.paged.alloc(request);
    let after = [(), ()].map(|()| bench.paged.page_stats().looks);
    after[0] - before - (after[1] - after[0])
}

#[test]
fn a_search_looks_at_no_more_however_many_chunks_hold_no_whole_handle() {
    // A chunk and the handle in it are two looks.
    let few = looks_of(&mut holes(320, true), &pages(2));
    assert_eq!(few, 2 * 640);
    for count in [2000, 4000] {
        let found = looks_of(&mut holes(count, false), &pages(2));
        assert_eq!(found, FEW_LOOKS, "{count}");
    }
}

#[test]
fn at_the_limit_two_searches_look_for_what_may_move_and_what_may_go() {
    for count in [2000, 4000] {
        let mut bench = holes(count, true);
        assert_eq!(looks_of(&mut bench, &pages(2)), 2 * LOOKS, "{count}");
        bench.check();
    }
}

#[test]
fn addresses_without_memory_are_looked_at_by_the_4096_pages() {
    for (empty, expected) in [(8, 1), (4096, 2), (20_000, 5)] {
        let mut bench = Bench::with_tables(config(65_536, Backing::Billed), 64, 512, 2048);
        let [hole, _stay] = bench.blocks([empty, 1]);
        bench.free(hole, None);
        assert_eq!(bench.paged.release(empty * PAGE), empty * PAGE);
        assert_eq!(looks_of(&mut bench, &pages(empty + 1)), expected, "{empty}");
    }
}

#[test]
fn more_idle_handles_than_one_search_finds_are_given_back_by_several_plans() {
    for by_one_plan in [true, false] {
        let mut config = config(2048, Backing::Billed);
        config.limit_bytes = 2048 * PAGE;
        let mut bench = Bench::with_tables(config, 64, 2048, 4096);
        let blocks = bench.blocks([256; 7]);
        blocks.into_iter().for_each(|block| bench.free(block, None));
        let handles = u64::from(bench.paged.page_stats().handles);
        assert!(handles > LOOKS);
        let before = bench.device().calls().release;
        if by_one_plan {
            let plan = bench.paged.get_mut().plan_release(u64::MAX).unwrap();
            bench.finish(plan);
        } else {
            bench.paged.release(u64::MAX);
        }
        let expected = if by_one_plan { LOOKS } else { handles };
        assert_eq!(bench.device().calls().release - before, expected);
    }
}
