//! Refusals and their effects: full tables, sub-allocators that refuse or break promises, foreign blocks and tickets,
//! and sizes that overflow.

use std::cell::Cell;

use larder_core::pool::{Pool, PoolAllocator, PoolConfig, PoolStep};
use larder_core::{
    Addr, AddrRange, Align, AllocError, BlockAllocator, Cause, ConfigError, EventNumber,
    FixedRange, FreeError, GrowRequest, RegionError, Request, StreamId, StreamPoint, SubAllocError,
    SubAllocator,
};
use larder_model::Source;
use larder_model::tensorflow::pool as upstream;

use super::rig::counters;

fn over(config: PoolConfig, records: usize, source: Source) -> PoolAllocator<Source> {
    let pool = Pool::new(config, records).unwrap();
    PoolAllocator::new(pool, source)
}

fn source() -> Source {
    Source::new(0x1_0000, 1 << 20)
}

fn request(bytes: u64) -> Request {
    Request::new(bytes)
}

#[test]
fn a_pool_without_room_is_refused() {
    let none = Pool::new(PoolConfig::default(), 0);
    assert_eq!(none.map(|_| ()), Err(ConfigError::Table));
}

#[test]
fn a_full_table_offers_one_kept_buffer_after_another_until_a_record_is_free() {
    // The range takes back only its end, so the release of the oldest buffer is refused.
    let range = AddrRange::new(Addr::new(0x1_0000), 1 << 16).unwrap();
    let pool = Pool::new(PoolConfig::default(), 3).unwrap();
    let pool = PoolAllocator::new(pool, FixedRange::new(range));
    let blocks = [1000, 2000, 3000].map(|bytes| pool.alloc(&request(bytes)).unwrap().block);
    let [first, second, last] = blocks;
    pool.free(first).unwrap();
    pool.free(second).unwrap();
    pool.free(last).unwrap();
    let fourth = pool.alloc(&request(4000)).unwrap().block;
    let report = pool.report();
    assert_eq!((report.out_buffers, report.stuck_buffers), (1, 2));
    pool.with(|pool| pool.check_invariants()).unwrap();
    drop(fourth);
}

#[test]
fn a_refused_sub_allocator_is_asked_again_after_idle_buffers_went_back() {
    let pool = over(PoolConfig::default(), 8, Source::new(0x1_0000, 4096));
    let blocks = [1000, 1001].map(|bytes| pool.alloc(&request(bytes)).unwrap().block);
    for block in blocks {
        pool.free(block).unwrap();
    }
    // 1024 and 1280 of 4096 bytes are idle. The source has room again once they are released.
    let block = pool.alloc(&request(2816)).unwrap().block;
    assert_eq!(
        (pool.report().idle_buffers, pool.source().releases()),
        (0, 2)
    );
    pool.with(|pool| pool.check_invariants()).unwrap();
    drop(block);
}

#[test]
fn s2_10_upstreams_pool_gives_nothing_back_before_it_fails() {
    let mut pool =
        upstream::PoolAllocator::new("pool", 4, false, upstream::NO_ROUNDING, source()).unwrap();
    let block = pool.alloc(1000, Align::ONE).unwrap();
    pool.free(block);
    pool.source().refuse_grow(1);
    assert!(pool.alloc(300, Align::ONE).is_none());
    assert_eq!((pool.idle_buffers(), pool.source().releases()), (1, 0));
}

/// In each run, the sub-allocator refuses another call of the scenario, be it a growth or a release.
#[test]
fn every_refused_call_leaves_the_books_in_order() {
    struct Refusing<'s> {
        inner: Source,
        left: &'s Cell<u32>,
        out_bytes: Cell<u64>,
    }
    impl Refusing<'_> {
        fn refuses(&self) -> bool {
            self.left.set(self.left.get().wrapping_sub(1));
            self.left.get() == 0
        }
    }
    impl SubAllocator for Refusing<'_> {
        fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
            if self.refuses() {
                return Err(SubAllocError);
            }
            let range = self.inner.grow(request)?;
            self.out_bytes.set(self.out_bytes.get() + range.bytes());
            Ok(range)
        }
        fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
            if self.refuses() {
                return Err(SubAllocError);
            }
            self.out_bytes.set(self.out_bytes.get() - range.bytes());
            self.inner.release(range)
        }
    }
    let scenario = |position: u32| {
        let left = Cell::new(position);
        let config = PoolConfig::new(2, 6000);
        let pool = Pool::new(config, 6).unwrap();
        let inner = Source::new(0x1000, 1 << 20);
        let source = Refusing {
            inner,
            left: &left,
            out_bytes: Cell::new(0),
        };
        let pool = PoolAllocator::<_>::new(pool, source);
        let check = || {
            pool.with(|pool| pool.check_invariants()).unwrap();
            assert_eq!(pool.stats().reserved_bytes, pool.source().out_bytes.get());
        };
        for bytes in [1000, 2000, 3000, 1000, 7000, 2000] {
            let pair = [pool.alloc(&request(bytes)), pool.alloc(&request(bytes / 2))];
            check();
            for grant in pair.into_iter().flatten() {
                pool.free(grant.block).unwrap();
                check();
            }
        }
        pool.end_step();
        check();
        pool.trim();
        pool.trim();
        check();
        assert_eq!(pool.stats().reserved_bytes, 0, "position {position}");
        // `left` was counted down from `position` and wraps below 0.
        position.wrapping_sub(left.get())
    };
    let calls = scenario(0);
    assert!(calls > 12, "{calls} calls");
    (1..=calls).for_each(|position| {
        scenario(position);
    });
}

#[test]
fn a_range_that_does_not_serve_goes_back_with_the_reason() {
    let mut pool = Pool::new(PoolConfig::default(), 4).unwrap();
    let mut other = Pool::new(PoolConfig::default(), 4).unwrap();
    let range = |start, bytes| AddrRange::new(Addr::new(start), bytes).unwrap();
    for (start, bytes, unfit) in [
        (0x1000, 1023, RegionError::TooSmall),
        (0x1080, 1024, RegionError::Misaligned),
    ] {
        let PoolStep::Grow(ticket) = pool.alloc(&request(1000)).unwrap() else {
            panic!("nothing is kept");
        };
        let rejected = pool.commit(ticket, range(start, bytes)).unwrap_err();
        assert_eq!(rejected.value, range(start, bytes));
        let AllocError::OutOfMemory(out) = rejected.error else {
            panic!("another error");
        };
        assert_eq!(out.cause, Cause::Rejected(unfit));
        pool.check_invariants().unwrap();
    }
    let PoolStep::Grow(ticket) = pool.alloc(&request(1000)).unwrap() else {
        panic!("nothing is kept");
    };
    assert!(other.commit(ticket, range(0x1000, 1024)).is_err());
    other.check_invariants().unwrap();
    // A longer range is held and released as a whole.
    let PoolStep::Grow(ticket) = other.alloc(&request(1000)).unwrap() else {
        panic!("nothing is kept");
    };
    let block = other.commit(ticket, range(0x1000, 4096)).unwrap().block;
    assert_eq!((block.bytes(), other.stats().reserved_bytes), (1024, 4096));
    other.free(block).unwrap();
    assert_eq!(other.report().idle_bytes, 4096);
    other.trim();
    let ticket = other.take_leaving().unwrap();
    assert_eq!(ticket.range(), range(0x1000, 4096));
    assert_eq!(pool.released(ticket), 0, "another pool's ticket");
    pool.check_invariants().unwrap();
}

#[test]
fn foreign_blocks_and_second_frees_are_refused_and_change_nothing() {
    let pool = over(PoolConfig::default(), 4, source());
    let other = over(PoolConfig::default(), 4, source());
    let block = pool.alloc(&request(1000)).unwrap().block;
    let theirs = other.alloc(&request(1000)).unwrap().block;
    assert_eq!(
        (block.addr(), block.handle()),
        (theirs.addr(), theirs.handle())
    );
    assert!(block.is_of(pool.with(|pool| pool.id())));
    assert_eq!(pool.requested_bytes(&theirs), None);
    let rejected = pool.free(theirs).unwrap_err();
    assert_eq!(rejected.error, FreeError::Unknown);
    other.free(rejected.value).unwrap();

    let raw = block.into_raw();
    let twice = [(); 2].map(|()| pool.with(|pool| pool.block_from_raw(raw)).unwrap());
    let [first, second] = twice;
    assert_eq!(first.bytes(), 1024);
    pool.free(first).unwrap();
    assert_eq!(pool.free(second).unwrap_err().error, FreeError::Unknown);
    assert_eq!(pool.with(|pool| pool.block_from_raw(raw)), None);
    assert_eq!(pool.counters(), counters(0, 1, 1, 0));
    pool.with(|pool| pool.check_invariants()).unwrap();
}

#[test]
fn tickets_of_a_tables_former_pool_are_refused_and_change_nothing() {
    let config = PoolConfig {
        limit_buffers: 1,
        ..PoolConfig::default()
    };
    let range = |start| AddrRange::new(Addr::new(start), 4096).unwrap();
    let miss = |pool: &mut Pool, bytes| match pool.alloc(&request(bytes)).unwrap() {
        PoolStep::Grow(ticket) => ticket,
        PoolStep::Ready(grant) => panic!("{grant:?}"),
    };
    // The later pool has this many growths under way, in the records that the tickets name. It usually gets the
    // former one's table from the heap.
    for later in [0, 1, 2] {
        let mut former = Pool::new(config, 4).unwrap();
        let kept = [0x1_0000, 0x2_0000].map(|start| {
            let ticket = miss(&mut former, 1000);
            former.commit(ticket, range(start)).unwrap().block
        });
        let misses = [miss(&mut former, 3000), miss(&mut former, 3000)];
        for block in kept {
            former.free(block).unwrap();
        }
        let leaving = former.take_leaving().unwrap();
        drop(former);

        let mut pool = Pool::new(config, 4).unwrap();
        let own: Vec<_> = (0..later).map(|_| miss(&mut pool, 2000)).collect();
        let [first, second] = misses;
        let rejected = pool.commit(first, range(0x3_0000)).unwrap_err();
        assert_eq!(rejected.value, range(0x3_0000));
        pool.abort(second);
        assert_eq!(pool.released(leaving), 0);
        pool.check_invariants().unwrap();
        assert_eq!(pool.stats().reserved_bytes, 0);
        for (ticket, start) in own.into_iter().zip([0x4_0000, 0x5_0000]) {
            let block = pool.commit(ticket, range(start)).unwrap().block;
            pool.free(block).unwrap();
        }
        pool.check_invariants().unwrap();
    }
}

#[test]
fn a_free_behind_queued_work_is_refused_and_gives_the_block_back() {
    let pool = over(PoolConfig::default(), 4, source());
    let block = pool.alloc(&request(1000)).unwrap().block;
    let point = StreamPoint {
        stream: StreamId::MAIN,
        event: EventNumber::new(1),
    };
    let rejected = pool.free_after(block, point).unwrap_err();
    assert_eq!(rejected.error, FreeError::NoStreams);
    pool.free(rejected.value).unwrap();
    assert_eq!(pool.report().idle_buffers, 1);
}

#[test]
fn sizes_that_overflow_are_too_large_and_huge_ones_are_the_sub_allocators_affair() {
    let pool = over(PoolConfig::default(), 4, source());
    let too_large = |bytes| AllocError::TooLarge {
        requested_bytes: bytes,
    };
    let huge = request(u64::MAX);
    assert_eq!(pool.alloc(&huge).unwrap_err(), too_large(u64::MAX));
    let aligned = request(1 << 63).aligned(Align::new(1 << 63).unwrap());
    assert_eq!(pool.alloc(&aligned).unwrap_err(), too_large(1 << 63));
    assert_eq!(pool.counters(), counters(0, 0, 0, 0));
    let mut alone = Pool::new(PoolConfig::default(), 4).unwrap();
    // Together, the three growths under way exceed 64 bits.
    let tickets = [(); 3].map(|()| match alone.alloc(&request(1 << 63)) {
        Ok(PoolStep::Grow(ticket)) => ticket,
        other => panic!("{other:?}"),
    });
    alone.check_invariants().unwrap();
    for ticket in tickets {
        assert!(matches!(alone.abort(ticket), AllocError::OutOfMemory(_)));
    }
    alone.check_invariants().unwrap();
}
