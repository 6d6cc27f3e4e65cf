//! The texts of errors: each says what is wrong and what to do, and is a small value.

use super::{BASE, GRANULE, fixed, numbers, out_of_memory};
use crate::common::{GIB, Pool, point, range};
use larder_core::{
    AllocError, BestFit, Block, ByteCount, Cause, Chunk, ConfigError, FreeError, OutOfMemory,
    RegionError, Request, ResizeError, SubAllocError, Violation,
};

/// Every `OutOfMemory`, one for each cause.
fn all_causes() -> Vec<OutOfMemory> {
    let limit = out_of_memory(&mut Pool::of_regions(256), &Request::new(257));
    let mut exhausted = Pool::of_regions(GIB);
    exhausted.source().refuse_grows.set(u32::MAX);
    let sub_allocator = out_of_memory(&mut exhausted, &Request::new(1));
    let mut pieces = fixed(3);
    let [a, _b, c] = [0, 1, 2].map(|_| pieces.alloc(GRANULE));
    pieces.free_all([a, c]);
    let fragmentation = out_of_memory(&mut pieces, &Request::new(2 * GRANULE));
    let mut queued = fixed(1);
    let block = queued.alloc(GRANULE);
    queued.free_after(block, 1, 1);
    let pending = out_of_memory(&mut queued, &Request::new(1).without_wait());
    let without_growth = out_of_memory(&mut fixed(1), &Request::new(257));
    vec![limit, sub_allocator, fragmentation, pending, without_growth]
}

#[test]
fn every_refused_allocation_says_what_to_do_and_the_numbers_to_judge_it_by() {
    let causes = all_causes();
    let words = [
        (Cause::Limit, "raise it or free blocks"),
        (Cause::SubAllocator, "has no more to give"),
        (Cause::Fragmentation, "too small; free neighbouring blocks"),
        (Cause::Pending, "wait for it and try again"),
        (Cause::Fixed, "give it another region or free blocks"),
    ];
    for (out, (cause, advice)) in causes.into_iter().zip(words) {
        assert_eq!(out.cause, cause);
        let text = AllocError::OutOfMemory(out).to_string();
        assert!(text.contains(advice), "{text}");
        assert_eq!(text, out.to_string());
        for number in numbers(&out)
            .into_iter()
            .chain([out.requested_bytes, out.rounded_bytes])
        {
            let written = match number {
                u64::MAX => "no limit".to_owned(),
                number => format!("{:#}", ByteCount(number)),
            };
            assert!(text.contains(&written), "{number} in {text}");
        }
    }
    let text = AllocError::TableFull { records: 77 }.to_string();
    assert!(
        text.contains("77") && text.contains("lend a larger table"),
        "{text}"
    );
    let text = AllocError::TooLarge {
        requested_bytes: 12_345,
    }
    .to_string();
    assert!(
        text.contains("12.1 KiB (12,345 bytes)") && text.contains("one region"),
        "{text}"
    );
    assert!(AllocError::ZeroSize.to_string().contains("zero bytes"));
    let (len, each_bytes) = (usize::MAX, 24);
    let text = AllocError::TooMany { len, each_bytes }.to_string();
    assert!(text.contains(&format!("{len} values of 24 bytes")) && text.contains("ask for fewer"));
    let text = AllocError::PlaceTaken.to_string();
    assert!(
        text.contains("one free chunk") && text.contains("granule"),
        "{text}"
    );
}

#[test]
fn an_allocator_without_a_limit_says_so_and_names_no_number_for_it() {
    let mut out = OutOfMemory::of(Cause::SubAllocator, 1);
    assert!(out.to_string().contains("[limit 0 bytes, "), "{out}");
    out.limit_bytes = u64::MAX;
    assert!(out.to_string().contains("[no limit, "), "{out}");
    out.limit_bytes -= 1;
    assert!(
        out.to_string()
            .contains("(18,446,744,073,709,551,614 bytes), "),
        "{out}"
    );
}

#[test]
fn every_other_error_says_what_is_wrong_and_what_to_do() {
    let text = FreeError::Unknown.to_string();
    assert!(
        text.contains("never allocated here or is freed already"),
        "{text}"
    );
    let text = FreeError::EventTooFar.to_string();
    assert!(text.contains("report completed events"), "{text}");
    let text = FreeError::SubAllocator.to_string();
    assert!(text.contains("try again later"), "{text}");
    let text = FreeError::NoStreams.to_string();
    assert!(text.contains("wait for the work"), "{text}");
    for (error, advice) in [
        (ResizeError::Unknown, "the allocator that gave it"),
        (ResizeError::ZeroSize, "free the block instead"),
        (ResizeError::TooLarge, "one region"),
        (ResizeError::EventTooFar, "report completed events"),
        (ResizeError::TableFull, "lend a larger table"),
        (ResizeError::NoRoom, "allocate anew and copy"),
        (ResizeError::Limit, "raise it or free blocks"),
    ] {
        assert!(error.to_string().contains(advice), "{error}");
    }
    for (error, advice) in [
        (RegionError::Misaligned, "multiple of the granule"),
        (RegionError::Overlap, "held already"),
        (RegionError::TooLarge, "use a larger granule"),
        (RegionError::TooSmall, "smaller than requested"),
        (RegionError::Limit, "pass the limit"),
        (RegionError::TableFull, "lend a larger table"),
        (RegionError::RegionsFull, "grow in larger steps"),
        (RegionError::Claimed, "make a second heap"),
        (RegionError::NoRoom, "at least 32 KiB"),
    ] {
        assert!(error.to_string().contains(advice), "{error}");
    }
    assert!(SubAllocError.to_string().contains("refused"));
    let violation = Violation {
        invariant: "BFC3",
        chunk: 17,
    };
    assert_eq!(violation.to_string(), "invariant BFC3 broken at chunk 17");
    let mut pool = fixed(1);
    let rejected = pool
        .shared
        .get_mut()
        .add_region(range(BASE, GRANULE))
        .expect_err("overlaps");
    let text = rejected.to_string();
    assert!(text.contains("256") && text.contains("0x100000") && text.contains("overlaps"));
    let block = pool.alloc(1);
    let rejected = pool
        .shared
        .get_mut()
        .free_after(block, point(1, u64::MAX))
        .expect_err("far");
    let text = rejected.to_string();
    assert!(
        text.contains("0x100000") && text.contains("event"),
        "{text}"
    );
    let rejected = pool
        .shared
        .get_mut()
        .resize(rejected.value, 0)
        .expect_err("nothing");
    let text = rejected.to_string();
    assert!(text.contains("0x100000") && text.contains("zero"), "{text}");
}

#[test]
fn a_refused_configuration_says_what_would_be_taken() {
    for (error, advice) in [
        (ConfigError::Granule, "power of two of at most 1 GiB"),
        (
            ConfigError::GrowthUnit,
            "multiple of the granule and not zero",
        ),
        (ConfigError::Table, "from 2 to 2^32 - 1 records"),
        (ConfigError::Index, "two slots for each record"),
        (ConfigError::PoolLimit, "a limit above 0"),
    ] {
        assert!(error.to_string().contains(advice), "{error}");
    }
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
