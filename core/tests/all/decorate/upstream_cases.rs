//! Upstream's own cases of the tracking, guard and reset allocators.

use super::ground::{BASE, Untracked, alloc, best_fit, buffer, read_byte, write};
use larder_core::decorate::{
    CheckError, Damage, GuardConfig, Guarded, Poisoned, TrackRecord, Tracked, Tracking, Which,
};
use larder_core::{
    AllocError, Block, BlockAllocator, FreeError, Grant, MemoryAccess, Pattern, Rejected, Request,
    Stats, StreamId, StreamPoint,
};

const BYTES: u64 = 1 << 20;

fn sizes<A: BlockAllocator>(allocator: &Tracked<A>) -> (u64, u64, u64) {
    let stats = allocator.track_stats();
    (stats.total_bytes, stats.high_water_bytes, stats.live_bytes)
}

fn records<A: BlockAllocator>(allocator: &Tracked<A>) -> Vec<i64> {
    let mut records = Vec::new();
    let taken = allocator.take_records(|record| records.push(record.bytes));
    taken.unwrap();
    records
}

#[test]
fn s3_8_tracking_by_nobody_counts_what_was_requested_and_no_frees() {
    let allocator = Tracked::new(Untracked(best_fit(BYTES, 4, 16)), 8).unwrap();
    assert_eq!(allocator.tracking(), Tracking::Nobody);
    assert!(!allocator.tracks_sizes());
    let block = alloc(&allocator, 4);
    assert_eq!(allocator.requested_bytes(&block), None);
    allocator.free(block).unwrap();
    let block = alloc(&allocator, 12);
    assert_eq!(sizes(&allocator), (16, 0, 0));
    allocator.free(block).unwrap();
    assert_eq!(sizes(&allocator), (16, 0, 0));
    assert_eq!(records(&allocator), [4, 12]);
    assert!(allocator.is_done());
}

#[test]
fn s3_8_tracking_by_a_table_numbers_blocks_and_knows_their_sizes() {
    for granule_bytes in [4, 256] {
        let inner = Untracked(best_fit(BYTES, granule_bytes, 16));
        let allocator = Tracked::local(inner, 8, 4).unwrap();
        assert_eq!(allocator.tracking(), Tracking::Local);
        let block = alloc(&allocator, 4);
        assert_eq!(allocator.requested_bytes(&block), Some(4));
        assert_eq!(allocator.allocation_id(&block), Some(1));
        let four = i64::try_from(block.bytes()).unwrap();
        assert!(four >= 4);
        allocator.free(block).unwrap();
        let block = alloc(&allocator, 12);
        assert_eq!(allocator.requested_bytes(&block), Some(12));
        assert_eq!(allocator.allocation_id(&block), Some(2));
        let twelve = i64::try_from(block.bytes()).unwrap();
        let (total, high, live) = sizes(&allocator);
        assert!(total >= 16 && high >= 12 && live >= 12);
        allocator.free(block).unwrap();
        assert_eq!(records(&allocator), [four, -four, twelve, -twelve]);
    }
}

#[test]
fn s3_8_tracking_over_an_allocator_that_tracks_sizes_uses_those() {
    let allocator = Tracked::local(best_fit(BYTES, 4, 16), 8, 4).unwrap();
    assert_eq!(allocator.tracking(), Tracking::Below);
    let block = alloc(&allocator, 12);
    allocator.free(block).unwrap();
    let block = alloc(&allocator, 4);
    assert_eq!(sizes(&allocator), (16, 12, 4));
    allocator.free(block).unwrap();
    assert_eq!(sizes(&allocator), (16, 12, 0));
    assert_eq!(records(&allocator), [12, -12, 4, -4]);
}

/// Gives nothing.
struct Fails;

const NOTHING: AllocError = AllocError::PlaceTaken;

impl BlockAllocator for Fails {
    fn alloc(&self, _: &Request) -> Result<Grant, AllocError> {
        Err(NOTHING)
    }

    fn free_at(&self, block: Block, _: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        panic!("{block:?} was never given")
    }

    fn requested_bytes(&self, _: &Block) -> Option<u64> {
        None
    }

    fn allocation_id(&self, _: &Block) -> Option<u64> {
        None
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

#[test]
fn s3_8_an_allocator_that_always_fails_leaves_nothing_but_a_count_of_failures() {
    fn fails<A: BlockAllocator>(allocator: &Tracked<A>) {
        for _ in 0..3 {
            assert_eq!(allocator.alloc(&Request::new(12)), Err(NOTHING));
        }
        assert_eq!(sizes(allocator), (0, 0, 0));
        assert_eq!(allocator.track_stats().failures, 3);
        assert_eq!(records(allocator), []);
        assert!(allocator.is_done());
    }
    fails(&Tracked::new(Fails, 8).unwrap());
    fails(&Tracked::new(Untracked(Fails), 8).unwrap());
    // One row is enough: a failure gives it back.
    fails(&Tracked::local(Untracked(Fails), 8, 1).unwrap());
    let access = buffer(BYTES);
    let guarded = Guarded::new(Fails, &access, GuardConfig::new(), 1).unwrap();
    for _ in 0..3 {
        assert_eq!(guarded.alloc(&Request::new(12)), Err(NOTHING));
    }
}

#[test]
fn s3_8_after_the_records_were_taken_blocks_come_home_and_none_are_given() {
    let allocator = Tracked::new(best_fit(BYTES, 4, 16), 8).unwrap();
    let (one, two) = (alloc(&allocator, 4), alloc(&allocator, 8));
    let mut copied = [TrackRecord::default(); 8];
    assert_eq!(allocator.copy_records(&mut copied), 2);
    assert_eq!(records(&allocator), [4, 8], "copying leaves them");
    assert!(
        allocator
            .take_records(|_| panic!("there are none"))
            .is_err()
    );
    assert_eq!(allocator.alloc(&Request::new(4)), Err(AllocError::Closed));
    allocator.free(one).unwrap();
    assert!(!allocator.is_done());
    allocator.free(two).unwrap();
    assert!(allocator.is_done());
    assert_eq!(sizes(&allocator), (12, 12, 0));
}

type Best = super::ground::Best;
type Guards<'a> = Guarded<Best, &'a larder_core::SliceAccess<'static>>;

fn guards<'a>(access: &'a larder_core::SliceAccess<'static>, config: GuardConfig) -> Guards<'a> {
    Guarded::new(best_fit(BYTES, 256, 64), access, config, 16).unwrap()
}

const BOTH: [GuardConfig; 2] = [GuardConfig::new(), GuardConfig::tensorflow()];

#[test]
fn s4_4_writing_the_whole_block_hurts_no_guard() {
    for config in BOTH {
        let access = buffer(BYTES);
        let allocator = guards(&access, config);
        let block = alloc(&allocator, 8 * 8);
        write(&access, block.addr().get(), &[0; 64]);
        assert_eq!(allocator.check(&block), Ok(()));
        assert!(matches!(allocator.free_checked(block, None), Ok(None)));
    }
}

fn found(allocator: &Guards<'_>, block: Block) -> Damage {
    match allocator.free_checked(block, None) {
        Ok(Some(CheckError::Damaged(damage))) => damage,
        other => panic!("{other:?}"),
    }
}

#[test]
fn s4_4_a_float_in_front_of_the_block_is_found_by_the_free() {
    for config in BOTH {
        for words in [8, 211] {
            let access = buffer(BYTES);
            let allocator = guards(&access, config);
            let block = alloc(&allocator, words * 8);
            let addr = block.addr();
            write(&access, addr.get() - 8, &999.0f32.to_le_bytes());
            let damage = found(&allocator, block);
            assert_eq!((damage.which, damage.offset), (Which::Front, -8));
            assert_eq!(
                (damage.expected, damage.found),
                (0xab, 999.0f32.to_le_bytes()[0])
            );
            assert_eq!((damage.addr, damage.bytes, damage.id), (addr, words * 8, 1));
        }
    }
}

#[test]
fn s4_4_a_float_behind_the_block_is_found_by_the_free() {
    for config in BOTH {
        for words in [8, 22] {
            let access = buffer(BYTES);
            let allocator = guards(&access, config);
            let block = alloc(&allocator, words * 8);
            write(
                &access,
                block.addr().get() + words * 8,
                &999.0f32.to_le_bytes(),
            );
            let damage = found(&allocator, block);
            assert_eq!(damage.which, Which::Tail);
            assert_eq!(damage.offset, i64::try_from(words * 8).unwrap());
            assert_eq!(damage.expected, 0xcd);
        }
    }
}

fn float(access: &impl MemoryAccess, at: u64) -> f32 {
    let mut bytes = [0; 4];
    access
        .read(StreamId::MAIN, larder_core::Addr::new(at), &mut bytes)
        .unwrap();
    f32::from_le_bytes(bytes)
}

fn floats_are_reset(allocator: &impl BlockAllocator, access: &impl MemoryAccess) {
    let block = alloc(allocator, 1024 * 4);
    let first = block.addr().get();
    let floats = || (0..1024).map(|i| float(access, first + 4 * i));
    assert!(floats().all(f32::is_nan));
    write(access, first, &1.0f32.to_le_bytes());
    assert_eq!(float(access, first), 1.0);
    allocator.free(block).unwrap();
    assert!(floats().all(f32::is_nan), "read through the stale address");
}

#[test]
fn s4_4_every_float_is_reset_by_an_allocation_and_by_a_free() {
    let access = buffer(BYTES);
    let allocator = Poisoned::new(best_fit(BYTES, 256, 16), &access, Pattern::F32_NAN).unwrap();
    floats_are_reset(&allocator, &access);
}

#[test]
fn s4_4_the_same_around_guards_leaves_the_guards_alone() {
    for config in BOTH {
        let access = buffer(BYTES);
        let allocator = Poisoned::new(guards(&access, config), &access, Pattern::F32_NAN).unwrap();
        floats_are_reset(&allocator, &access);
        assert_eq!(allocator.inner().take_finding(), None);
    }
}

#[test]
fn s4_4_a_float_through_resets_and_guards_is_four_bytes_of_256() {
    let access = buffer(BYTES);
    for config in BOTH {
        let allocator = Poisoned::new(guards(&access, config), &access, Pattern::F32_NAN).unwrap();
        assert!(allocator.inner().tracks_sizes(), "guards track sizes");
        assert!(
            allocator.tracks_sizes(),
            "and so do resets, unlike upstream's"
        );
        let block = alloc(&allocator, 4);
        assert_eq!(allocator.requested_bytes(&block), Some(4));
        assert_eq!(allocator.inner().granted_bytes(&block), Some(256));
        assert_eq!(allocator.allocation_id(&block), Some(1));
        allocator.free(block).unwrap();
    }
}

#[test]
fn s4_4_upstreams_form_has_16_bytes_on_each_side_and_gives_blocks_of_no_bytes() {
    let access = buffer(BYTES);
    let allocator = guards(&access, GuardConfig::tensorflow());
    for bytes in [0, 1, 100, 256] {
        let block = alloc(&allocator, bytes);
        let first = block.addr().get();
        assert_eq!(first, BASE + 16);
        let around =
            |start: u64| -> Vec<u8> { (0..16).map(|i| read_byte(&access, start + i)).collect() };
        assert_eq!(around(first - 16), [0xab; 16]);
        assert_eq!(around(first + bytes), [0xcd; 16]);
        // Past the guard nothing is seen.
        write(&access, first + bytes + 16, &[1]);
        assert_eq!(allocator.check(&block), Ok(()));
        assert_eq!(allocator.requested_bytes(&block), Some(bytes));
        assert!(matches!(allocator.free_checked(block, None), Ok(None)));
    }
}
