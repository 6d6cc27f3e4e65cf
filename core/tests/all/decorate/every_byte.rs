//! Each changed byte of a guard or a quarantined block is found, and none of a live block. Resets write every byte.

use super::ground::{BASE, Best, alloc, best_fit, buffer, flip, read_byte, write};
use larder_core::decorate::{
    CheckError, GuardConfig, Guarded, Poisoned, QuarantineConfig, Quarantined, Which,
};
use larder_core::{Addr, Align, Block, BlockAllocator, FreeError, MemoryAccess, Pattern, Request};
use larder_model::Random;

const BYTES: u64 = 1 << 18;
const BITS: [u8; 3] = [0x01, 0x80, 0xff];

type Guards<'a, M> = Guarded<&'a Best, &'a M>;

fn guards<'a, M: MemoryAccess>(inner: &'a Best, access: &'a M) -> Guards<'a, M> {
    Guarded::new(inner, access, GuardConfig::new(), 8).unwrap()
}

/// Returns the bytes that the inner allocator granted for a block at [`BASE`]: guards, block and slack.
fn granted(allocator: &Guards<'_, impl MemoryAccess>, block: &Block) -> core::ops::Range<u64> {
    let bytes = allocator.granted_bytes(block).unwrap();
    BASE..BASE + bytes
}

/// Flips one byte, checks the block, and expects damage unless the byte is the block's own.
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
fn blocks_of_a_former_owner_of_the_rows_come_back() {
    let (inner, access) = (best_fit(BYTES, 256, 16), buffer(BYTES));
    let former = Guarded::new(&inner, &access, GuardConfig::new(), 4).unwrap();
    let (one, two) = (alloc(&former, 100), alloc(&former, 100));
    drop(former);
    // It usually gets the same rows from the heap.
    let next = Guarded::new(&inner, &access, GuardConfig::new(), 4).unwrap();
    let rejected = next.free(one).unwrap_err();
    assert_eq!(rejected.error, FreeError::Unknown);
    // The row is in use again, by a block at another address.
    let mine = alloc(&next, 100);
    assert_eq!(mine.handle(), rejected.value.handle());
    for block in [rejected.value, two] {
        assert_eq!(next.check(&block), Err(CheckError::Unknown));
    }
    assert_eq!(next.check_all(|find| panic!("{find}")), 0);
    next.free(mine).unwrap();
}

/// Returns the address, the offset and the byte of a finding in a freed block.
fn freed_damage(find: Option<CheckError>) -> (Addr, i64, u8) {
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
    let config = QuarantineConfig::new(BYTES);
    let allocator = Quarantined::new(&inner, &access, config, 4).unwrap();
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
            assert_eq!(freed_damage(finds.pop()), (addr, offset as i64, 0xcd));
            assert_eq!(allocator.check_all(|find| panic!("found twice: {find}")), 0);
        }
        allocator.drain();
        assert_eq!(
            freed_damage(allocator.take_finding()),
            (addr, offset as i64, 0xcd)
        );
        assert_eq!(allocator.take_finding(), None);
        let stats = allocator.quarantine_stats();
        assert_eq!((stats.waiting_blocks, stats.waiting_bytes), (0, 0));
        assert_eq!(inner.stats().live_bytes, 0);
    }
}

#[test]
fn the_requested_bytes_are_reset_and_the_last_value_is_cut() {
    let patterns = [
        (Pattern::of_u8(0x5a), vec![0x5a]),
        (Pattern::of_u16(0x0201), vec![1, 2]),
        (Pattern::F32_NAN, vec![0, 0, 0xc0, 0x7f]),
        (Pattern::I32_MIN, vec![0, 0, 0, 0x80]),
        (Pattern::F64_NAN, vec![0, 0, 0, 0, 0, 0, 0xf8, 0x7f]),
    ];
    for (pattern, value) in patterns {
        assert_eq!(usize::from(pattern.width()), value.len());
        for bytes in 1..=40 {
            let (inner, access) = (best_fit(BYTES, 256, 8), buffer(BYTES));
            let allocator = Poisoned::new(&inner, &access, pattern).unwrap();
            let block = alloc(&allocator, bytes);
            let first = block.addr().get();
            let holds = |offset: u64| {
                let is = read_byte(&access, first + offset);
                let expected = if offset < bytes {
                    value[offset as usize % value.len()]
                } else {
                    0
                };
                assert_eq!(is, expected, "{pattern:?}, {bytes} bytes, offset {offset}");
            };
            (0..48).for_each(holds);
            for offset in 0..bytes {
                write(&access, first + offset, &[1]);
            }
            allocator.free(block).unwrap();
            (0..48).for_each(holds);
        }
    }
}
