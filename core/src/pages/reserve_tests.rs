//! Reserved addresses, where a random program does not see the difference.

use super::bound_tests::Yes;
use super::{Backing, Handle, Mapping, PageConfig, PageEntry, PagePool, PageTables};
use crate::best_fit::BestFit;
use crate::block::{BlockAllocator, Request};
use crate::engine::Chunk;
use crate::error::AllocError;
use crate::shared::Shared;
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::units::{Addr, AddrRange};

const PAGE: u64 = 2 << 20;

/// Runs a test with a pool of 64 pages of addresses.
fn with_pool(test: impl FnOnce(&mut Shared<PagePool<'_>, Yes>)) {
    let mut chunks = [Chunk::VACANT; 64];
    let (mut entries, mut handles) = ([PageEntry::EMPTY; 64], [Handle::VACANT; 65]);
    let mut mappings = [Mapping::VACANT; 256];
    let tables = PageTables {
        entries: &mut entries,
        handles: &mut handles,
        mappings: &mut mappings,
    };
    let addresses = AddrRange::new(Addr::new(1 << 32), 64 * PAGE).unwrap();
    let config = PageConfig::new(addresses, Backing::Billed);
    let pool = PagePool::new(config, &mut chunks, tables).unwrap();
    test(&mut Shared::new(pool, Yes));
}

fn pages(of: AddrRange, first: u64, count: u64) -> AddrRange {
    AddrRange::new(Addr::new(of.start().get() + first * PAGE), count * PAGE).unwrap()
}

#[test]
fn only_whole_reserved_pages_can_be_committed_and_only_once() {
    with_pool(|shared| {
        let other = shared.alloc(&Request::new(PAGE)).unwrap().block;
        let reservation = shared.get_mut().reserve_addresses(8 * PAGE - 1).unwrap();
        let whole = reservation.range();
        assert_eq!(
            (whole.bytes(), shared.stats().reserved_bytes),
            (8 * PAGE, PAGE)
        );
        let half = |offset: u64, bytes: u64| {
            AddrRange::new(Addr::new(whole.start().get() + offset), bytes).unwrap()
        };
        let block = shared
            .commit(pages(whole, 2, 3), StreamId::MAIN)
            .unwrap()
            .block;
        for place in [
            half(PAGE / 2, PAGE),
            half(0, PAGE + 256),
            pages(whole, 1, 2),
            pages(whole, 4, 2),
            pages(whole, 7, 2),
            other.range(),
        ] {
            let refused = shared.commit(place, StreamId::MAIN);
            assert_eq!(refused.err(), Some(AllocError::PlaceTaken), "{place:?}");
        }
        let pool = shared.get_mut();
        let other = pool.decommit(&reservation, other, None).unwrap_err().value;
        let reservation = pool.free_addresses(reservation).unwrap_err();
        pool.decommit(&reservation, block, None).unwrap();
        pool.check_invariants().unwrap();
        pool.free_addresses(reservation).unwrap();
        pool.free(other).unwrap();
        pool.check_invariants().unwrap();
    });
}

/// EVENT1: a stored event is read correctly as long as it is cleared before its stream is too far ahead.
#[test]
fn decommitted_memory_is_idle_however_far_its_stream_is_ahead() {
    with_pool(|shared| {
        let reservation = shared.get_mut().reserve_addresses(4 * PAGE).unwrap();
        let place = pages(reservation.range(), 0, 4);
        let block = shared.commit(place, StreamId::MAIN).unwrap().block;
        let point = |event| StreamPoint {
            stream: StreamId::MAIN,
            event: EventNumber::new(event),
        };
        let pool = shared.get_mut();
        pool.decommit(&reservation, block, Some(point(1))).unwrap();
        let mut event = 1;
        for _ in 0..5 {
            event += EventNumber::WINDOW - 1;
            pool.complete(StreamId::MAIN, EventNumber::new(event));
            assert_eq!(
                pool.page_stats().idle_bytes,
                4 * PAGE,
                "after {event} events"
            );
            pool.check_invariants().unwrap();
        }
    });
}

#[test]
fn addresses_that_were_freed_are_reserved_again_and_a_used_up_range_says_so() {
    with_pool(|shared| {
        let pool = shared.get_mut();
        let first = pool.reserve_addresses(30 * PAGE).unwrap();
        let second = pool.reserve_addresses(30 * PAGE).unwrap();
        let full = pool.reserve_addresses(5 * PAGE).unwrap_err();
        assert!(matches!(full, AllocError::OutOfMemory(_)), "{full}");
        let start = first.range().start();
        pool.free_addresses(first).unwrap();
        let again = pool.reserve_addresses(20 * PAGE).unwrap();
        assert_eq!(again.range().start(), start);
        pool.free_addresses(second).unwrap();
        pool.free_addresses(again).unwrap();
        assert_eq!(
            pool.reserve_addresses(64 * PAGE).unwrap().range().bytes(),
            64 * PAGE
        );
    });
}
