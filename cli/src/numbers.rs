//! Means, medians, differences, sizes and lists of names.

/// Returns the median: the middle number, or the mean of the two in the middle.
#[must_use]
pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    let upper = *numbers.get(middle)?;
    if numbers.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(numbers[middle - 1], upper))
}

/// Returns the geometric mean, or `None` if there are no numbers.
pub(crate) fn geometric_mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let logarithms: Vec<f64> = numbers.map(f64::ln).collect();
    let sum: f64 = logarithms.iter().sum();
    (!logarithms.is_empty()).then(|| (sum / logarithms.len() as f64).exp())
}

/// Returns bytes as MiB, for printing.
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns each name once, in the order of first occurrence.
pub(crate) fn in_order<N: PartialEq>(names: impl Iterator<Item = N>) -> Vec<N> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// The words for no difference.
pub(crate) const AS_MUCH: &str = "as much";

/// Returns the words for the difference of ours from theirs.
pub(crate) fn less(theirs: f64, ours: f64) -> String {
    let percent = (1.0 - ours / theirs) * 100.0;
    let word = if percent < 0.0 { "more" } else { "less" };
    match percent.abs() {
        percent if percent < 0.05 => AS_MUCH.to_owned(),
        percent if percent < 9.95 => format!("{percent:.1} % {word}"),
        percent => format!("{percent:.0} % {word}"),
    }
}

/// One unit for all sizes of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) name: &'static str,
    bytes: u64,
    decimals: usize,
}

const UNITS: [Unit; 4] = [
    Unit::new("GiB", 1 << 30, 2),
    Unit::new("MiB", 1 << 20, 1),
    Unit::new("KiB", 1 << 10, 1),
    Unit::new("bytes", 1, 0),
];

impl Unit {
    const fn new(name: &'static str, bytes: u64, decimals: usize) -> Self {
        Self {
            name,
            bytes,
            decimals,
        }
    }

    /// Returns the largest unit that is at most the smallest of these sizes. Zero has any unit.
    pub(crate) fn of(sizes: impl Iterator<Item = u64>) -> Self {
        let smallest = sizes.filter(|bytes| *bytes > 0).min().unwrap_or(0);
        let fits = UNITS.into_iter().find(|unit| unit.bytes <= smallest);
        fits.unwrap_or(UNITS[UNITS.len() - 1])
    }

    /// Formats bytes in this unit, without its name.
    pub(crate) fn show(self, bytes: u64) -> String {
        thousands(&format!(
            "{:.*}",
            self.decimals,
            bytes as f64 / self.bytes as f64
        ))
    }
}

/// Puts commas between groups of three digits in front of the decimal point.
pub(crate) fn thousands(number: &str) -> String {
    let whole = number.find('.').unwrap_or(number.len());
    let mut grouped = String::new();
    for (at, digit) in number.char_indices() {
        if at > 0 && at < whole && (whole - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_suits_the_smallest_size_and_numbers_have_commas() {
        let unit = |sizes: &[u64]| Unit::of(sizes.iter().copied());
        assert_eq!(unit(&[1 << 30, 1 << 40]).show(5 << 40), "5,120.00");
        assert_eq!(unit(&[(1 << 30) - 1, 1 << 40, 0]).name, "MiB");
        assert_eq!((unit(&[1023]).name, unit(&[]).name), ("bytes", "bytes"));
        let texts = ["1", "123", "1234", "123456.7", "1234567.89"].map(thousands);
        assert_eq!(texts, ["1", "123", "1,234", "123,456.7", "1,234,567.89"]);
    }
}
