//! Typed slices over a buffer: sizes, alignments, values that panic, and the return of memory.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use larder_core::typed::{
    HostBuffer, HostMemory, TypedBox, alloc_slice_uninit, alloc_slice_with, alloc_slice_zeroed,
};
use larder_core::{
    Addr, AddrRange, AllocError, BestFit, BlockAllocator, Chunk, ConfigError, EventNumber,
    FreeError, RegionConfig, RegionPool, Request, StreamId, StreamPoint,
};

const BYTES: usize = 64 * 1024;

fn over<'b>(
    buffer: &'b mut [MaybeUninit<u8>],
    table: &'b mut [Chunk],
) -> Result<HostBuffer<'b, 'b>, ConfigError> {
    HostBuffer::new(buffer, RegionConfig::fixed(), table)
}

/// Runs `f` over a buffer filled with a pattern, and checks that everything is freed.
fn over_buffer(f: impl FnOnce(&HostBuffer<'_, '_>)) {
    let mut buffer = vec![MaybeUninit::new(0xa5u8); BYTES];
    let mut table = vec![Chunk::VACANT; 64];
    let memory = over(&mut buffer, &mut table).unwrap();
    f(&memory);
    assert_eq!(memory.stats().live_bytes, 0, "everything came back");
}

/// A value that is counted while it lives.
struct Counted<'c>(&'c Cell<i32>, usize);

impl<'c> Counted<'c> {
    fn new(alive: &'c Cell<i32>, number: usize) -> Self {
        alive.set(alive.get() + 1);
        Self(alive, number)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[test]
fn s3_9_values_are_made_in_order_and_dropped_with_the_box() {
    over_buffer(|memory| {
        let alive = Cell::new(0);
        let values = alloc_slice_with(memory, 100, |index| Counted::new(&alive, index)).unwrap();
        assert_eq!(alive.get(), 100);
        assert!(
            values
                .iter()
                .enumerate()
                .all(|(index, value)| value.1 == index)
        );
        assert!(TypedBox::granted_bytes(&values) >= 1600);
        drop(values);
        assert_eq!(alive.get(), 0);
    });
}

#[test]
fn s3_9_a_panic_in_the_middle_drops_what_was_made_and_frees_the_memory() {
    over_buffer(|memory| {
        for at in [0, 1, 57, 99] {
            let alive = Cell::new(0);
            let made = catch_unwind(AssertUnwindSafe(|| {
                let make = |index| {
                    assert_ne!(index, at, "planned");
                    Counted::new(&alive, index)
                };
                alloc_slice_with(memory, 100, make).map(drop)
            }));
            assert!(made.is_err());
            assert_eq!(alive.get(), 0, "panic at {at}");
            assert_eq!(memory.stats().live_bytes, 0);
        }
    });
}

#[test]
fn a_panic_of_a_value_that_is_dropped_frees_the_memory_and_drops_the_others() {
    struct Bomb<'c>(Counted<'c>);
    impl Drop for Bomb<'_> {
        fn drop(&mut self) {
            assert_ne!(self.0.1, 3, "planned");
        }
    }
    over_buffer(|memory| {
        let alive = Cell::new(0);
        let make = |index| Bomb(Counted::new(&alive, index));
        let values = alloc_slice_with(memory, 10, make).unwrap();
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(values)));
        assert!(dropped.is_err());
        assert_eq!((alive.get(), memory.stats().live_bytes), (0, 0));
    });
}

#[test]
fn s3_9_the_alignment_of_the_type_is_honoured_above_64_too() {
    #[repr(align(4096))]
    #[derive(Clone, Copy)]
    struct Page(u8);
    #[repr(align(128))]
    struct Line(u8);
    over_buffer(|memory| {
        let _odd = alloc_slice_with(memory, 3, |index| index as u8).unwrap();
        let lines = alloc_slice_with(memory, 3, |index| Line(index as u8)).unwrap();
        let pages = alloc_slice_with(memory, 3, |index| Page(index as u8)).unwrap();
        assert_eq!(lines.as_ptr().addr() % 128, 0);
        assert_eq!(pages.as_ptr().addr() % 4096, 0);
        assert!(
            lines
                .iter()
                .zip(pages.iter())
                .all(|(line, page)| line.0 == page.0)
        );
    });
}

#[test]
fn s3_8_counts_whose_bytes_overflow_are_refused_before_memory_is_asked_for() {
    over_buffer(|memory| {
        let least = (isize::MAX as usize) / 8 + 1;
        for len in [usize::MAX, least, usize::MAX / 8 + 1] {
            let refused = alloc_slice_zeroed::<u64, _>(memory, len).map(drop);
            let each_bytes = 8;
            assert_eq!(refused, Err(AllocError::TooMany { len, each_bytes }));
        }
        // One less does not overflow; the buffer is just too small.
        let refused = alloc_slice_zeroed::<u64, _>(memory, least - 1).map(drop);
        assert!(
            matches!(
                refused,
                Err(AllocError::OutOfMemory(_) | AllocError::TooLarge { .. })
            ),
            "{refused:?}"
        );
        assert_eq!(memory.stats().allocations, 0);
    });
}

#[test]
fn values_without_bytes_need_no_memory_and_are_made_and_dropped() {
    thread_local! {
        static ALIVE: Cell<i32> = const { Cell::new(0) };
    }
    struct Nothing;
    impl Drop for Nothing {
        fn drop(&mut self) {
            ALIVE.set(ALIVE.get() - 1);
        }
    }
    over_buffer(|memory| {
        let make = |_| {
            ALIVE.set(ALIVE.get() + 1);
            Nothing
        };
        let values = alloc_slice_with(memory, 1000, make).unwrap();
        assert_eq!((values.len(), ALIVE.get()), (1000, 1000));
        assert_eq!(TypedBox::granted_bytes(&values), 0);
        drop(values);
        assert_eq!(ALIVE.get(), 0);
        let none = alloc_slice_with(memory, 0, |_| 7u64).unwrap();
        assert!(none.is_empty());
        assert_eq!(memory.stats().allocations, 0);
    });
}

#[test]
fn s3_8_zeros_are_zeros_in_memory_that_was_used() {
    over_buffer(|memory| {
        for _ in 0..2 {
            let mut floats = alloc_slice_zeroed::<f32, _>(memory, 1024).unwrap();
            assert!(floats.iter().all(|value| value.to_bits() == 0));
            floats.fill(1.5);
        }
        let rows = alloc_slice_zeroed::<[u16; 3], _>(memory, 5).unwrap();
        assert_eq!(*rows, [[0; 3]; 5]);
    });
}

#[test]
fn room_without_values_is_written_and_drops_nothing() {
    over_buffer(|memory| {
        let alive = Cell::new(0);
        let mut room = alloc_slice_uninit(memory, 4).unwrap();
        room[0].write(Counted::new(&alive, 0));
        drop(room);
        assert_eq!(alive.get(), 1, "nobody knows that it was written");

        let mut room = alloc_slice_uninit(memory, 4).unwrap();
        for (index, place) in room.iter_mut().enumerate() {
            place.write(Counted::new(&alive, index));
        }
        // SAFETY: all four values were written.
        let values = unsafe { room.assume_init() };
        assert_eq!((values[3].1, alive.get()), (3, 5));
        drop(values);
        assert_eq!(alive.get(), 1);
    });
}

#[test]
fn a_full_buffer_is_an_error_and_every_other_slice_keeps_its_values() {
    over_buffer(|memory| {
        let mut slices = Vec::new();
        let refused = loop {
            let number = slices.len() as u64;
            match alloc_slice_with(memory, 100, |index| number << 32 | index as u64) {
                Ok(slice) => slices.push(slice),
                Err(error) => break error,
            }
        };
        assert!(matches!(
            refused,
            AllocError::TableFull { .. } | AllocError::OutOfMemory(_)
        ));
        assert!(slices.len() > 30, "{}", slices.len());
        for (number, slice) in slices.iter().enumerate() {
            let good =
                |(index, value): (usize, &u64)| *value == (number as u64) << 32 | index as u64;
            assert!(slice.iter().enumerate().all(good));
        }
    });
}

#[test]
fn slices_inside_slices_and_other_threads_are_as_with_any_box() {
    over_buffer(|memory| {
        let outer = alloc_slice_with(memory, 3, |outer| {
            alloc_slice_with(memory, 4, |inner| outer * 10 + inner).unwrap()
        });
        let outer = outer.unwrap();
        assert_eq!(outer[2][3], 23);
        std::thread::scope(|scope| {
            scope.spawn(move || assert_eq!(outer[1][1], 11));
        });
        let cells = alloc_slice_with(memory, 2, |_| RefCell::new(Vec::new())).unwrap();
        cells[1].borrow_mut().push(format!("{:?}", &cells[0]));
        assert_eq!(cells[1].borrow().len(), 1);
    });
}

#[test]
fn memory_of_a_buffer_begins_and_ends_on_whole_granules_inside_it() {
    let mut table = vec![Chunk::VACANT; 8];
    let mut buffer = vec![MaybeUninit::new(0u8); 1025];
    let (start, end) = (buffer.as_ptr().addr(), buffer.as_ptr().addr() + 1025);
    let memory = over(&mut buffer[1..], &mut table).unwrap();
    let max = memory.stats().reserved_bytes;
    assert!(max == 768 || max == 512, "{max}");
    let block = memory.alloc(&Request::new(max)).unwrap().block;
    let at = memory.pointer(&block).addr().get();
    assert!(at > start && at.is_multiple_of(256) && at + max as usize <= end);
    assert!(memory.owns(&block));
    memory.free(block).unwrap();
    drop(memory);

    for len in [0, 1, 255] {
        let small = over(&mut buffer[..len], &mut table);
        assert_eq!(small.err(), Some(ConfigError::Buffer));
    }
    let none = over(&mut buffer, &mut []);
    assert_eq!(none.err(), Some(ConfigError::Table));
}

#[test]
fn memory_that_queued_work_may_use_becomes_no_values() {
    let mut table = vec![Chunk::VACANT; 8];
    let mut buffer = vec![MaybeUninit::new(0u8); 4096];
    let memory = over(&mut buffer, &mut table).unwrap();
    let max = memory.stats().reserved_bytes;
    for stream in [StreamId::MAIN, StreamId::new(3)] {
        let block = memory.alloc(&Request::new(max)).unwrap().block;
        let event = EventNumber::new(5);
        memory
            .free_after(block, StreamPoint { stream, event })
            .unwrap();
        let len = max as usize;
        assert!(
            alloc_slice_zeroed::<u8, _>(&memory, len).is_err(),
            "{stream:?}"
        );
        memory.complete(stream, EventNumber::new(4));
        assert!(alloc_slice_zeroed::<u8, _>(&memory, len).is_err());
        memory.complete(stream, event);
        assert!(alloc_slice_zeroed::<u8, _>(&memory, len).is_ok());
    }
}

#[test]
fn a_block_of_a_former_buffer_frees_no_values_over_the_same_memory_and_table() {
    let mut table = vec![Chunk::VACANT; 8];
    let mut buffer = vec![MaybeUninit::new(0u8); 4096];
    let former = over(&mut buffer, &mut table).unwrap();
    let stale = former.alloc(&Request::new(1024)).unwrap().block;
    drop(former);

    let memory = over(&mut buffer, &mut table).unwrap();
    let values = alloc_slice_with(&memory, 1024, |_| 1u8).unwrap();
    assert_eq!(values.as_ptr().addr() as u64, stale.addr().get());
    assert!(!memory.owns(&stale));
    assert_eq!(memory.requested_bytes(&stale), None);
    let point = StreamPoint {
        stream: StreamId::MAIN,
        event: EventNumber::new(1),
    };
    let rejected = memory.free_after(stale, point).unwrap_err();
    let rejected = memory.free(rejected.value).unwrap_err();
    assert_eq!(rejected.error, FreeError::Unknown);
    let others = alloc_slice_with(&memory, 1024, |_| 2u8).unwrap();
    assert!(values.iter().all(|value| *value == 1), "overwritten");
    drop(others);
}

#[test]
fn a_block_made_over_the_same_numbers_and_table_frees_no_values() {
    let mut table = vec![Chunk::VACANT; 8];
    let mut buffer = vec![MaybeUninit::new(0u8); 4096];
    let start = (buffer.as_ptr().addr() as u64).next_multiple_of(256);
    // This pool gives numbers only; no memory is behind them.
    let mut numbers = RegionPool::new(RegionConfig::fixed(), &mut table).unwrap();
    let range = AddrRange::new(Addr::new(start), 2048).unwrap();
    numbers.add_region(range).unwrap();
    let stale = numbers.alloc(&Request::new(1024)).unwrap().block;

    let memory = over(&mut buffer, &mut table).unwrap();
    let values = alloc_slice_with(&memory, 1024, |_| 1u8).unwrap();
    assert_eq!(values.as_ptr().addr() as u64, stale.addr().get());
    assert!(memory.free(stale).is_err());
    assert!(memory.stats().live_bytes > 0);
}

#[test]
fn s3_8_slices_of_1_to_1023_bytes_lie_apart_and_a_million_doubles_are_zeros() {
    let mut table = vec![Chunk::VACANT; 2048];
    let mut buffer = vec![MaybeUninit::new(0xa5u8); 9 << 20];
    let memory = over(&mut buffer, &mut table).unwrap();
    let mut ranges = Vec::new();
    let slices: Vec<_> = (1..1024)
        .map(|len| alloc_slice_with(&memory, len, |_| 7u8).unwrap())
        .collect();
    for slice in &slices {
        ranges.push(slice.as_ptr_range());
    }
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
    drop(slices);
    let doubles = alloc_slice_zeroed::<f64, _>(&memory, 1 << 20).unwrap();
    assert!(doubles.iter().all(|double| double.to_bits() == 0));
}
