//! Allocators over every kind of memory, on the stand-in or on a GPU, of which they need less than 1 GiB.

use crate::common;

use common::{MIB, assert_filled, fill, paged_over, regions_of, request, together};
use larder_core::pages::{PageCall, PageDriver};
use larder_core::{
    Addr, AddrRange, Align, Block, BlockAllocator, Chunk, EventNumber, FreeError, GrowRequest,
    RegionPool, Request, Shared, StreamId, StreamPoint, SubAllocError, SubAllocator,
};
use larder_cuda::driver::PointerKind;
use larder_cuda::{
    Context, DeviceFreeError, DeviceMemory, DriverError, DriverPool, ManagedMemory, PinnedConfig,
    PinnedMemory, StreamAllocator, VirtualConfig, VirtualMemory,
};

/// Checks that blocks over a sub-allocator do not overlap, can be written, and are all released.
fn blocks_over<S: SubAllocator>(context: &Context, source: S) {
    let stream = context.cudarc().new_stream().unwrap();
    let mut table = vec![Chunk::VACANT; 256];
    let bfc = RegionPool::new(regions_of(2 * MIB, 64 * MIB), &mut table).unwrap();
    let pool = Shared::new(bfc, source);
    let sizes = [MIB, 256, 3 * MIB, 100_000, 5 * MIB];
    for round in 0..3u8 {
        let blocks = sizes.map(|bytes| pool.alloc(&Request::new(bytes)).unwrap().block);
        let values = || blocks.iter().zip(round * 10..);
        for (block, value) in values() {
            fill(&stream, block.addr().get(), block.bytes(), value);
        }
        for (block, value) in values() {
            assert_filled(&stream, block.addr().get(), block.bytes(), value);
        }
        for block in blocks {
            pool.free(block).unwrap();
        }
    }
    assert!(pool.stats().reserved_bytes > 0);
    pool.adjust(0);
    assert_eq!(pool.stats().reserved_bytes, 0, "idle regions went back");
}

fn bytes_at(at: u64, bytes: usize) -> Vec<u8> {
    let start = std::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: pinned memory that the test holds and that no queued work uses.
    unsafe { std::slice::from_raw_parts(start, bytes) }.to_vec()
}

fn managed(context: &Context) -> Option<ManagedMemory> {
    match ManagedMemory::new(context) {
        Ok(source) => Some(source),
        Err(DriverError::Unsupported { .. }) => {
            println!("skipped: no managed memory");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn blocks_of_each_kind_of_memory_are_apart_and_go_back() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let write_combined = PinnedConfig {
        write_combined: true,
    };
    let device = DeviceMemory::new(&context);
    let pinned = PinnedMemory::new(&context);
    let combined = PinnedMemory::with_config(&context, write_combined);
    let growing = VirtualMemory::new(&context, 256 * MIB).unwrap();
    blocks_over(&context, &device);
    blocks_over(&context, &pinned);
    blocks_over(&context, &combined);
    blocks_over(&context, &growing);
    let held = [
        device.held_bytes(),
        pinned.held_bytes(),
        combined.held_bytes(),
    ];
    assert_eq!(held, [0; 3]);
    assert_eq!((growing.held_bytes(), growing.mappings()), (0, 0));
}

#[test]
fn the_host_reads_what_a_device_wrote_to_pinned_memory() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    for write_combined in [false, true] {
        let source = PinnedMemory::with_config(&context, PinnedConfig { write_combined });
        let start = source.grow(request(4096)).unwrap().start().get();
        let kind = context.try_current(|driver| driver.pointer_kind(start));
        assert_eq!(kind, Ok(Some(PointerKind::Host)));
        // The device has its own address for write-combined memory.
        let host = core::ptr::with_exposed_provenance_mut(start as usize);
        // SAFETY: it has just been allocated.
        let device = context.try_current(|driver| unsafe { driver.device_pointer(host) });
        fill(&stream, device.unwrap(), 4096, 7);
        stream.synchronize().unwrap();
        assert_eq!(bytes_at(start, 4096), [7; 4096], "{write_combined}");
    }
}

#[test]
fn blocks_of_managed_memory_are_apart_and_the_device_is_never_oversubscribed() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let Some(source) = managed(&context) else {
        return;
    };
    blocks_over(&context, &source);
    assert_eq!(source.held_bytes(), 0);

    let too_much = request(source.max_bytes() + 256);
    assert_eq!(source.grow(too_much), Err(SubAllocError));
    let error = source.last_error().unwrap();
    let is_too_much = matches!(error, DriverError::Oversubscribed { .. });
    assert!(is_too_much, "{error}");
}

#[test]
fn a_range_grows_where_it_is_wished_and_any_whole_pages_go_back() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let source = VirtualMemory::new(&context, 256 * MIB).unwrap();
    let page = source.page_bytes();
    let first = source.grow(request(2 * page)).unwrap();
    let wish = GrowRequest {
        at: Some(first.end()),
        ..request(page + 1)
    };
    let second = source.grow(wish).unwrap();
    assert_eq!(second.start(), first.end());
    assert_eq!(second.bytes(), 2 * page, "whole pages");

    let far = GrowRequest {
        at: second.end().checked_add(8 * page),
        ..request(page)
    };
    let third = source.grow(far).unwrap();
    assert_eq!(Some(third.start()), far.at, "not the lowest free place");
    source.release(third).unwrap();
    let taken = source.grow(wish).unwrap();
    assert_eq!(taken.start(), second.end(), "what is wished for is taken");
    source.release(taken).unwrap();

    let range = |start, bytes| AddrRange::new(Addr::new(start), bytes).unwrap();
    let start = first.start().get();
    assert!(source.release(range(start + 1, page)).is_err());
    assert!(source.release(range(start, page / 2)).is_err());
    assert!(source.release(range(start, 5 * page)).is_err());
    let held = source.held_bytes();
    assert_eq!(held, 4 * page, "a refused release changes nothing");
    // The end of `first` and the start of `second`.
    source.release(range(start + page, 2 * page)).unwrap();
    assert_eq!(source.held_bytes(), 2 * page);
    let between = source.grow(request(2 * page)).unwrap();
    let at = between.start().get();
    assert_eq!(at, start + page, "the lowest place that is free");
}

#[test]
fn regions_never_touch_and_go_back_only_whole() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let source = DeviceMemory::new(&context);
    let ranges: Vec<_> = (0..12)
        .map(|_| source.grow(request(2 * MIB)).unwrap())
        .collect();
    for one in &ranges {
        let is_apart = ranges.iter().all(|other| one.end() != other.start());
        assert!(is_apart, "{one:?} touches");
    }
    let half = AddrRange::new(ranges[0].start(), MIB).unwrap();
    assert_eq!(source.release(half), Err(SubAllocError));
    let error = source.last_error().unwrap();
    assert!(matches!(error, DriverError::NotOurs { .. }), "{error}");
    for range in ranges {
        source.release(range).unwrap();
        assert_eq!(source.release(range), Err(SubAllocError), "once only");
    }
    assert_eq!(source.held_bytes(), 0);
}

#[test]
fn a_region_starts_where_its_alignment_says() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    for log2 in [8, 12, 20, 24] {
        let align = Align::new(1 << log2).unwrap();
        let wish = GrowRequest {
            align,
            ..request(1 << 24)
        };
        let device = DeviceMemory::new(&context);
        assert!(device.grow(wish).unwrap().start().is_aligned(align));
        let pages = VirtualMemory::new(&context, 128 * MIB).unwrap();
        assert!(pages.grow(wish).unwrap().start().is_aligned(align));
    }
}

#[test]
fn pages_move_between_addresses_and_keep_what_others_wrote() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    let memory = VirtualMemory::new(&context, 256 * MIB).unwrap();
    let page = memory.page_bytes();
    let paged = paged_over(&memory, 8 * page);
    let pool = Shared::new(paged, &memory);

    // Eight single pages, every second one freed: four idle pages lie in holes, and the limit is reached.
    let mut small: Vec<_> = (0..8)
        .map(|_| Some(pool.alloc(&Request::new(page)).unwrap().block))
        .collect();
    for (index, block) in small.iter().flatten().enumerate() {
        fill(&stream, block.addr().get(), page, index as u8 + 1);
    }
    for block in small.iter_mut().step_by(2) {
        pool.free(block.take().unwrap()).unwrap();
    }
    stream.synchronize().unwrap();
    let large = pool.alloc(&Request::new(4 * page)).unwrap().block;
    assert!(memory.mappings() > 8, "pages were mapped a second time");
    assert_eq!(memory.held_bytes(), 8 * page, "nothing was created for it");

    fill(&stream, large.addr().get(), 4 * page, 99);
    for (index, block) in small.iter().enumerate() {
        if let Some(block) = block {
            assert_filled(&stream, block.addr().get(), page, index as u8 + 1);
        }
    }
    assert_filled(&stream, large.addr().get(), 4 * page, 99);

    // The pages move back, and the cached mappings are reused.
    pool.free(large).unwrap();
    let again = pool.alloc(&Request::new(page)).unwrap().block;
    fill(&stream, again.addr().get(), page, 55);
    assert_filled(&stream, again.addr().get(), page, 55);
    pool.free(again).unwrap();
    for block in small.into_iter().flatten() {
        pool.free(block).unwrap();
    }
    pool.adjust(0);
    assert_eq!(memory.held_bytes(), 0, "all pages went back");
    assert_eq!(memory.mappings(), 0);
}

#[test]
fn pages_move_between_stream_ids_once_the_stream_id_has_passed() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    let memory = VirtualMemory::new(&context, 256 * MIB).unwrap();
    let page = memory.page_bytes();
    let paged = paged_over(&memory, 4 * page);
    let pool = Shared::new(paged, &memory);

    let (one, two) = (StreamId::new(1), StreamId::new(2));
    let first = pool.alloc(&Request::new(4 * page).on(one)).unwrap().block;
    let start = first.addr().get();
    fill(&stream, start, 4 * page, 1);
    let point = StreamPoint {
        stream: one,
        event: EventNumber::new(5),
    };
    pool.free_after(first, point).unwrap();
    let waiting = Request::new(2 * page).on(two).without_wait();
    assert!(
        pool.alloc(&waiting).is_err(),
        "stream_id 1 may still use all there is"
    );
    stream.synchronize().unwrap();
    pool.complete(one, EventNumber::new(5));
    let second = pool.alloc(&waiting).unwrap().block;
    fill(&stream, second.addr().get(), 2 * page, 2);
    assert_filled(&stream, second.addr().get(), 2 * page, 2);
    pool.free(second).unwrap();
}

/// Returns a number of pages of a memory's addresses, from the page `index` on.
fn pages_at(memory: &VirtualMemory, index: u64, pages: u64) -> AddrRange {
    let page = memory.page_bytes();
    let start = memory.addresses().start().get() + index * page;
    AddrRange::new(Addr::new(start), pages * page).unwrap()
}

fn create(handle: u32, bytes: u64) -> PageCall {
    PageCall::Create { handle, bytes }
}

fn map(handle: u32, range: AddrRange) -> PageCall {
    PageCall::Map { handle, range }
}

fn unmap(handle: u32, range: AddrRange) -> PageCall {
    PageCall::Unmap { handle, range }
}

#[test]
fn steps_that_name_what_is_not_there_are_refused_and_change_nothing() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let memory = VirtualMemory::new(&context, 64 * MIB).unwrap();
    let page = memory.page_bytes();
    let at = |index, pages| pages_at(&memory, index, pages);
    let good = |step| assert_eq!(memory.call(step), Ok(()), "{step:?}");
    let bad = |step| assert_eq!(memory.call(step), Err(SubAllocError), "{step:?}");
    let release = |handle, bytes| PageCall::Release { handle, bytes };
    bad(map(0, at(0, 1)));
    bad(release(0, page));
    bad(unmap(0, at(0, 1)));
    good(create(0, 2 * page));
    bad(create(0, page));
    bad(map(0, at(0, 1)));
    good(map(0, at(0, 2)));
    bad(map(0, at(1, 2)));
    bad(PageCall::SetAccess { range: at(8, 1) });
    bad(unmap(1, at(0, 2)));
    bad(unmap(0, at(0, 1)));
    assert_eq!((memory.held_bytes(), memory.mappings()), (2 * page, 1));
    good(unmap(0, at(0, 2)));
    good(release(0, 2 * page));
    bad(release(0, 2 * page));
    assert_eq!((memory.held_bytes(), memory.mappings()), (0, 0));
}

#[test]
fn one_memory_stands_at_two_addresses() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    let memory = VirtualMemory::new(&context, 64 * MIB).unwrap();
    let page = memory.page_bytes();
    let (one, two) = (pages_at(&memory, 0, 2), pages_at(&memory, 4, 2));
    memory.call(create(0, 2 * page)).unwrap();
    for range in [one, two] {
        memory.call(map(0, range)).unwrap();
        memory.call(PageCall::SetAccess { range }).unwrap();
    }
    fill(&stream, one.start().get(), 2 * page, 42);
    stream.synchronize().unwrap();
    assert_filled(&stream, two.start().get(), 2 * page, 42);
    assert_eq!((memory.held_bytes(), memory.mappings()), (2 * page, 2));
    memory.call(unmap(0, one)).unwrap();
    assert_filled(&stream, two.start().get(), 2 * page, 42);
}

#[test]
fn a_page_must_be_a_multiple_of_the_devices() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let plain = VirtualMemory::new(&context, MIB).unwrap();
    assert_eq!(plain.addresses().bytes(), plain.page_bytes(), "rounded up");
    let with_page = |page_bytes| {
        let config = VirtualConfig {
            page_bytes,
            ..VirtualConfig::new(64 * MIB)
        };
        VirtualMemory::with_config(&context, &config)
    };
    for bad in [4096, 3 * plain.page_bytes()] {
        let error = with_page(bad).unwrap_err();
        assert_eq!(error, DriverError::Size { bytes: bad });
    }
    let wide = with_page(4 * plain.page_bytes()).unwrap();
    assert_eq!(
        wide.grow(request(1)).unwrap().bytes(),
        4 * plain.page_bytes()
    );
}

#[test]
fn the_drivers_pool_keeps_memory_until_it_is_trimmed() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    let pool = match DriverPool::new(&context) {
        Ok(pool) => pool,
        Err(DriverError::Unsupported { .. }) => {
            println!("skipped: no pools");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let block = pool.alloc(&stream, 4 * MIB).unwrap();
    let at = block.addr().get();
    fill(&stream, at, 4 * MIB, 3);
    assert_filled(&stream, at, 4 * MIB, 3);
    let twice = Block::outside(block.range(), block.handle());
    pool.free(&stream, block).unwrap();
    let twice = pool.free(&stream, twice).unwrap_err();
    assert_eq!(twice.error, DeviceFreeError::Block(FreeError::Unknown));
    stream.synchronize().unwrap();
    let kept = pool.driver_stats().unwrap();
    assert_eq!(kept.used_bytes, 0);
    assert!(
        kept.reserved_bytes >= 4 * MIB && kept.peak_used_bytes >= 4 * MIB,
        "{kept:?}"
    );
    pool.trim(0).unwrap();
    assert_eq!(pool.driver_stats().unwrap().reserved_bytes, 0);
    // Not freed: the block is released with the pool.
    let _ = pool.alloc(&stream, MIB).unwrap();
    stream.synchronize().unwrap();
}
