//! The texts of errors: each says what is wrong and what to do. Also the sizes of error values.

use std::fmt::{Debug, Display};

use super::out_of_memory;
use crate::common::{BASE, GIB, GRANULE, MIB, Pool, point, range, ranged};
use larder_core::{
    AllocError, BestFit, Block, BlockAllocator, Cause, Chunk, ConfigError, FreeError, OutOfMemory,
    RegionError, Request, ResizeError, SubAllocError, Violation,
};

fn all_causes() -> Vec<OutOfMemory> {
    let limit = out_of_memory(&mut Pool::new(ranged(MIB, 256)), &Request::new(257));
    let mut exhausted = Pool::new(ranged(MIB, GIB));
    exhausted.source().refuse_grow(u32::MAX);
    let sub_allocator = out_of_memory(&mut exhausted, &Request::new(1));
    let mut pieces = Pool::fixed(3);
    let [a, _b, c] = [0, 1, 2].map(|_| pieces.alloc(GRANULE));
    pieces.free_all([a, c]);
    let fragmentation = out_of_memory(&mut pieces, &Request::new(2 * GRANULE));
    let mut queued = Pool::fixed(1);
    let block = queued.alloc(GRANULE);
    let freed = queued.shared.free_after(block, point(1, 1));
    freed.expect("a near event");
    let pending = out_of_memory(&mut queued, &Request::new(1).without_wait());
    let without_growth = out_of_memory(&mut Pool::fixed(1), &Request::new(257));
    let mut almost_no_limit = OutOfMemory::of(Cause::Held, 1);
    almost_no_limit.limit_bytes = u64::MAX - 1;
    vec![
        limit,
        sub_allocator,
        fragmentation,
        pending,
        without_growth,
        OutOfMemory::of(Cause::Regions, 1),
        almost_no_limit,
    ]
}

/// Returns a line for each error: its name and its text.
fn lines<E: Debug + Display>(errors: impl IntoIterator<Item = E>) -> String {
    let line = |error: E| {
        let name = format!("{error:?}");
        let end = name.find([' ', '(']).unwrap_or(name.len());
        format!("{}: {error}\n", &name[..end])
    };
    errors.into_iter().map(line).collect()
}

/// Returns the texts of errors that return a range or a block to the caller.
fn of_rejected() -> String {
    let mut pool = Pool::fixed(1);
    let region = pool.shared.get_mut().add_region(range(BASE, GRANULE));
    let region = region.expect_err("overlaps");
    let block = pool.alloc(1);
    let far = pool.shared.free_after(block, point(1, u64::MAX));
    let far = far.expect_err("far");
    let words = format!("{region}\n{far}\n");
    let nothing = pool.shared.get_mut().resize(far.value, 0);
    words + &format!("{}\n", nothing.expect_err("nothing"))
}

#[test]
fn every_error_says_what_is_wrong_and_what_to_do() {
    let each_bytes = 24;
    let words = [
        lines(all_causes().iter().map(|out| AllocError::OutOfMemory(*out))),
        lines([
            AllocError::ZeroSize,
            AllocError::TooLarge {
                requested_bytes: 12_345,
            },
            AllocError::TooMany {
                len: usize::MAX,
                each_bytes,
            },
            AllocError::TableFull { records: 77 },
            AllocError::PlaceTaken,
        ]),
        lines([
            FreeError::Unknown,
            FreeError::EventTooFar,
            FreeError::SubAllocator,
            FreeError::NoStreams,
        ]),
        lines([
            ResizeError::Unknown,
            ResizeError::ZeroSize,
            ResizeError::TooLarge,
            ResizeError::EventTooFar,
            ResizeError::TableFull,
            ResizeError::NoRoom,
            ResizeError::Limit,
        ]),
        lines([
            RegionError::Misaligned,
            RegionError::Overlap,
            RegionError::TooLarge,
            RegionError::TooSmall,
            RegionError::Limit,
            RegionError::TableFull,
            RegionError::RegionsFull,
            RegionError::NoRoom,
        ]),
        lines([
            ConfigError::Granule,
            ConfigError::GrowthUnit,
            ConfigError::Table,
            ConfigError::Index,
            ConfigError::PoolLimit,
        ]),
        lines([SubAllocError]),
        lines([Violation {
            invariant: "BFC3",
            chunk: 17,
        }]),
        of_rejected(),
    ]
    .concat();
    let stated = include_str!("words.txt");
    for (found, stated) in words.lines().zip(stated.lines()) {
        assert_eq!(found, stated, "errors/words.txt has another text");
    }
    assert!(words == stated, "errors/words.txt should be:\n{words}");
}

#[test]
fn errors_are_small_values() {
    assert!(size_of::<AllocError>() <= 80);
    assert_eq!(size_of::<ResizeError>(), 1);
    assert!(size_of::<FreeError>() == 1 && size_of::<RegionError>() == 1);
    assert!(size_of::<ConfigError>() == 1);
    assert_eq!(size_of::<Block>(), 24);
    assert_eq!(size_of::<Chunk>(), 32);
}
