//! Parsing of the numbers in scripts.

use larder_core::EventNumber;

use crate::common::{GIB, GRANULE, KIB, MIB, UNIT};

/// Reads a sum of terms, such as `2M-1g` or `2^31+1`. A sum above 64 bits saturates.
pub(super) fn number(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no number");
    let mut sum = 0i128;
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    while !rest.is_empty() {
        let (sign, unsigned) = match rest.strip_prefix('-') {
            Some(unsigned) => (-1, unsigned),
            None => (1, rest.strip_prefix('+').unwrap_or(rest)),
        };
        let end = unsigned.find(['+', '-']).unwrap_or(unsigned.len());
        let (term, behind) = unsigned.split_at(end);
        sum += sign * i128::from(term_of(term).ok_or_else(bad)?);
        rest = behind;
    }
    // A negative sum is a distance to a lower address and wraps.
    Ok(match i64::try_from(sum) {
        Ok(small) => small.cast_unsigned(),
        Err(_) => u64::try_from(sum).unwrap_or(u64::MAX),
    })
}

fn term_of(term: &str) -> Option<u64> {
    if term == "max" {
        return Some(u64::MAX);
    }
    if let Some(power) = term.strip_prefix("2^") {
        return 1u64.checked_shl(power.parse().ok()?);
    }
    if let Some(hex) = term.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    let digits = term.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit = match &term[digits.len()..] {
        "" => 1,
        "K" => KIB,
        "M" => MIB,
        "G" => GIB,
        "g" => GRANULE,
        "u" => UNIT,
        "R" => u64::from(u32::MAX) * GRANULE,
        "W" => EventNumber::WINDOW,
        _ => return None,
    };
    match digits {
        "" => Some(unit),
        digits => digits.parse::<u64>().ok()?.checked_mul(unit),
    }
}

/// Reads a number of granules or a size with a unit, and returns bytes.
pub(super) fn granules(text: &str) -> Result<u64, String> {
    let number = number(text)?;
    let has_unit = text.ends_with(|unit: char| unit.is_ascii_alphabetic());
    Ok(if has_unit { number } else { number * GRANULE })
}

/// Reads `sN`.
pub(super) fn stream(text: &str) -> Option<u8> {
    text.strip_prefix('s')?.parse().ok()
}

/// Reads `sN@EVENT`.
pub(super) fn point(text: &str) -> Result<Option<(u8, u64)>, String> {
    let Some((name, event)) = text.split_once('@') else {
        return Ok(None);
    };
    let stream = stream(name).ok_or_else(|| format!("{name:?} is no stream"))?;
    Ok(Some((stream, number(event)?)))
}
