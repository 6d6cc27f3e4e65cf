//! Guards: every changed byte is found, none of the block's own, and nothing is lost on the way.

use super::ground::{
    BASE, Best, REFUSED, Touch, Untracked, Watched, alloc, best_fit, buffer, flip, write,
};
use larder_core::decorate::{CheckError, GuardConfig, Guarded, OnDamage, Which};
use larder_core::{
    Align, AllocError, Block, BlockAllocator, EventNumber, FreeError, MemoryAccess, Request,
    SliceAccess, StreamId, StreamPoint,
};
use larder_model::Random;

const BYTES: u64 = 1 << 18;
const BITS: [u8; 3] = [0x01, 0x80, 0xff];

type Guards<'a, M> = Guarded<&'a Best, &'a M>;

fn guards<'a, M: MemoryAccess>(inner: &'a Best, access: &'a M) -> Guards<'a, M> {
    Guarded::new(inner, access, GuardConfig::new(), 8).unwrap()
}

/// The bytes below the block that belong to it: its guards, slack and itself.
fn granted(allocator: &Guards<'_, impl MemoryAccess>, block: &Block) -> core::ops::Range<u64> {
    let bytes = allocator.granted_bytes(block).unwrap();
    BASE..BASE + bytes
}

/// Flips one byte and says what a check of the block finds of it.
fn try_flip<M: MemoryAccess>(
    allocator: &Guards<'_, M>,
    access: &M,
    block: &Block,
    at: u64,
    bits: u8,
) {
    flip(access, at, bits);
    let outcome = allocator.check(block);
    flip(access, at, bits);
    let (first, end) = (block.addr().get(), block.range().end().get());
    if (first..end).contains(&at) {
        assert_eq!(outcome, Ok(()), "{block:?}: byte {at:#x} is its own");
        return;
    }
    let Err(CheckError::Damaged(damage)) = outcome else {
        panic!("{block:?}: a change of {bits:#x} at {at:#x} is not found: {outcome:?}");
    };
    let (which, expected) = if at < first {
        (Which::Front, 0xab)
    } else {
        (Which::Tail, 0xcd)
    };
    assert_eq!((damage.which, damage.expected), (which, expected));
    assert_eq!(damage.offset, at as i64 - first as i64);
    assert_eq!(damage.found, expected ^ bits);
    assert_eq!((damage.addr, damage.bytes), (block.addr(), block.bytes()));
}

#[test]
fn every_changed_byte_of_the_guards_is_found_and_none_of_the_block() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let allocator = guards(&inner, &access);
    for align in [1, 16, 64, 256] {
        let align = Align::new(align).unwrap();
        for bytes in 1..=600 {
            let block = allocator
                .alloc(&Request::new(bytes).aligned(align))
                .unwrap()
                .block;
            assert!(block.addr().is_aligned(align));
            assert_eq!(block.bytes(), bytes);
            for at in granted(&allocator, &block) {
                for bits in BITS {
                    try_flip(&allocator, &access, &block, at, bits);
                }
            }
            assert!(matches!(allocator.free_checked(block, None), Ok(None)));
        }
    }
}

#[test]
fn changes_at_random_in_large_blocks_with_large_alignments_are_found() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let allocator = guards(&inner, &access);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let align = Align::new(1 << random.below(17)).unwrap();
        let request = Request::new(1 + random.below(1 << 15)).aligned(align);
        let block = allocator.alloc(&request).unwrap().block;
        assert!(block.addr().is_aligned(align), "seed {seed}");
        let all = granted(&allocator, &block);
        for _ in 0..40 {
            let at = all.start + random.below(all.end - all.start);
            let bits = 1 + random.below(255) as u8;
            try_flip(&allocator, &access, &block, at, bits);
        }
        // Next to the block, and the outermost bytes.
        for at in [
            block.addr().get() - 1,
            block.range().end().get(),
            all.start,
            all.end - 1,
        ] {
            try_flip(&allocator, &access, &block, at, 0x10);
        }
        allocator.free(block).unwrap();
        assert_eq!(allocator.take_finding(), None);
    }
}

#[test]
fn all_of_a_large_guard_is_written_and_read_window_by_window() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let allocator = guards(&inner, &access);
    let request = Request::new(1).aligned(Align::new(64 << 10).unwrap());
    let block = allocator.alloc(&request).unwrap().block;
    assert_eq!(block.addr().get(), BASE + (64 << 10));
    for at in (BASE..block.addr().get())
        .step_by(97)
        .chain([1023, 1024, 1025, 2048].map(|at| BASE + at))
    {
        try_flip(&allocator, &access, &block, at, 1);
    }
    allocator.free(block).unwrap();
}

#[test]
fn the_front_guard_is_as_large_as_the_front_end_wants() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let config = GuardConfig {
        front_bytes: 256,
        tail_bytes: 100,
        ..GuardConfig::new()
    };
    let allocator = Guarded::new(&inner, &access, config, 8).unwrap();
    for (align, first) in [(1, 256), (64, 256), (1024, 1024)] {
        let request = Request::new(10).aligned(Align::new(align).unwrap());
        let block = allocator.alloc(&request).unwrap().block;
        assert_eq!(block.addr().get(), BASE + first);
        allocator.free(block).unwrap();
    }
    assert_eq!(allocator.take_finding(), None);
}

#[test]
fn check_all_names_each_damaged_block_and_leaves_it_live() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let allocator = guards(&inner, &access);
    let blocks: Vec<Block> = (1..=5).map(|i| alloc(&allocator, 100 * i)).collect();
    for _ in 0..2 {
        assert_eq!(allocator.check_all(|find| panic!("{find}")), 0);
    }
    flip(&access, blocks[1].addr().get() - 1, 4);
    flip(&access, blocks[3].range().end().get(), 4);
    let mut ids = Vec::new();
    let count = allocator.check_all(|find| match find {
        CheckError::Damaged(damage) => ids.push((damage.id, damage.which)),
        other => panic!("{other}"),
    });
    assert_eq!((count, ids), (2, vec![(2, Which::Front), (4, Which::Tail)]));
    assert_eq!(
        allocator.take_finding(),
        None,
        "a check is answered, not noted"
    );
    for block in blocks {
        allocator.free(block).unwrap();
    }
    assert_eq!(allocator.finding_counts().damaged, 2);
    for id in [2, 4] {
        let Some(CheckError::Damaged(damage)) = allocator.take_finding() else {
            panic!()
        };
        assert_eq!(damage.id, id);
    }
    assert_eq!(inner.stats().live_bytes, 0, "damaged blocks are freed");
    assert_eq!(allocator.check_all(|find| panic!("{find}")), 0);
}

#[test]
fn damaged_blocks_are_kept_out_of_use_where_that_is_wished() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let config = GuardConfig {
        on_damage: OnDamage::Keep,
        ..GuardConfig::new()
    };
    let allocator = Guarded::new(&inner, &access, config, 1).unwrap();
    let whole = alloc(&allocator, 100);
    allocator.free(whole).unwrap();
    let hurt = alloc(&allocator, 100);
    let addr = hurt.addr();
    flip(&access, addr.get() + 100, 1);
    assert!(matches!(allocator.free_checked(hurt, None), Ok(Some(_))));
    let counts = allocator.finding_counts();
    assert_eq!(
        (counts.damaged, counts.kept_blocks, counts.kept_bytes),
        (1, 1, 256)
    );
    assert_eq!(inner.stats().live_bytes, 256);
    let next = alloc(&allocator, 100);
    assert_ne!(
        next.addr(),
        addr,
        "its memory is not given again, its row is"
    );
    assert_eq!(allocator.check_all(|find| panic!("{find}")), 0);
    allocator.free(next).unwrap();
}

#[test]
fn sizes_that_guards_make_too_large_are_refused_and_so_is_nothing() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let allocator = guards(&inner, &access);
    for requested_bytes in [u64::MAX, u64::MAX - 31] {
        let outcome = allocator.alloc(&Request::new(requested_bytes));
        assert_eq!(outcome, Err(AllocError::TooLarge { requested_bytes }));
    }
    // One below, the sum is a number, and too large for the allocator below.
    let outcome = allocator.alloc(&Request::new(u64::MAX - 32));
    assert!(matches!(
        outcome,
        Err(AllocError::TooLarge {
            requested_bytes: u64::MAX
        })
    ));
    let request = Request::new(1).aligned(Align::new(1 << 63).unwrap());
    assert!(allocator.alloc(&request).is_err());
    assert_eq!(allocator.alloc(&Request::new(0)), Err(AllocError::ZeroSize));
    // The most that fits beside 32 bytes, and one more.
    let block = alloc(&allocator, BYTES - 32);
    allocator.free(block).unwrap();
    assert!(allocator.alloc(&Request::new(BYTES - 31)).is_err());
    let blocks: Vec<Block> = (0..8).map(|_| alloc(&allocator, 1)).collect();
    assert_eq!(blocks.len(), 8, "refusals cost no rows");
}

#[test]
fn a_full_table_refuses_before_anything_is_taken_below() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    for count in [0, 1, 3] {
        let allocator = Guarded::new(&inner, &access, GuardConfig::new(), count).unwrap();
        let mut blocks: Vec<Block> = (0..count).map(|_| alloc(&allocator, 1)).collect();
        let before = inner.stats();
        let full = AllocError::TableFull {
            records: count as u32,
        };
        assert_eq!(allocator.alloc(&Request::new(1)), Err(full));
        assert_eq!(inner.stats(), before);
        if let Some(block) = blocks.pop() {
            allocator.free(block).unwrap();
            blocks.push(alloc(&allocator, 1));
            assert_eq!(allocator.alloc(&Request::new(1)), Err(full));
        }
        for block in blocks {
            allocator.free(block).unwrap();
        }
    }
}

#[test]
fn blocks_of_the_allocator_below_and_of_another_decorator_come_back() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let (mine, other) = (guards(&inner, &access), guards(&inner, &access));
    let block = alloc(&mine, 100);
    let below = alloc(&inner, 100);
    let rejected = mine.free(below).unwrap_err();
    assert_eq!(rejected.error, FreeError::Unknown);
    inner.free(rejected.value).unwrap();
    let rejected = other.free(block).unwrap_err();
    assert_eq!(rejected.error, FreeError::Unknown);
    assert_eq!(other.check(&rejected.value), Err(CheckError::Unknown));
    mine.free(rejected.value).unwrap();
}

#[test]
fn blocks_of_a_former_owner_of_the_rows_come_back() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let former = Guarded::new(&inner, &access, GuardConfig::new(), 4).unwrap();
    let (one, two) = (alloc(&former, 100), alloc(&former, 100));
    drop(former);
    // The heap most often gives it the same rows.
    let next = Guarded::new(&inner, &access, GuardConfig::new(), 4).unwrap();
    let rejected = next.free(one).unwrap_err();
    assert_eq!(rejected.error, FreeError::Unknown);
    // Its row is in use again, by a block at another address.
    let mine = alloc(&next, 100);
    assert_eq!(mine.handle(), rejected.value.handle());
    for block in [rejected.value, two] {
        assert_eq!(next.check(&block), Err(CheckError::Unknown));
    }
    assert_eq!(next.check_all(|find| panic!("{find}")), 0);
    next.free(mine).unwrap();
}

fn two_streams(inner: &Best) -> StreamPoint {
    // All but a granule is in use or stream 3's, up to event 7.
    let block = alloc(inner, BYTES);
    let point = StreamPoint {
        stream: StreamId::new(3),
        event: EventNumber::new(7),
    };
    inner.free_after(block, point).unwrap();
    point
}

#[test]
fn guards_are_written_behind_what_the_grant_waits_for_and_read_on_the_stream_of_the_free() {
    let (inner, access) = (best_fit(BYTES, 256, 16), Watched::new(buffer(BYTES)));
    let allocator = guards(&inner, &access);
    let point = two_streams(&inner);
    let grant = allocator
        .alloc(&Request::new(100).on(StreamId::new(5)))
        .unwrap();
    assert_eq!(grant.wait, Some(point), "the caller waits too");
    assert_eq!(
        access.take(),
        [Touch::Wait(5, point), Touch::Fill(5), Touch::Fill(5)]
    );
    assert_eq!(allocator.check(&grant.block), Ok(()));
    assert_eq!(
        access.take(),
        [Touch::Read(5); 2],
        "the stream it was requested for"
    );
    let event = EventNumber::new(1);
    allocator
        .free_after(
            grant.block,
            StreamPoint {
                stream: StreamId::new(6),
                event,
            },
        )
        .unwrap();
    assert_eq!(
        access.take(),
        [Touch::Read(6); 2],
        "behind the work that used it last"
    );
    let block = allocator
        .alloc(&Request::new(100).on(StreamId::new(3)))
        .unwrap()
        .block;
    access.take();
    allocator.free(block).unwrap();
    assert_eq!(access.take(), [Touch::Read(3); 2]);
}

#[test]
fn memory_that_cannot_be_written_goes_back_as_it_came() {
    for refused in 0..3 {
        let (inner, access) = (best_fit(BYTES, 256, 16), Watched::new(buffer(BYTES)));
        let allocator = Guarded::new(&inner, &access, GuardConfig::new(), 1).unwrap();
        let point = two_streams(&inner);
        access.refuse_in(refused);
        let request = Request::new(100).on(StreamId::new(5));
        assert_eq!(allocator.alloc(&request), Err(AllocError::Access(REFUSED)));
        assert_eq!(inner.stats().live_bytes, 0);
        let grant = allocator.alloc(&request).unwrap();
        assert_eq!(grant.wait, Some(point), "stream 3 still uses it");
    }
}

#[test]
fn memory_that_cannot_be_read_is_freed_and_said_to_be_unchecked() {
    for refused in 0..2 {
        let (inner, access) = (best_fit(BYTES, 256, 16), Watched::new(buffer(BYTES)));
        let allocator = guards(&inner, &access);
        let block = alloc(&allocator, 100);
        let addr = block.addr();
        let find = CheckError::Access {
            addr,
            error: REFUSED,
        };
        access.refuse_in(refused);
        assert_eq!(allocator.check(&block), Err(find));
        access.refuse_in(refused);
        allocator.free(block).unwrap();
        assert_eq!(allocator.take_finding(), Some(find));
        assert_eq!(allocator.finding_counts().unreachable, 1);
        assert_eq!(inner.stats().live_bytes, 0);
    }
}

#[test]
fn more_finds_than_the_list_holds_are_counted() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let allocator = guards(&inner, &access);
    for _ in 0..20 {
        let block = alloc(&allocator, 100);
        write(&access, block.range().end().get(), &[0]);
        allocator.free(block).unwrap();
    }
    let counts = allocator.finding_counts();
    assert_eq!((counts.damaged, counts.unlisted), (20, 4));
    for id in 1..=16 {
        let Some(CheckError::Damaged(damage)) = allocator.take_finding() else {
            panic!()
        };
        assert_eq!(damage.id, id);
    }
    assert_eq!(allocator.take_finding(), None);
}

#[test]
fn over_an_allocator_without_numbers_blocks_have_none_but_sizes() {
    let access: SliceAccess<'_> = buffer(BYTES);
    let inner = Untracked(best_fit(BYTES, 256, 16));
    let allocator = Guarded::new(inner, &access, GuardConfig::new(), 4).unwrap();
    let block = alloc(&allocator, 100);
    assert_eq!(allocator.requested_bytes(&block), Some(100));
    assert_eq!(allocator.allocation_id(&block), None);
    allocator.free(block).unwrap();
}
