//! The conformance suite of `larder-model` over the algorithms, over each decorator, and over stacks.

use super::ground::{BASE, Untracked, best_fit, buffer};
use larder_core::decorate::{
    GuardConfig, Guarded, Poisoned, QuarantineConfig, Quarantined, Tracked,
};
use larder_core::pages::{Backing, Handle, Mapping, PageConfig, PageEntry, PagePool, PageTables};
use larder_core::{
    Addr, AddrRange, Align, BestFit, BlockAllocator, Chunk, MemoryAccess, Pattern, Request, Shared,
};
use larder_model::PageDevice;
use larder_model::conformance::{Expect, run};

const BYTES: u64 = 8 << 20;

/// Expectations of allocators that keep freed blocks back.
const KEEPS_BACK: Expect = Expect {
    frees_at_once: false,
    refuses_far_events: false,
    ..Expect::strict()
};

fn paged(device: &PageDevice) -> Shared<PagePool<'static>, &PageDevice> {
    let page_bytes = 4096;
    let addresses = AddrRange::new(Addr::new(BASE), BYTES).unwrap();
    let config = PageConfig {
        page_bytes,
        ..PageConfig::new(addresses, Backing::Billed)
    };
    let tables = PageTables {
        entries: vec![PageEntry::EMPTY; (BYTES / page_bytes) as usize].leak(),
        handles: vec![Handle::VACANT; 1024].leak(),
        mappings: vec![Mapping::VACANT; 4096].leak(),
    };
    let chunks = vec![Chunk::VACANT; 512].leak();
    Shared::new(PagePool::new(config, chunks, tables).unwrap(), device)
}

/// Runs the suite over each decorator and over stacks. A second round shows anything that the first has left behind.
fn run_decorated<A: BlockAllocator>(allocator: &A, access: &impl MemoryAccess) {
    let guards = GuardConfig::new();
    let quarantine = QuarantineConfig::new(64 << 10);
    for _ in 0..2 {
        run(allocator, access, Expect::strict());
        run(
            &Tracked::new(allocator, 8).unwrap(),
            access,
            Expect::strict(),
        );
        run(
            &Guarded::new(allocator, access, guards, 32).unwrap(),
            access,
            Expect::strict(),
        );
        run(
            &Poisoned::new(allocator, access, Pattern::F32_NAN).unwrap(),
            access,
            Expect::strict(),
        );
        let quarantined = Quarantined::new(allocator, access, quarantine, 16).unwrap();
        run(&quarantined, access, KEEPS_BACK);
        quarantined.drain();
        assert_eq!(quarantined.take_finding(), None);

        let tracked = Tracked::new(allocator, 8).unwrap();
        let guarded = Guarded::new(&tracked, access, guards, 48).unwrap();
        let quarantined = Quarantined::new(&guarded, access, quarantine, 16).unwrap();
        let poisoned = Poisoned::new(&quarantined, access, Pattern::F64_NAN).unwrap();
        run(&poisoned, access, KEEPS_BACK);
        quarantined.drain();
        assert_eq!(
            (quarantined.take_finding(), guarded.take_finding()),
            (None, None)
        );
        assert_eq!(tracked.track_stats().live_bytes, 0);
        assert_eq!(tracked.track_stats().live_blocks, 0);

        // The other useful order, which tracks the sizes that the program requests.
        let guarded = Guarded::new(allocator, access, guards, 32).unwrap();
        let poisoned = Poisoned::new(&guarded, access, Pattern::of_u8(0x55)).unwrap();
        run(
            &Tracked::new(&poisoned, 8).unwrap(),
            access,
            Expect::strict(),
        );
        assert_eq!(guarded.take_finding(), None);
    }
}

#[test]
fn best_fit_and_every_decorator_over_it_keep_the_promises_of_the_trait() {
    for granule_bytes in [16, 256] {
        let (allocator, access) = (best_fit(BYTES, granule_bytes, 512), buffer(BYTES));
        run_decorated(&allocator, &access);
        allocator.with(|bfc| bfc.check_invariants()).unwrap();
        assert_eq!(allocator.stats().live_bytes, 0);
    }
}

#[test]
fn pages_that_move_and_every_decorator_over_them_keep_the_promises_of_the_trait() {
    let device = PageDevice::new(4096, BYTES);
    let (allocator, access) = (paged(&device), buffer(BYTES));
    run_decorated(&allocator, &access);
    allocator.with(|paged| paged.check_invariants()).unwrap();
    assert_eq!(
        (allocator.stats().live_bytes, device.violation()),
        (0, None)
    );
}

#[test]
fn what_tracks_no_sizes_keeps_the_promises_once_they_are_tracked_around_it() {
    let (best, access) = (best_fit(BYTES, 256, 512), buffer(BYTES));
    let allocator = Untracked(&best);
    run(&allocator, &access, Expect::strict());
    run(
        &Tracked::new(&allocator, 8).unwrap(),
        &access,
        Expect::strict(),
    );
    let local = Tracked::local(&allocator, 8, 48).unwrap();
    run_decorated(&local, &access);
    run(
        &Guarded::new(&local, &access, GuardConfig::new(), 32).unwrap(),
        &access,
        Expect::strict(),
    );
    assert_eq!(
        (best.stats().live_bytes, local.track_stats().live_blocks),
        (0, 0)
    );
}

#[test]
fn upstreams_guards_keep_the_promises_but_for_alignment() {
    let (best, access) = (best_fit(BYTES, 256, 512), buffer(BYTES));
    let guarded = Guarded::new(&best, &access, GuardConfig::tensorflow(), 32).unwrap();
    let expect = Expect {
        zero_size: true,
        max_align: 16,
        ..Expect::strict()
    };
    run(&guarded, &access, expect);
    assert_eq!(guarded.take_finding(), None);
    let align = Align::new(32).unwrap();
    let block = guarded
        .alloc(&Request::new(1).aligned(align))
        .unwrap()
        .block;
    assert!(
        !block.addr().is_aligned(align),
        "16 bytes behind a multiple of 256"
    );
    guarded.free(block).unwrap();
}
