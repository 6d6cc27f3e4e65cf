//! Quarantine: which blocks wait, how long, and what is found in them.

use super::ground::{
    BASE, REFUSED, Touch, Watched, alloc, best_fit, buffer, flip, read_byte, write,
};
use larder_core::decorate::{CheckError, OnDamage, QuarantineConfig, Quarantined, Which};
use larder_core::pool::{Pool, PoolAllocator, PoolConfig};
use larder_core::{
    Addr, AddrRange, Block, BlockAllocator, EventNumber, FixedRange, FreeError, Request,
    SliceAccess, StreamId, StreamPoint,
};

const BYTES: u64 = 1 << 14;

type Best = super::ground::Best;
type Kept<'a> = Quarantined<&'a Best, &'a SliceAccess<'static>>;

fn quarantined<'a>(
    inner: &'a Best,
    access: &'a SliceAccess<'static>,
    limit_bytes: u64,
    count: usize,
) -> Kept<'a> {
    Quarantined::new(inner, access, QuarantineConfig::new(limit_bytes), count).unwrap()
}

fn waiting(allocator: &Kept<'_>) -> (u64, u64) {
    let stats = allocator.quarantine_stats();
    (stats.waiting_blocks, stats.waiting_bytes)
}

fn damage(find: Option<CheckError>) -> (Addr, i64, u8) {
    match find {
        Some(CheckError::Damaged(damage)) => {
            assert_eq!((damage.which, damage.expected), (Which::Freed, 0xdd));
            (damage.addr, damage.offset, damage.found)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_write_after_the_free_is_found_wherever_it_is_and_reading_is_not() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let allocator = quarantined(&inner, &access, BYTES, 4);
    for offset in 0..512 {
        let block = alloc(&allocator, 300);
        let addr = block.addr();
        allocator.free(block).unwrap();
        assert_eq!(
            read_byte(&access, addr.get() + offset),
            0xdd,
            "slack is filled as well"
        );
        assert_eq!(allocator.check_all(|find| panic!("{find}")), 0);
        flip(&access, addr.get() + offset, 0x10);
        if offset % 2 == 0 {
            let mut finds = Vec::new();
            assert_eq!(allocator.check_all(|find| finds.push(find)), 1);
            assert_eq!(damage(finds.pop()), (addr, offset as i64, 0xcd));
            assert_eq!(allocator.check_all(|find| panic!("found twice: {find}")), 0);
        }
        allocator.drain();
        assert_eq!(
            damage(allocator.take_finding()),
            (addr, offset as i64, 0xcd)
        );
        assert_eq!(allocator.take_finding(), None);
        assert_eq!((waiting(&allocator), inner.stats().live_bytes), ((0, 0), 0));
    }
}

#[test]
fn the_oldest_leave_when_places_or_bytes_run_out() {
    // 3 places; 4 blocks of 256 bytes; limits around three of them.
    for (limit, count, kept) in [
        (768, 8, 3),
        (767, 8, 2),
        (769, 8, 3),
        (4096, 3, 3),
        (4096, 2, 2),
    ] {
        let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
        let allocator = quarantined(&inner, &access, limit, count);
        let blocks: Vec<Block> = (0..5).map(|_| alloc(&allocator, 200)).collect();
        let addrs: Vec<Addr> = blocks.iter().map(Block::addr).collect();
        for (block, freed) in blocks.into_iter().zip(1..) {
            allocator.free(block).unwrap();
            let waits = kept.min(freed);
            assert_eq!(waiting(&allocator), (waits, 256 * waits));
            assert_eq!(inner.stats().live_bytes, (5 - freed) * 256 + 256 * waits);
        }
        // The newest are those that wait.
        for addr in &addrs {
            write(&access, addr.get(), &[1]);
        }
        let mut found = Vec::new();
        allocator.check_all(|find| found.push(damage(Some(find)).0));
        assert_eq!(found, addrs[5 - kept as usize..]);
    }
}

#[test]
fn blocks_that_cannot_wait_are_freed_at_once() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    for (limit, count) in [(0, 4), (255, 4), (256, 0)] {
        let allocator = quarantined(&inner, &access, limit, count);
        let block = alloc(&allocator, 200);
        allocator.free(block).unwrap();
        assert_eq!(waiting(&allocator), (0, 0));
        assert_eq!(allocator.quarantine_stats().passed_blocks, 1);
        assert_eq!(inner.stats().live_bytes, 0);
    }
    let allocator = quarantined(&inner, &access, 256, 4);
    let (large, small) = (alloc(&allocator, 300), alloc(&allocator, 256));
    allocator.free(small).unwrap();
    allocator.free(large).unwrap();
    assert_eq!(
        waiting(&allocator),
        (1, 256),
        "a block that is too large drives none out"
    );
}

#[test]
fn what_waits_leaves_when_memory_or_records_run_out() {
    for records in [64, 4] {
        let (inner, access) = (best_fit(BYTES, 256, records), buffer(BYTES));
        let allocator = quarantined(&inner, &access, BYTES, 64);
        let sizes = if records == 64 {
            [BYTES / 2, BYTES / 2]
        } else {
            [256, 256]
        };
        let blocks = sizes.map(|bytes| alloc(&allocator, bytes));
        for block in blocks {
            allocator.free(block).unwrap();
        }
        assert_eq!(waiting(&allocator).0, 2);
        let block = alloc(&allocator, BYTES);
        assert_eq!(waiting(&allocator), (0, 0));
        assert_eq!(allocator.quarantine_stats().drains, 1);
        // Now nothing waits, and the error is the allocator's own.
        assert!(allocator.alloc(&Request::new(1)).is_err());
        assert!(allocator.alloc(&Request::new(0)).is_err());
        assert_eq!(allocator.quarantine_stats().drains, 1);
        allocator.free(block).unwrap();
    }
}

#[test]
fn an_error_that_memory_would_not_mend_drains_nothing() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let allocator = quarantined(&inner, &access, BYTES, 4);
    let block = alloc(&allocator, 100);
    allocator.free(block).unwrap();
    assert!(allocator.alloc(&Request::new(0)).is_err());
    assert!(allocator.alloc(&Request::new(u64::MAX)).is_err());
    assert_eq!(waiting(&allocator), (1, 256));
}

#[test]
fn a_block_written_to_is_kept_out_of_use_where_that_is_wished() {
    for checked in [true, false] {
        let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
        let config = QuarantineConfig {
            on_damage: OnDamage::Keep,
            ..QuarantineConfig::new(BYTES)
        };
        let allocator = Quarantined::new(&inner, &access, config, 4).unwrap();
        let block = alloc(&allocator, 100);
        let addr = block.addr();
        allocator.free(block).unwrap();
        flip(&access, addr.get() + 5, 1);
        if checked {
            assert_eq!(allocator.check_all(drop), 1);
        }
        allocator.drain();
        assert_eq!(allocator.quarantine_stats().waiting_blocks, 0);
        let counts = allocator.finding_counts();
        assert_eq!(
            (counts.damaged, counts.kept_blocks, counts.kept_bytes),
            (1, 1, 256)
        );
        assert_eq!(inner.stats().live_bytes, 256);
        assert_ne!(alloc(&allocator, 100).addr(), addr);
    }
}

#[test]
fn fills_and_checks_come_behind_the_work_of_the_free_and_points_go_with_the_block() {
    let (inner, access) = (best_fit(BYTES, 256, 16), Watched::new(buffer(BYTES)));
    let config = QuarantineConfig::new(BYTES);
    let allocator = Quarantined::new(&inner, &access, config, 4).unwrap();
    let block = alloc(&allocator, BYTES);
    let point = StreamPoint {
        stream: StreamId::new(6),
        event: EventNumber::new(9),
    };
    allocator.free_after(block, point).unwrap();
    assert_eq!(access.take(), [Touch::Fill(6)]);
    let grant = allocator
        .alloc(&Request::new(1).on(StreamId::new(2)))
        .unwrap();
    assert_eq!(access.take()[..1], [Touch::Read(6)]);
    assert_eq!(grant.wait, Some(point), "the point waited too");
}

#[test]
fn a_block_that_the_allocator_below_refuses_waits_on_and_stops_nobody() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let allocator = quarantined(&inner, &access, 512, 2);
    let far = StreamPoint {
        stream: StreamId::new(6),
        event: EventNumber::new(2 * EventNumber::WINDOW),
    };
    let early = alloc(&allocator, 100);
    allocator.free_after(early, far).unwrap();
    for _ in 0..3 {
        let block = alloc(&allocator, 100);
        allocator.free(block).unwrap();
    }
    allocator.drain();
    assert_eq!(
        waiting(&allocator),
        (1, 256),
        "only what is refused is left"
    );
    inner.complete(far.stream, EventNumber::new(EventNumber::WINDOW));
    inner.complete(far.stream, far.event);
    allocator.drain();
    assert_eq!((waiting(&allocator), inner.stats().live_bytes), ((0, 0), 0));
    // One that never waited is refused at once.
    let none = quarantined(&inner, &access, 512, 0);
    let block = alloc(&none, 100);
    let far = StreamPoint {
        event: EventNumber::new(9 * EventNumber::WINDOW),
        ..far
    };
    let rejected = none.free_after(block, far).unwrap_err();
    assert_eq!(rejected.error, FreeError::EventTooFar);
    none.free(rejected.value).unwrap();
}

#[test]
fn memory_that_cannot_be_filled_or_read_leaves_and_is_said_to_be_unchecked() {
    let (inner, access) = (best_fit(BYTES, 256, 16), Watched::new(buffer(BYTES)));
    let config = QuarantineConfig::new(BYTES);
    let allocator = Quarantined::new(&inner, &access, config, 4).unwrap();
    let find = |addr| {
        Some(CheckError::Access {
            addr,
            error: REFUSED,
        })
    };
    let block = alloc(&allocator, 100);
    let addr = block.addr();
    access.refuse_in(0);
    allocator.free(block).unwrap();
    assert_eq!(
        (allocator.take_finding(), inner.stats().live_bytes),
        (find(addr), 0)
    );
    for filled_again in [false, true] {
        let block = alloc(&allocator, 100);
        allocator.free(block).unwrap();
        access.refuse_in(0);
        if filled_again {
            assert_eq!(allocator.check_all(drop), 1);
            assert_eq!(inner.stats().live_bytes, 256, "it waits on, filled again");
        } else {
            allocator.drain();
            assert_eq!(inner.stats().live_bytes, 0);
        }
        assert_eq!(allocator.take_finding(), find(addr));
        allocator.drain();
    }
    assert_eq!(
        (allocator.take_finding(), inner.stats().live_bytes),
        (None, 0)
    );
}

#[test]
fn a_foreign_block_does_not_wait() {
    let (inner, other) = (best_fit(BYTES, 256, 8), best_fit(BYTES, 256, 8));
    let access = buffer(BYTES);
    let allocator = quarantined(&inner, &access, BYTES, 4);
    let rejected = allocator.free(alloc(&other, 100)).unwrap_err();
    assert_eq!(
        (rejected.error, waiting(&allocator)),
        (FreeError::Unknown, (0, 0))
    );
    other.free(rejected.value).unwrap();
}

#[test]
fn blocks_of_an_allocator_without_streams_leave_though_they_were_freed_behind_a_point() {
    let access = buffer(BYTES);
    let config = PoolConfig::new(8, BYTES);
    let source = FixedRange::new(AddrRange::new(Addr::new(BASE), BYTES).unwrap());
    let pool = PoolAllocator::new(Pool::new(config, 8).unwrap(), source);
    let config = QuarantineConfig::new(512);
    let allocator = Quarantined::new(&pool, &access, config, 2).unwrap();
    let point = StreamPoint {
        stream: StreamId::new(6),
        event: EventNumber::new(9),
    };
    for _ in 0..4 {
        let block = alloc(&allocator, 200);
        allocator.free_after(block, point).unwrap();
    }
    allocator.drain();
    assert_eq!(allocator.quarantine_stats().waiting_blocks, 0);
    assert_eq!(pool.report().out_buffers, 0);
    // One that does not wait was not filled behind its stream's work: its free is refused, as below.
    let block = alloc(&allocator, 600);
    let rejected = allocator.free_after(block, point).unwrap_err();
    assert_eq!(rejected.error, FreeError::NoStreams);
    allocator.free(rejected.value).unwrap();
    assert_eq!(pool.report().out_buffers, 0);
}
