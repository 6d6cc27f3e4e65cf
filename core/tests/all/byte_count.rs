//! Sizes as people write them.

use larder_core::ByteCount;

fn parsed(text: &str) -> Option<u64> {
    ByteCount::parse(text).map(|bytes| bytes.0)
}

#[test]
fn sizes_are_read_as_people_write_them() {
    for (text, bytes) in [
        ("0", 0),
        ("4096", 4096),
        (" 4096 B ", 4096),
        ("3KiB", 3 << 10),
        ("512mib", 512 << 20),
        ("8 GiB", 8 << 30),
        ("1.5GiB", 3 << 29),
        ("5G", 5 << 30),
        ("5GB", 5_000_000_000),
        ("0.25 tb", 250_000_000_000),
        ("1t", 1 << 40),
        ("1.0001k", 1024),
        ("18446744073709551615", u64::MAX),
        ("18446744073709551616", u64::MAX),
        ("16777216TiB", u64::MAX),
        ("99999999999999999999999999999999999999 T", u64::MAX),
    ] {
        assert_eq!(parsed(text), Some(bytes), "{text:?}");
    }
}

#[test]
fn what_is_no_size_is_refused() {
    let long = format!("0.{}1G", "0".repeat(60));
    for text in [
        "", " ", "GiB", "x", "-1", "+1", "1.5", "1.5B", "1.", "1.G", ".5G", "1.2.3G", "8GBB",
        "8iB", "8Gi", "8bB", "1 2", "1,5G", "1e9", "é", "5é", &long,
    ] {
        assert_eq!(parsed(text), None, "{text:?}");
    }
}

#[test]
fn sizes_are_shown_as_people_write_them_and_exactly_beside_it() {
    for (bytes, short, exact) in [
        (0, "0 bytes", "0 bytes"),
        (1023, "1023 bytes", "1023 bytes"),
        (1024, "1 KiB", "1 KiB (1,024 bytes)"),
        (1030, "1.01 KiB", "1.01 KiB (1,030 bytes)"),
        (12_345, "12.1 KiB", "12.1 KiB (12,345 bytes)"),
        (3 << 29, "1.5 GiB", "1.5 GiB (1,610,612,736 bytes)"),
        (
            200_000_000_000,
            "186 GiB",
            "186 GiB (200,000,000,000 bytes)",
        ),
        (
            u64::MAX,
            "16777216 TiB",
            "16777216 TiB (18,446,744,073,709,551,615 bytes)",
        ),
    ] {
        let bytes = ByteCount(bytes);
        assert_eq!(
            (bytes.to_string(), format!("{bytes:#}")),
            (short.into(), exact.into())
        );
    }
}
