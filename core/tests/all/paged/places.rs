//! The places of blocks: alignment, the end of the addresses, and tables that are too small.

use super::bench::{BASE, Bench, PAGE, config, page_of, pages, tables};
use super::scenes::clearing;
use larder_core::pages::{Backing, PageConfig, PagePool};
use larder_core::{Addr, AddrRange, Align, AllocError, BestFit, Cause, ConfigError};

#[test]
fn an_alignment_above_the_page_costs_addresses_and_no_memory() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let _first = bench.alloc(&pages(1));
    let align = Align::new(8 * PAGE).unwrap();
    for place in [8, 16, 24] {
        let block = bench.alloc(&pages(3).aligned(align));
        assert_eq!(page_of(&block), place);
        assert!(block.addr().is_aligned(align));
    }
    assert_eq!(bench.held(), 10);
    assert_eq!(bench.paged.page_stats().address_bytes, 27 * PAGE);
}

#[test]
fn an_aligned_block_uses_what_is_free_at_the_end() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [_a, b] = bench.blocks([7, 4]);
    // Three pages of the six are there, and the one in front of them moves.
    bench.free(b);
    let block = bench.alloc(&pages(6).aligned(Align::new(8 * PAGE).unwrap()));
    assert_eq!((page_of(&block), bench.held()), (8, 13));
}

#[test]
fn more_than_the_addresses_is_refused_and_changes_nothing() {
    let mut bench = Bench::new(config(8, Backing::Billed));
    assert_eq!(bench.cause(&pages(9)), Cause::Addresses);
    assert_eq!((bench.held(), bench.picture()), (0, vec![]));
    let _block = bench.alloc(&pages(8));
    assert_eq!(bench.cause(&pages(1)), Cause::Addresses);
    let request = pages(1 << 60 >> 12);
    let AllocError::TooLarge { requested_bytes } = bench.try_alloc(&request).unwrap_err() else {
        panic!("as large as 32 bits of granules");
    };
    assert_eq!(requested_bytes, request.bytes);
}

#[test]
fn with_the_addresses_used_up_blocks_go_where_others_slept() {
    let (mut bench, request, _live) = clearing();
    let cached = bench.paged.page_stats().cached_mappings;
    let (calls, block) = bench.calls_of(|bench| bench.alloc(&request));
    assert!(page_of(&block) < 2);
    assert_eq!((cached, calls.unmap, calls.create), (4, 3, 3));
    assert_eq!(bench.paged.page_stats().cached_mappings, 1);
}

#[test]
fn a_hole_too_short_is_no_place() {
    let mut bench = Bench::new(config(4, Backing::Billed));
    let [a, _b, _c] = bench.blocks([2, 1, 1]);
    bench.free(a);
    assert_eq!(bench.release(1), 1);
    // The whole hole, of which one page is left, and not a page more.
    assert_eq!(bench.cause(&pages(3)), Cause::Addresses);
    let block = bench.alloc(&pages(2));
    assert_eq!((page_of(&block), bench.held()), (0, 4));
}

#[test]
fn neighbouring_unmapped_runs_are_one_place() {
    let mut bench = Bench::new(config(6, Backing::Billed));
    let [a, b, c, _d] = bench.blocks([1, 1, 1, 3]);
    for block in [a, c, b] {
        bench.free(block);
        assert_eq!(bench.release(1), 1);
    }
    assert_eq!(bench.picture()[0], ('V', 0, 48));
    let block = bench.alloc(&pages(3));
    assert_eq!(page_of(&block), 0);
}

#[test]
fn a_full_chunk_table_refuses_and_changes_nothing() {
    for chunks in 2..12 {
        let mut bench = Bench::with_tables(config(64, Backing::Billed), chunks, 64, 256);
        let mut live = Vec::new();
        let error = loop {
            match bench.try_alloc(&pages(2)) {
                Ok(block) => live.push(Some(block)),
                Err(error) => break error,
            }
        };
        let full = AllocError::TableFull {
            records: chunks as u32 - 1,
        };
        assert_eq!((error, live.len()), (full, chunks - 1));
        for block in live.iter_mut().step_by(2) {
            bench.free(block.take().unwrap());
        }
        let picture = bench.without_unmapped_end();
        // To move pieces of two chunks takes records there are not.
        if let Err(error) = bench.try_alloc(&pages(4)) {
            assert_eq!((error, bench.without_unmapped_end()), (full, picture));
        }
    }
}

/// Single pages side by side, of which every other one is free.
fn comb(bench: &mut Bench, count: usize) {
    let blocks: Vec<_> = (0..count).map(|_| bench.alloc(&pages(1))).collect();
    for (number, block) in blocks.into_iter().enumerate() {
        if number % 2 == 0 {
            bench.free(block);
        }
    }
}

#[test]
fn cached_mappings_give_their_records_back() {
    let mut bench = Bench::with_tables(config(64, Backing::Billed), 64, 64, 11);
    comb(&mut bench, 8);
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(2)));
    assert_eq!((calls.map, calls.unmap), (2, 0));
    // All ten records are in use, by two cached mappings too.
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(2)));
    assert_eq!((calls.map, calls.unmap, calls.create), (2, 2, 0));
    assert_eq!(bench.paged.page_stats().cached_mappings, 2);
}

#[test]
fn cached_mappings_give_back_all_records_that_one_search_sees() {
    let mut bench = Bench::with_tables(config(64, Backing::Billed), 64, 64, 16);
    comb(&mut bench, 8);
    let first = bench.alloc(&pages(2));
    let _second = bench.alloc(&pages(2));
    bench.free(first);
    let _third = bench.alloc(&pages(3));
    // The other nine records are in use.
    assert_eq!(bench.paged.page_stats().cached_mappings, 6);
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(1)));
    assert_eq!((calls.create, calls.unmap), (1, 6));
    assert_eq!(bench.paged.page_stats().cached_mappings, 0);
}

#[test]
fn a_block_over_a_part_of_a_cached_mapping_that_is_in_use_takes_no_more_than_its_pages() {
    let mut bench = Bench::new(config(56, Backing::Billed));
    // The piece moves to the end of the addresses.
    let [_ballast, three, _guard] = bench.pieces([48, 3, 1]);
    bench.free(three);
    let _end = bench.alloc(&pages(4));
    let (held, cached) = (bench.held(), bench.paged.page_stats().cached_mappings);
    assert_eq!((held, cached), (53, 1));
    assert_eq!(page_of(&bench.alloc(&pages(2))), 48);
    assert_eq!(bench.held(), held + 2);
}

#[test]
fn tables_of_pages_without_a_cached_mapping_are_full() {
    let mut bench = Bench::with_tables(config(64, Backing::Billed), 64, 64, 9);
    comb(&mut bench, 8);
    let picture = bench.without_unmapped_end();
    let full = AllocError::PagesFull {
        handles: 63,
        mappings: 8,
    };
    assert_eq!(bench.try_alloc(&pages(2)).unwrap_err(), full);
    assert_eq!(bench.without_unmapped_end(), picture);
}

fn refused(config: PageConfig, places: usize, handles: usize, mappings: usize) -> ConfigError {
    let (chunks, tables) = tables(16, places, handles, mappings);
    PagePool::new(config, chunks, tables).err().unwrap()
}

#[test]
fn the_memory_of_a_hollow_chunk_is_used_without_a_call() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [two, one, _stay] = bench.blocks([2, 1, 1]);
    bench.free(one);
    assert_eq!(bench.release(1), 1);
    bench.free(two);
    assert_eq!(bench.picture()[..2], [('F', 0, 32), ('V', 32, 16)]);
    let (calls, block) = bench.calls_of(|bench| bench.alloc(&pages(2)));
    assert_eq!((calls.total(), page_of(&block)), (0, 0));
}

#[test]
fn a_block_goes_to_the_end_when_a_plan_holds_a_page_of_the_best_place() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [two, _stay] = bench.blocks([2, 1]);
    bench.free(two);
    let plan = bench.paged.get_mut().plan_release(PAGE).unwrap();
    let (calls, block) = bench.calls_of(|bench| bench.alloc(&pages(2)));
    assert_eq!((page_of(&block), calls.unmap), (3, 0));
    assert!(bench.finish(plan).is_none());
    assert_eq!(page_of(&bench.alloc(&pages(2))), 0);
}

#[test]
fn a_larger_chunk_serves_that_has_memory_when_there_is_none_for_the_best_place() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [two, _stay, three, _last] = bench.blocks([2, 1, 3, 1]);
    bench.free(two);
    assert_eq!(bench.release(2), 2);
    // It can neither move nor be given back.
    bench.paged.source().pin(three.range());
    bench.paged.get_mut().pin(&three).unwrap();
    bench.free(three);
    let held = bench.held();
    bench.paged.get_mut().set_limit(held * PAGE);
    let (calls, block) = bench.calls_of(|bench| bench.alloc(&pages(2)));
    assert_eq!((page_of(&block), calls.total()), (3, 0));
}

#[test]
fn a_configuration_that_contradicts_itself_is_refused() {
    let good = config(8, Backing::Billed);
    for page_bytes in [0, 128, PAGE + 128, 1 << 41] {
        let config = PageConfig { page_bytes, ..good };
        assert_eq!(refused(config, 8, 8, 8), ConfigError::Page, "{page_bytes}");
    }
    for (start, bytes) in [(BASE + 256, PAGE), (BASE, PAGE + 256), (BASE, PAGE << 30)] {
        let addresses = AddrRange::new(Addr::new(start), bytes).unwrap();
        let config = PageConfig { addresses, ..good };
        assert_eq!(refused(config, 8, 8, 8), ConfigError::Addresses);
    }
    for (places, handles, mappings) in [(7, 8, 8), (8, 1, 8), (8, 8, 1), (8, 0, 8), (8, 8, 0)] {
        let error = refused(good, places, handles, mappings);
        assert_eq!(error, ConfigError::PageTables);
    }
    let (chunks, tables) = tables(16, 8, 2, 2);
    assert!(PagePool::new(good, chunks, tables).is_ok());
}

#[test]
fn in_place_fills_a_hole_before_the_end() {
    let mut bench = Bench::new(config(64, Backing::InPlace));
    let [a, _b] = bench.blocks([2, 1]);
    bench.free(a);
    assert_eq!(bench.release(2), 2);
    assert_eq!(page_of(&bench.alloc(&pages(2))), 0);
}

#[test]
fn an_end_given_back_is_used_again() {
    for backing in [Backing::Billed, Backing::InPlace] {
        let mut bench = Bench::new(config(64, backing));
        for _ in 0..3 {
            let block = bench.alloc(&pages(4));
            assert_eq!(page_of(&block), 0);
            bench.free(block);
            assert_eq!(bench.release(4), 4);
        }
    }
}

#[test]
fn tables_of_pages_too_small_to_create_are_full() {
    for (handles, mappings) in [(3, 64), (64, 3)] {
        let mut bench = Bench::with_tables(config(64, Backing::Billed), 64, handles, mappings);
        let full = AllocError::PagesFull {
            handles: handles as u32 - 1,
            mappings: mappings as u32 - 1,
        };
        assert_eq!(bench.try_alloc(&pages(3)).unwrap_err(), full);
    }
}
