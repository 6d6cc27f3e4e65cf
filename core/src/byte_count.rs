//! [`ByteCount`]: a size as people write it.
//!
//! The stand-in driver and the reader of traces depend on no package of ours, and include this file through
//! symbolic links.

use core::fmt;

/// A number of bytes, parsed and formatted as people write it.
///
/// Formats as `1.5 GiB`, and as `1.5 GiB (1,610,612,736 bytes)` with `{:#}`, as in errors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteCount(pub u64);

impl ByteCount {
    /// Parses plain bytes, or a number and a unit, in upper or lower case: `K`, `M`, `G` or `T`, alone or with `iB` for
    /// powers of two, or with `B` for powers of ten. `None` if the text is not a size. Sizes beyond 64 bits become the
    /// largest number, and a fraction of a byte is dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        let unit = unit_bytes(unit.trim_start())?;
        // A fraction of a plain byte count is dropped.
        let (whole, part) = match number.split_once('.') {
            Some(parts) if unit > 1 => parts,
            _ => (number, "0"),
        };
        let (whole, tail) = (whole.parse::<u128>().ok()?, part.parse::<u64>().ok()?);
        let scale = 10_u128.checked_pow(u32::try_from(part.len()).ok()?)?;
        let bytes = whole
            .saturating_mul(unit)
            .saturating_add(u128::from(tail) * unit / scale);
        Some(Self(u64::try_from(bytes).unwrap_or(u64::MAX)))
    }
}

/// Returns the bytes in a unit.
fn unit_bytes(unit: &str) -> Option<u128> {
    let mut letters = unit.bytes().map(|letter| letter.to_ascii_lowercase());
    let power = match letters.next() {
        None => return Some(1),
        Some(b'b') if unit.len() == 1 => return Some(1),
        Some(b'k') => 1,
        Some(b'm') => 2,
        Some(b'g') => 3,
        Some(b't') => 4,
        Some(_) => return None,
    };
    match (letters.next(), letters.next(), letters.next()) {
        (None, ..) | (Some(b'i'), Some(b'b'), None) => Some(1 << (10 * power)),
        (Some(b'b'), None, _) => Some(1000_u128.pow(power)),
        _ => None,
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let bytes = u128::from(self.0);
        let Some((shift, unit)) = UNITS.into_iter().find(|&(shift, _)| bytes >> shift > 0) else {
            return write!(f, "{bytes} bytes");
        };
        // Three digits.
        let scale = match bytes >> shift {
            0..10 => 100,
            10..100 => 10,
            _ => 1,
        };
        let hundredths = ((bytes * scale + (1 << (shift - 1))) >> shift) * (100 / scale);
        let (whole, part) = (hundredths / 100, hundredths % 100);
        match (part, part % 10) {
            (0, _) => write!(f, "{whole} {unit}")?,
            (_, 0) => write!(f, "{whole}.{} {unit}", part / 10)?,
            _ => write!(f, "{whole}.{part:02} {unit}")?,
        }
        if !f.alternate() {
            return Ok(());
        }
        f.write_str(" (")?;
        grouped(f, self.0)?;
        f.write_str(" bytes)")
    }
}

/// Formats a number with a comma between groups of three digits.
fn grouped(f: &mut fmt::Formatter<'_>, number: u64) -> fmt::Result {
    if number < 1000 {
        return write!(f, "{number}");
    }
    grouped(f, number / 1000)?;
    write!(f, ",{:03}", number % 1000)
}
