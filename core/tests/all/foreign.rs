//! Blocks, tickets and regions of another allocator, or of a former owner of the same table, are refused and change
//! nothing.

use larder_core::pages::{
    Backing, Handle, Mapping, PageAttempt, PageConfig, PageEntry, PagePool, PageTables,
};
use larder_core::{
    BestFit, BlockAllocator, Chunk, FixedRange, FreeError, GrowTicket, Progress, RegionAttempt,
    RegionConfig, RegionError, RegionPlan, RegionPool, ReleaseTicket, Request, Shared,
};

use crate::common::{range, ranged};

/// Returns an allocator of 64 KiB of offsets, as in the guide (core.md).
fn offsets(table: &mut [Chunk]) -> RegionPool<'_> {
    let mut bfc = RegionPool::new(RegionConfig::fixed(), table).unwrap();
    bfc.add_region(range(0, 1 << 16)).unwrap();
    bfc
}

fn grow_ticket(bfc: &mut RegionPool<'_>, bytes: u64) -> GrowTicket {
    match bfc.advance(&mut RegionAttempt::new(Request::new(bytes))) {
        Progress::Plan(RegionPlan::Grow(ticket)) => ticket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_of_another_allocator_at_the_same_offsets_comes_back() {
    let (mut a, mut b) = ([Chunk::VACANT; 8], [Chunk::VACANT; 8]);
    let (mut a, mut b) = (offsets(&mut a), offsets(&mut b));
    let mine = a.alloc(&Request::new(300)).unwrap().block;
    let theirs = b.alloc(&Request::new(300)).unwrap().block;
    assert_eq!((mine.addr(), mine.bytes()), (theirs.addr(), theirs.bytes()));
    assert_eq!(b.requested_bytes(&mine), None);
    assert_eq!(b.allocation_id(&mine), None);
    let rejected = b.free(mine).unwrap_err();
    assert_eq!(rejected.error, FreeError::Unknown);
    a.free(rejected.value).unwrap();
    b.free(theirs).unwrap();
    assert_eq!(
        (a.check_invariants(), b.check_invariants()),
        (Ok(()), Ok(()))
    );
}

#[test]
fn blocks_of_a_tables_former_owner_are_forgotten() {
    let mut table = [Chunk::VACANT; 16];
    let mut first = offsets(&mut table);
    let blocks: Vec<_> = (1..6)
        .map(|i| first.alloc(&Request::new(i * 300)).unwrap().block)
        .collect();
    let mut second = offsets(first.into_table());
    for block in blocks {
        let rejected = second.free(block).unwrap_err();
        let raw = rejected.value.into_raw();
        assert_eq!(second.block_from_raw(raw), Err(FreeError::Unknown));
        assert_eq!(second.check_invariants(), Ok(()));
    }
    assert_eq!(second.report().largest_free_bytes, 1 << 16);
}

#[test]
fn a_grow_ticket_of_another_allocator_changes_nothing() {
    let (mut a, mut b) = ([Chunk::VACANT; 8], [Chunk::VACANT; 8]);
    let mut a = RegionPool::new(ranged(4096, 1 << 20), &mut a).unwrap();
    let mut b = RegionPool::new(ranged(4096, 1 << 20), &mut b).unwrap();
    let before = format!("{}", b.dump());
    // `b` has issued a ticket of its own, so its sums alone do not show that the other ticket is foreign.
    let own = grow_ticket(&mut b, 1000);
    let ticket = grow_ticket(&mut a, 1000);
    let rejected = b.commit(ticket, range(0x1000, 4096)).unwrap_err();
    assert_eq!(rejected.error, RegionError::ForeignTicket);
    b.abort(grow_ticket(&mut a, 1000));
    assert!(b.retry_smaller(grow_ticket(&mut a, 1000)).is_none());
    assert_eq!(format!("{}", b.dump()), before);
    b.commit(own, range(0x20_0000, 4096)).unwrap();
    assert_eq!(b.check_invariants(), Ok(()));
    let source = FixedRange::new(range(0x1000, 1 << 20));
    let _block = Shared::new(b, source).alloc(&Request::new(1000)).unwrap();
}

#[test]
fn grow_tickets_of_a_tables_former_owner_never_bring_a_count_below_0() {
    let mut table = [Chunk::VACANT; 8];
    let mut former = RegionPool::new(ranged(4096, 1 << 20), &mut table).unwrap();
    let tickets = [(); 2].map(|()| grow_ticket(&mut former, 1000));
    let mut later = RegionPool::new(ranged(4096, 1 << 20), former.into_table()).unwrap();
    let own = grow_ticket(&mut later, 8000);
    for ticket in tickets {
        later.abort(ticket);
    }
    // One of them passed for the later allocator's own ticket, which is therefore refused.
    let rejected = later.commit(own, range(0x1000, 8192)).unwrap_err();
    assert_eq!(rejected.error, RegionError::ForeignTicket);
    assert_eq!(later.check_invariants(), Ok(()));
}

#[test]
fn a_release_ticket_of_another_allocator_changes_nothing() {
    fn leaving(bfc: &mut RegionPool<'_>) -> ReleaseTicket {
        bfc.take_releasable(u64::MAX).unwrap()
    }
    let (mut a, mut b) = ([Chunk::VACANT; 8], [Chunk::VACANT; 8]);
    let (mut a, mut b) = (offsets(&mut a), offsets(&mut b));
    b.released(leaving(&mut a));
    assert_eq!(b.stats().reserved_bytes, 1 << 16);
    let mut table = [Chunk::VACANT; 8];
    let mut c = offsets(&mut table);
    b.release_refused(leaving(&mut c));
    assert_eq!(b.check_invariants(), Ok(()));
    let _block = b.alloc(&Request::new(1 << 16)).unwrap();
}

#[test]
fn a_plan_of_the_former_owner_of_tables_makes_no_call() {
    let (mut entries, mut handles) = ([PageEntry::EMPTY; 64], [Handle::VACANT; 17]);
    let mut mappings = [Mapping::VACANT; 64];
    let tables = PageTables {
        entries: &mut entries,
        handles: &mut handles,
        mappings: &mut mappings,
    };
    let config = PageConfig::new(range(1 << 32, 128 << 20), Backing::Billed);
    let plan_of = |paged: &mut PagePool| {
        let mut attempt = PageAttempt::new(Request::new(3 << 20));
        match paged.advance(&mut attempt) {
            Progress::Plan(plan) => plan,
            other => panic!("{other:?}"),
        }
    };
    let mut chunks = [Chunk::VACANT; 64];
    let mut former = PagePool::new(config, &mut chunks, tables).unwrap();
    let mut plan = plan_of(&mut former);
    let (chunks, tables) = former.into_tables();
    let mut later = PagePool::new(config, chunks, tables).unwrap();
    let mut own = plan_of(&mut later);
    assert!(later.next_call(&mut plan).is_none());
    later.done(&mut plan);
    assert!(later.finish(plan).is_none());
    while later.next_call(&mut own).is_some() {
        later.done(&mut own);
    }
    let _live = later.finish(own).unwrap();
    assert_eq!(later.check_invariants(), Ok(()));
}
