//! The decorators over memory of this process, at its real addresses.

use std::ptr::NonNull;

use larder_core::decorate::{
    CheckError, GuardConfig, Guarded, Poisoned, QuarantineConfig, Quarantined, Which,
};
use larder_core::{
    Addr, AddrRange, BlockAllocator, Chunk, FixedRange, Growth, HostAccess, MemoryAccess, Pattern,
    RegionConfig, RegionPool, Request, Shared, StreamId,
};
use larder_model::conformance::{Expect, run};

const BYTES: u64 = 4 << 20;

#[test]
fn memory_of_this_process_is_guarded_reset_and_kept_back_like_a_buffer() {
    // Room to start at a multiple of 64 KiB.
    let mut memory = vec![0u8; (BYTES + (64 << 10)) as usize];
    let first = NonNull::new(memory.as_mut_ptr()).unwrap();
    // SAFETY: the vector outlives the access and is accessed only through it.
    let access = unsafe { HostAccess::new(first, memory.len() as u64) }.unwrap();
    let start = (first.addr().get() as u64).next_multiple_of(64 << 10);
    let config = RegionConfig {
        growth: Growth::Range {
            unit_bytes: BYTES,
            ahead_divisor: None,
        },
        ..RegionConfig::default()
    };
    let mut table = vec![Chunk::VACANT; 512];
    let source = FixedRange::new(AddrRange::new(Addr::new(start), BYTES).unwrap());
    let inner = Shared::new(RegionPool::new(config, &mut table).unwrap(), source);
    run(&inner, &access, Expect::strict());
    let guarded = Guarded::new(&inner, access, GuardConfig::new(), 48).unwrap();
    run(&guarded, &access, Expect::strict());
    let config = QuarantineConfig::new(64 << 10);
    let quarantined = Quarantined::new(&guarded, access, config, 16).unwrap();
    let allocator = Poisoned::new(&quarantined, access, Pattern::F64_NAN).unwrap();
    let expect = Expect {
        frees_at_once: false,
        refuses_far_events: false,
        ..Expect::strict()
    };
    run(&allocator, &access, expect);
    quarantined.drain();
    assert_eq!(
        (quarantined.take_finding(), guarded.take_finding()),
        (None, None)
    );

    let block = allocator.alloc(&Request::new(24)).unwrap().block;
    let (addr, end) = (block.addr(), block.range().end());
    access.write(StreamId::MAIN, end, &[0]).unwrap();
    allocator.free(block).unwrap();
    access.write(StreamId::MAIN, addr, &[0]).unwrap();
    quarantined.drain();
    for (find, which) in [
        (quarantined.take_finding(), Which::Freed),
        (guarded.take_finding(), Which::Tail),
    ] {
        let Some(CheckError::Damaged(damage)) = find else {
            panic!("{find:?}")
        };
        assert_eq!((damage.which, damage.addr), (which, addr));
    }
}
