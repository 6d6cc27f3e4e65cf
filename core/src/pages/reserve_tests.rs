//! Reserved addresses, where a random program does not see the difference.

use super::bound_tests::Yes;
use super::{
    AddressReservation, Backing, Handle, Mapping, PageConfig, PageEntry, PagePool, PageTables,
};
use crate::best_fit::BestFit;
use crate::block::{Block, BlockAllocator, Request};
use crate::engine::Chunk;
use crate::error::{AllocError, FreeError};
use crate::shared::Shared;
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::units::{Addr, AddrRange};

const PAGE: u64 = 2 << 20;

/// Runs a test with a pool of this many pages of addresses.
fn with_pages<const PAGES: usize, const HANDLES: usize>(
    test: impl FnOnce(&mut Shared<PagePool<'_>, Yes>),
) {
    let mut chunks = [Chunk::VACANT; PAGES];
    let mut entries = [PageEntry::EMPTY; PAGES];
    let mut handles = [Handle::VACANT; HANDLES];
    let mut mappings = [Mapping::VACANT; HANDLES];
    let tables = PageTables {
        entries: &mut entries,
        handles: &mut handles,
        mappings: &mut mappings,
    };
    let addresses = AddrRange::new(Addr::new(1 << 32), PAGES as u64 * PAGE).unwrap();
    let config = PageConfig::new(addresses, Backing::Billed);
    let pool = PagePool::new(config, &mut chunks, tables).unwrap();
    test(&mut Shared::new(pool, Yes));
}

fn with_pool(test: impl FnOnce(&mut Shared<PagePool<'_>, Yes>)) {
    with_pages::<64, 256>(test);
}

fn pages(of: AddrRange, first: u64, count: u64) -> AddrRange {
    AddrRange::new(Addr::new(of.start().get() + first * PAGE), count * PAGE).unwrap()
}

type Pool<'s, 't> = &'s mut Shared<PagePool<'t>, Yes>;

fn commit(shared: Pool<'_, '_>, reservation: &AddressReservation, page: u64) -> Block {
    let place = pages(reservation.range(), page, 1);
    let grant = shared.commit(reservation, place, StreamId::MAIN);
    grant.unwrap().block
}

fn decommit(shared: Pool<'_, '_>, reservation: &AddressReservation, block: Block) {
    let pool = shared.get_mut();
    pool.decommit(reservation, block, None).unwrap();
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
            .commit(&reservation, pages(whole, 2, 3), StreamId::MAIN)
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
            let refused = shared.commit(&reservation, place, StreamId::MAIN);
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

#[test]
fn a_reservation_of_another_pool_is_refused() {
    let reserve = |shared: Pool<'_, '_>| {
        let reserved = shared.get_mut().reserve_addresses(4 * PAGE).unwrap();
        let block = commit(shared, &reserved, 0);
        (reserved, block)
    };
    with_pool(|one| {
        with_pool(|two| {
            let ((_, foreign), (ours, block)) = (reserve(one), reserve(two));
            assert_eq!(foreign.range(), block.range());
            let place = pages(ours.range(), 1, 1);
            let refused = one.commit(&ours, place, StreamId::MAIN);
            assert_eq!(refused.err(), Some(AllocError::PlaceTaken));
            let refused = one.get_mut().decommit(&ours, foreign, None);
            assert_eq!(refused.unwrap_err().error, FreeError::Unknown);
            decommit(two, &ours, block);
            let ours = one.get_mut().free_addresses(ours).unwrap_err();
            two.get_mut().free_addresses(ours).unwrap();
        });
    });
}

/// EVENT1: a stored event is read correctly as long as it is cleared before its stream is too far ahead.
#[test]
fn decommitted_memory_is_idle_however_far_its_stream_is_ahead() {
    with_pool(|shared| {
        let reservation = shared.get_mut().reserve_addresses(4 * PAGE).unwrap();
        let place = pages(reservation.range(), 0, 4);
        let block = shared
            .commit(&reservation, place, StreamId::MAIN)
            .unwrap()
            .block;
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

/// Returns the result of some work, and the number of chunks that it examined.
fn looks<'t, R>(shared: Pool<'_, 't>, work: impl FnOnce(Pool<'_, 't>) -> R) -> (R, usize) {
    shared.get_mut().chunks.looks().set(0);
    let result = work(shared);
    (result, shared.get_mut().chunks.looks().get())
}

/// Commits every second page of a reservation, and decommits them, once in address order and once in another order. In
/// between, a page of another reservation is committed and decommitted, if one is given. Returns how many chunks
/// the commits in address order examined together, and one call at most.
fn looks_in(
    shared: Pool<'_, '_>,
    reservation: &AddressReservation,
    other: Option<&AddressReservation>,
) -> (usize, usize) {
    let (mut index, mut grown, mut worst) = (RUNS - 1, 0, 0);
    for step in [1, 37] {
        let blocks = [(); RUNS as usize].map(|()| {
            if let Some(other) = other {
                let block = commit(shared, other, 1);
                decommit(shared, other, block);
            }
            index = (index + step) % RUNS;
            let (block, looked) = looks(shared, |shared| commit(shared, reservation, 2 * index));
            (grown, worst) = (grown + looked * usize::from(step == 1), worst.max(looked));
            block
        });
        for block in blocks {
            let ((), looked) = looks(shared, |shared| decommit(shared, reservation, block));
            worst = worst.max(looked);
        }
    }
    (grown, worst)
}

const OTHERS: usize = 64;
const RUNS: u64 = 100;
const MAX_LOOKS: usize = 2 * RUNS as usize + 1;

#[test]
fn chunks_of_other_reservations_are_not_examined() {
    with_pages::<13_200, 6_600>(|shared| {
        let reserve = |shared: Pool<'_, '_>, pages: u64| {
            shared.get_mut().reserve_addresses(pages * PAGE).unwrap()
        };
        let others = [(); OTHERS].map(|()| (reserve(shared, 2), reserve(shared, 2 * RUNS)));
        let own = reserve(shared, 2 * RUNS);
        let alone = looks_in(shared, &own, None);
        for (_, other) in &others {
            for run in 0..RUNS {
                let _block = commit(shared, other, 2 * run);
            }
        }
        assert_eq!(looks_in(shared, &own, None), alone);
        let (grown, worst) = looks_in(shared, &own, Some(&others[0].1));
        assert!(alone.0 <= 3 * RUNS as usize, "{alone:?}");
        assert!(
            worst <= MAX_LOOKS && grown <= MAX_LOOKS * RUNS as usize,
            "{grown} {worst}"
        );
        let (freed, looked) = looks(shared, |shared| shared.get_mut().free_addresses(own));
        assert!(freed.is_ok() && looked < 10, "{looked}");
        // One walk over the chunks finds all the gaps of a layout.
        let chunks = 13_200 - shared.get_mut().chunks.vacant_records() as usize;
        let (first, last) = (others[0].0.range(), others[OTHERS - 1].1.range());
        let bytes = last.end().get() - first.start().get();
        let whole = AddrRange::new(first.start(), bytes).unwrap();
        let (mapped, looked) = looks(shared, |shared| shared.get_mut().is_mapped(whole));
        assert!(mapped && looked <= 2 * chunks, "{looked} of {chunks}");
        for (gap, _) in others {
            shared.get_mut().free_addresses(gap).unwrap();
        }
        let (missing, looked) = looks(shared, |shared| shared.get_mut().missing_bytes(whole, None));
        let idle_pages = RUNS;
        assert_eq!(missing, (2 * OTHERS as u64 - idle_pages) * PAGE);
        assert!(looked <= 2 * chunks, "{looked} of {chunks}");
        shared.get_mut().check_invariants().unwrap();
    });
}
