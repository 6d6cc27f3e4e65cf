//! The bytes created at once, and the number of pieces.

use super::bench::{BASE, Bench, PAGE, config, pages};
use larder_core::pages::{Backing, PageCall};
use larder_core::{Addr, AddrRange, Request};

/// Pages of each piece that a request makes the allocator create.
fn created(bench: &mut Bench, request: &Request) -> Vec<u64> {
    let mut plan = bench.plan(request);
    let mut created = Vec::new();
    while let Some(step) = bench.call(&mut plan) {
        if let PageCall::Create { bytes, .. } = step {
            created.push(bytes / PAGE);
        }
    }
    assert!(bench.finish(plan).is_some());
    created
}

#[test]
fn the_first_memory_is_what_is_asked_for_in_whole_pages() {
    for (bytes, expected) in [(1, 1), (PAGE, 1), (PAGE + 1, 2), (3 * PAGE - 1, 3)] {
        let mut bench = Bench::new(config(64, Backing::Billed));
        assert_eq!(created(&mut bench, &Request::new(bytes)), vec![1; expected]);
    }
}

/// Room for more handles than other tests need, in units of so many pages.
fn large(unit: u64, limit: u64) -> Bench {
    let mut config = config(8192, Backing::Billed);
    config.unit_bytes = unit * PAGE;
    config.limit_bytes = limit.saturating_mul(PAGE);
    Bench::with_tables(config, 64, 1024, 2048)
}

#[test]
fn a_handle_is_at_most_a_256th_of_what_will_be_held_in_a_large_pool() {
    for (ballast, handles) in [
        (506, vec![1; 5]),
        (507, vec![2, 2, 1]),
        // In handles of about equal size.
        (763, vec![3, 2]),
    ] {
        let mut bench = Bench::with_tables(config(1024, Backing::Billed), 64, 1024, 4096);
        let _ballast = bench.alloc(&pages(ballast));
        assert_eq!(created(&mut bench, &pages(5)), handles);
    }
}

#[test]
fn a_handle_is_at_most_16_tenths_of_a_unit_in_a_small_pool() {
    let mut bench = large(5, u64::MAX);
    assert_eq!(created(&mut bench, &pages(17)), [6, 6, 5]);
    let mut bench = large(5, u64::MAX);
    assert_eq!(created(&mut bench, &pages(16)), [8, 8]);
}

#[test]
fn from_a_quarter_of_the_limit_on_a_handle_is_at_most_a_2048th_of_it() {
    for (before, handles) in [(1014, vec![5, 4]), (1015, vec![2, 2, 2, 2, 1])] {
        let mut bench = large(4, 4096);
        let _ballast = bench.alloc(&pages(before));
        assert_eq!(created(&mut bench, &pages(9)), handles, "{before}");
    }
}

#[test]
fn near_the_limit_a_handle_is_at_most_a_16th_of_the_room() {
    let mut bench = large(4, 4096);
    let _ballast = bench.alloc(&pages(4064));
    assert_eq!(created(&mut bench, &pages(2)), [2]);
    assert_eq!(created(&mut bench, &pages(2)), [1, 1]);
}

#[test]
fn after_a_refusal_handles_are_as_small_as_if_what_was_held_were_the_limit() {
    for (refused, creates) in [(None, 2), (Some(0), 9)] {
        let mut bench = large(4, u64::MAX);
        let _ballast = bench.alloc(&pages(40));
        bench.paged.source().refuse_in(refused);
        let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(9)));
        assert_eq!(calls.create, creates);
    }
}

#[test]
fn no_run_of_pages_takes_more_than_256_handles() {
    // A 2,048th of the limit is one page.
    let mut bench = large(4, 2048);
    assert_eq!(created(&mut bench, &pages(600)), [3; 200]);
}

#[test]
fn a_handle_of_a_layout_is_at_most_a_16th_of_what_will_be_held() {
    let mut bench = Bench::new(config(128, Backing::Billed));
    let _ballast = bench.alloc(&pages(48));
    let behind = AddrRange::new(Addr::new(BASE + 48 * PAGE), 16 * PAGE).unwrap();
    let paged = &bench.paged;
    let handles = paged.page_stats().handles;
    assert!(paged.back(behind, behind, u64::MAX, None));
    assert_eq!(paged.page_stats().handles, handles + 4);
}

/// An allocator that grows to multiples of 13 pages.
fn young(pages: u64, limit: u64) -> Bench {
    let mut config = config(pages, Backing::Billed);
    config.unit_bytes = 10 * PAGE;
    config.limit_bytes = limit.saturating_mul(PAGE);
    Bench::new(config)
}

#[test]
fn while_calls_are_to_be_saved_the_range_grows_to_a_multiple_of_13_tenths_of_a_unit() {
    let mut bench = young(128, u64::MAX);
    // Not before eight tenths are held.
    assert_eq!(created(&mut bench, &pages(9)), [9]);
    assert_eq!(created(&mut bench, &pages(1)), [4]);
    assert_eq!(created(&mut bench, &pages(13)), [13]);
    assert_eq!(bench.held(), 26);
    // Three calls, and the three made before: 14 for each ten units are seven with 50 pages.
    for (second, held) in [(40, 52), (41, 50)] {
        let mut bench = young(128, u64::MAX);
        let _blocks = bench.blocks([9, second]);
        assert_eq!(bench.held(), held);
    }
}

#[test]
fn less_is_created_ahead_once_more_was_freed_than_is_held() {
    for (times, expected) in [(0, 13), (1, 13), (2, 1)] {
        let mut bench = young(128, u64::MAX);
        let mut block = bench.alloc(&pages(39));
        for _ in 0..times {
            bench.free(block);
            block = bench.alloc(&pages(39));
        }
        assert_eq!(created(&mut bench, &pages(1)), [expected], "{times}");
    }
}

#[test]
fn nothing_is_created_ahead_above_half_of_the_limit() {
    for (limit, expected) in [(25, 10), (26, 13)] {
        let mut bench = young(128, limit);
        let _blocks = bench.blocks([9, 1]);
        assert_eq!(bench.held(), expected, "{limit}");
    }
}

#[test]
fn nothing_is_created_ahead_beyond_the_addresses() {
    let mut bench = young(12, u64::MAX);
    let _first = bench.alloc(&pages(9));
    assert_eq!(created(&mut bench, &pages(1)), [3]);
}
