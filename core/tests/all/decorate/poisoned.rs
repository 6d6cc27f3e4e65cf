//! Resets: which bytes, with what, on which stream.

use super::ground::{REFUSED, Touch, Untracked, Watched, alloc, best_fit, buffer, read_byte};
use larder_core::decorate::{Poisoned, QuarantineConfig, Quarantined};
use larder_core::{
    AllocError, BlockAllocator, ConfigError, EventNumber, FreeError, Pattern, Request, StreamId,
    StreamPoint,
};

const BYTES: u64 = 1 << 16;

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
                super::ground::write(&access, first + offset, &[1]);
            }
            allocator.free(block).unwrap();
            (0..48).for_each(holds);
        }
    }
}

#[test]
fn resets_come_behind_what_is_waited_for_and_behind_the_work_of_the_free() {
    let (inner, access) = (best_fit(BYTES, 256, 8), Watched::new(buffer(BYTES)));
    let allocator = Poisoned::new(&inner, &access, Pattern::F32_NAN).unwrap();
    let point = StreamPoint {
        stream: StreamId::new(3),
        event: EventNumber::new(7),
    };
    let block = alloc(&inner, BYTES);
    inner.free_after(block, point).unwrap();
    let grant = allocator
        .alloc(&Request::new(100).on(StreamId::new(5)))
        .unwrap();
    assert_eq!(grant.wait, Some(point));
    assert_eq!(access.take(), [Touch::Wait(5, point), Touch::Fill(5)]);
    let after = StreamPoint {
        stream: StreamId::new(6),
        event: EventNumber::new(1),
    };
    allocator.free_after(grant.block, after).unwrap();
    assert_eq!(access.take(), [Touch::Fill(6)]);
}

#[test]
fn a_block_that_cannot_be_reset_is_not_given_and_one_being_freed_is_freed() {
    for refused in 0..2 {
        let (inner, access) = (best_fit(BYTES, 256, 8), Watched::new(buffer(BYTES)));
        let allocator = Poisoned::new(&inner, &access, Pattern::F32_NAN).unwrap();
        let point = StreamPoint {
            stream: StreamId::new(3),
            event: EventNumber::new(7),
        };
        let block = alloc(&inner, BYTES);
        inner.free_after(block, point).unwrap();
        access.refuse_in(refused);
        let request = Request::new(100).on(StreamId::new(5));
        assert_eq!(allocator.alloc(&request), Err(AllocError::Access(REFUSED)));
        assert_eq!(inner.stats().live_bytes, 0);
        let grant = allocator.alloc(&request).unwrap();
        assert_eq!(grant.wait, Some(point), "stream 3 still uses it");
        access.refuse_in(0);
        allocator.free(grant.block).unwrap();
        assert_eq!((allocator.failures(), inner.stats().live_bytes), (1, 0));
    }
}

#[test]
fn a_foreign_block_is_not_touched() {
    let (inner, other) = (best_fit(BYTES, 256, 8), best_fit(BYTES, 256, 8));
    let access = Watched::new(buffer(BYTES));
    let allocator = Poisoned::new(&inner, &access, Pattern::F32_NAN).unwrap();
    let theirs = alloc(&other, 100);
    let rejected = allocator.free(theirs).unwrap_err();
    assert_eq!(
        (rejected.error, access.take()),
        (FreeError::Unknown, vec![])
    );
    other.free(rejected.value).unwrap();
}

#[test]
fn an_allocator_without_sizes_is_refused_with_a_hint() {
    let (inner, access) = (best_fit(BYTES, 256, 8), buffer(BYTES));
    let inner = Untracked(&inner);
    let poisoned = Poisoned::new(&inner, &access, Pattern::F32_NAN);
    let error = poisoned.err().unwrap();
    assert_eq!(error, ConfigError::NoSizes);
    assert!(error.to_string().contains("Tracked::local"));
    let config = QuarantineConfig::new(1000);
    let quarantined = Quarantined::new(&inner, &access, config, 1);
    assert_eq!(quarantined.err(), Some(ConfigError::NoSizes));
}
