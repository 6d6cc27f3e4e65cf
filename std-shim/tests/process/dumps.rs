//! The contents of core dumps, by the system's list of mappings.

use crate::runner::Case;

#[cfg(not(target_os = "linux"))]
pub(crate) const CASES: &[Case] = &[];

#[cfg(target_os = "linux")]
pub(crate) use linux::CASES;

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;

    use super::Case;
    use crate::HEAP;
    use crate::common::MIB;

    pub(crate) const CASES: &[Case] = &[Case::new(
        "dumps contain what is used, and not what is only reserved",
        dumps_contain_what_is_used,
    )];

    /// Start and end of all mappings that dumps contain.
    fn dumped() -> Vec<(usize, usize)> {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut dumped, mut range) = (Vec::new(), None);
        for line in maps.lines() {
            if let Some(flags) = line.strip_prefix("VmFlags:") {
                let is_left_out = flags.split_whitespace().any(|flag| flag == "dd");
                dumped.extend(range.take().filter(|_| !is_left_out));
                continue;
            }
            let place = line
                .split_once(' ')
                .and_then(|(place, _)| place.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((start, end)) = place
                && let (Some(start), Some(end)) = (number(start), number(end))
            {
                range = Some((start, end));
            }
        }
        dumped
    }

    fn assert_dumped(place: usize, is_dumped: bool) {
        let dumped = dumped();
        let contains = dumped
            .iter()
            .any(|(start, end)| (*start..*end).contains(&place));
        assert_eq!(contains, is_dumped);
        let bytes: usize = dumped.iter().map(|(start, end)| end - start).sum();
        // The program's own, of which the C library's heap may reserve some.
        assert!(bytes < 1024 * MIB, "{bytes} bytes");
    }

    fn dumps_contain_what_is_used() {
        let blocks: Vec<_> = (0..40).map(|_| vec![1_u8; MIB]).collect();
        for block in &blocks {
            assert_dumped(block.as_ptr().addr() + MIB / 2, true);
        }
        let last = blocks
            .iter()
            .map(|block| block.as_ptr().addr())
            .max()
            .unwrap();
        drop(blocks);
        // The end of the range is only reserved again.
        HEAP.trim();
        assert_dumped(last + MIB / 2, false);
    }
}
