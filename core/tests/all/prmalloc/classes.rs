//! PR-3 and PR-10: the bin of a size.

use larder_core::prmalloc::{Interval, SmallClass};

use crate::prmalloc::books::{KIB, MIB};

#[test]
fn pr_3_the_index_table() {
    // The number of regular bins, the chunks of the first two and of the last in KiB, the bins of six sizes, and the
    // chunk of the fourth of these bins.
    let table = [
        (
            Interval::KiB4,
            8184,
            [36, 40, 32768],
            [0, 1, 2, 24, 16375, 131_064],
            135_168,
        ),
        (
            Interval::KiB8,
            4092,
            [40, 48, 32768],
            [0, 0, 1, 12, 8187, 65_532],
            139_264,
        ),
        (
            Interval::KiB16,
            2046,
            [48, 64, 32768],
            [0, 0, 0, 6, 4093, 32_766],
            147_456,
        ),
    ];
    let sizes = [32_769, 36_865, 40_961, 131_136, 64 * MIB, 512 * MIB + 64];
    for (interval, regular, chunks, indices, chunk) in table {
        // Upstream keeps bins for chunks of up to 32 MiB in an array, and larger ones in a map.
        assert_eq!((32 * MIB - 32 * KIB) / interval.bytes(), regular);
        let bins = [0, 1, regular - 1];
        assert_eq!(
            bins.map(|bin| interval.chunk_bytes(bin)),
            chunks.map(|kib| Some(kib * KIB))
        );
        assert_eq!(sizes.map(|size| interval.class_of(size)), indices.map(Some));
        assert_eq!(interval.chunk_bytes(indices[3]), Some(chunk));
        assert_eq!(interval.class_of(32 * MIB), Some(regular - 1));
    }
    assert_eq!(Interval::KiB4.class_of(36 * KIB), Some(0));
    assert_eq!(Interval::KiB4.class_of(36 * KIB + 1), Some(1));
}

#[test]
fn pr_3_a_size_of_32_kib_or_less_and_one_that_cannot_be_rounded_have_no_bin() {
    for interval in Interval::ALL {
        for size in [0, 1, 32 * KIB, u64::MAX, u64::MAX - 4094] {
            assert_eq!(interval.class_of(size), None, "{size}");
        }
        let last = u64::MAX - (interval.bytes() - 1);
        let class = interval.class_of(last).unwrap();
        assert_eq!(interval.chunk_bytes(class), Some(last));
        assert_eq!(interval.chunk_bytes(class + 1), None);
        assert_eq!(interval.chunk_bytes(u64::MAX), None);
    }
}

#[test]
fn f6_every_class_is_the_first_that_is_large_enough() {
    for interval in Interval::ALL {
        for size in (32 * KIB + 1..300 * KIB)
            .step_by(97)
            .chain([64 * MIB - 1, 64 * MIB + 1])
        {
            let class = interval.class_of(size).unwrap();
            assert!(interval.chunk_bytes(class).unwrap() >= size);
            let below = class.checked_sub(1).and_then(|c| interval.chunk_bytes(c));
            assert!(below.unwrap_or(32 * KIB) < size);
        }
    }
}

#[test]
fn pr_10_the_size_class_table() {
    let checks = [
        (0, 8),
        (1, 8),
        (9, 16),
        (17, 32),
        (100, 112),
        (129, 144),
        (401, 416),
        (1025, 1152),
        (2049, 2304),
        (6529, 6784),
        (9473, 10_240),
        (13_569, 14_336),
        (32_768, 32_768),
    ];
    for (size, chunk) in checks {
        assert_eq!(SmallClass::of(size).unwrap().bytes(), chunk, "{size}");
    }
    assert_eq!(SmallClass::of(32_769), None);
    assert_eq!(SmallClass::NUMBERS, 67);
    assert_eq!(SmallClass::from_number(0), None);
    assert_eq!(SmallClass::from_number(67), None);
    for size in 1..=32_768 {
        let class = SmallClass::of(size).unwrap();
        assert!(class.bytes() >= size);
        let number = u64::from(class.number());
        assert_eq!(SmallClass::from_number(number), Some(class));
        let below = SmallClass::from_number(number - 1);
        assert!(below.is_none_or(|below| below.bytes() < size), "{size}");
    }
}
