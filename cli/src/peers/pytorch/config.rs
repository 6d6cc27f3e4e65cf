//! The settings of PyTorch's caching allocator, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`, and its
//! rounding.
//!
//! Options that change neither the amount of memory held nor the time at which it is held are
//! parsed, but have no effect here.

/// Bytes of which every size is a multiple, unless divisions of powers of two are set.
const GRANULE_BYTES: u64 = 512;

/// Default bound on the bytes by which an unsplit chunk may exceed a request that is not below the
/// split limit.
const SLACK_BYTES: u64 = 20 << 20;

/// Number of powers of two that have their own divisions, from 1 MiB to 32 GiB. The divisions of
/// the last one also apply to all larger powers.
const POWERS: usize = 16;

/// Binary logarithm of the first of these powers.
const FIRST_POWER: u32 = 20;

/// Options about pinned memory, locks, captures or errors.
const WITHOUT_EFFECT: [&str; 8] = [
    "graph_capture_record_stream_reuse",
    "pinned_max_register_threads",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom",
];

/// The variables that PyTorch reads, the older one first.
const VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// The behaviour of the allocator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PytorchConfig {
    /// Whether memory is mapped page by page into one long segment for each pool and stream.
    pub(crate) expandable_segments: bool,
    /// Minimum size in bytes of chunks that are not split; with `u64::MAX`, all chunks are split.
    pub(crate) max_split_bytes: u64,
    /// Bound on the bytes by which an unsplit chunk may exceed the request.
    pub(crate) max_slack_bytes: u64,
    /// Fraction of the device's memory beyond which idle segments are released; with 0, they are
    /// never released.
    pub(crate) collect_above: f64,
    /// Number of parts into which the range between two powers of two is divided for rounding;
    /// below 2, sizes are rounded to 512 bytes.
    divisions: [u64; POWERS],
}

impl PytorchConfig {
    pub(crate) const DEFAULT: Self = Self {
        expandable_segments: false,
        max_split_bytes: u64::MAX,
        max_slack_bytes: SLACK_BYTES,
        collect_above: 0.0,
        divisions: [0; POWERS],
    };

    pub(crate) const EXPANDABLE: Self = Self {
        expandable_segments: true,
        ..Self::DEFAULT
    };

    /// Returns the rounded size of a request of `bytes`; `None` if it exceeds 64 bits.
    pub(super) fn rounded(&self, bytes: u64) -> Option<u64> {
        let power = bytes.max(1).ilog2();
        let index = power.saturating_sub(FIRST_POWER) as usize;
        let divisions = self.divisions[index.min(POWERS - 1)];
        if divisions > 1 && bytes > GRANULE_BYTES * divisions {
            return bytes.checked_next_multiple_of((1 << power) / divisions);
        }
        bytes.max(1).checked_next_multiple_of(GRANULE_BYTES)
    }

    /// Parses `option:value,option:value`, with or without the name of the variable in front. An
    /// error says what is wrong with the text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut config = Self::DEFAULT;
        let text = match text.split_once('=') {
            Some((variable, value)) if VARIABLES.contains(&variable.trim()) => value,
            _ => text,
        };
        for part in parts(text.trim_matches(['"', '\''])) {
            let pair = part.split_once(':');
            let (option, value) = pair.ok_or_else(|| format!("`{part}` is not option:value"))?;
            config.set(option.trim(), value.trim())?;
        }
        Ok(config)
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        let wrong = |wanted: &str| format!("`{option}:{value}`: {wanted}");
        match option {
            "expandable_segments" => {
                self.expandable_segments = match value {
                    "True" => true,
                    "False" => false,
                    _ => return Err(wrong("write True or False")),
                };
            }
            "max_split_size_mb" => {
                let bytes = mebibytes(value).filter(|&bytes| bytes > SLACK_BYTES);
                self.max_split_bytes =
                    bytes.ok_or_else(|| wrong("write whole MiB, more than 20"))?;
            }
            "max_non_split_rounding_mb" => {
                let bytes = mebibytes(value).filter(|&bytes| bytes > SLACK_BYTES);
                self.max_slack_bytes =
                    bytes.ok_or_else(|| wrong("write whole MiB, more than 20"))?;
            }
            "garbage_collection_threshold" => {
                let part = value.parse().ok();
                let part = part.filter(|part| (0.0..1.0).contains(part) && *part > 0.0);
                self.collect_above = part.ok_or_else(|| wrong("write a number between 0 and 1"))?;
            }
            "roundup_power2_divisions" => {
                self.divisions = divisions(value).ok_or_else(|| {
                    wrong("write powers of two, such as 4 or [256:1,512:2,1024:4,>:8]")
                })?;
            }
            "backend" if value == "native" => {}
            "backend" => return Err(wrong("only the native allocator is modelled")),
            _ if WITHOUT_EFFECT.contains(&option) => {}
            _ => return Err(format!("`{option}` is not an option that is known here")),
        }
        Ok(())
    }
}

/// Splits the text at its commas, except those inside brackets.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let cut = move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    };
    text.split(cut).filter(|part| !part.trim().is_empty())
}

/// Parses a whole number of MiB, and returns it in bytes.
fn mebibytes(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(1 << 20)
}

/// Parses one number for all sizes, or a list. An entry of the list is a power of two in MiB and
/// the number of divisions from there to the next power; `>` stands for all powers above the last
/// entry. Sizes below the first entry have its divisions, and powers without an entry have none.
fn divisions(text: &str) -> Option<[u64; POWERS]> {
    let number = |text: &str| text.trim().parse().ok();
    let valid = |divisions: u64| divisions == 0 || divisions.is_power_of_two();
    let Some(list) = text.strip_prefix('[') else {
        return number(text)
            .filter(|&all| valid(all))
            .map(|all| [all; POWERS]);
    };
    let mut divisions = [0; POWERS];
    let mut next = 0;
    for (place, part) in list.strip_suffix(']')?.split(',').enumerate() {
        let (from, value) = part.split_once(':')?;
        let value = number(value).filter(|&value| valid(value))?;
        if from.trim() == ">" {
            divisions[next..].fill(value);
            continue;
        }
        let from = number(from).filter(|from| from.is_power_of_two())?;
        let index = (from.ilog2() as usize).min(POWERS - 1);
        let first = if place == 0 { 0 } else { index };
        divisions[first..=index].fill(value);
        next = index + 1;
    }
    Some(divisions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(config: &str, bytes: u64) -> u64 {
        let config = PytorchConfig::parse(config).unwrap();
        config.rounded(bytes).unwrap()
    }

    #[test]
    fn sizes_round_up_to_512_bytes() {
        for (bytes, expected) in [(1, 512), (511, 512), (512, 512), (513, 1024), (1025, 1536)] {
            assert_eq!(rounded("", bytes), expected, "{bytes} bytes");
        }
        assert_eq!(PytorchConfig::DEFAULT.rounded(u64::MAX), None);
    }

    #[test]
    fn divisions_round_up_to_parts_of_a_power_of_two() {
        // The example in PyTorch's documentation: 1200 lies between 1024 and 2048.
        let four = "roundup_power2_divisions:4";
        for (bytes, expected) in [
            (1200, 1536),
            (2048, 2048),
            (2049, 2560),
            (5000, 5120),
            (7169, 8192),
        ] {
            assert_eq!(rounded(four, bytes), expected, "{bytes} bytes");
        }
        // If divisions would be 512 bytes or smaller, sizes are rounded to 512 bytes.
        assert_eq!(
            rounded("roundup_power2_divisions:8", 4096 - 511),
            3584 + 512
        );
        assert_eq!(rounded("roundup_power2_divisions:1", 1200), 1536);
    }

    #[test]
    fn a_list_gives_each_power_of_two_its_own_divisions() {
        let list = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]";
        let mib = |count: u64| count << 20;
        assert_eq!(rounded(list, mib(300) + 1), mib(300) + 512);
        assert_eq!(rounded(list, mib(5) + 1), mib(5) + 512);
        assert_eq!(rounded(list, mib(600)), mib(768));
        assert_eq!(rounded(list, mib(1100)), mib(1280));
        assert_eq!(rounded(list, mib(2049)), mib(2304));
        assert_eq!(rounded(list, mib(1 << 17) + 1), mib((1 << 17) + (1 << 14)));
        // Sizes below the first entry have its divisions, and sizes above all entries have those of
        // the last.
        assert_eq!(
            rounded("roundup_power2_divisions:[4:2]", mib(1) + 1),
            mib(1) + (512 << 10)
        );
        let ends = "roundup_power2_divisions:[16384:2,>:4]";
        assert_eq!(rounded(ends, mib(33 << 10)), mib(40 << 10));
        // Powers between two entries that have no entry have no divisions.
        let gap = "roundup_power2_divisions:[1:4,4:4]";
        assert_eq!(rounded(gap, mib(2) + 1), mib(2) + 512);
        assert_eq!(rounded(gap, mib(1) + 1), mib(1) + (256 << 10));
    }

    #[test]
    fn a_pasted_configuration_is_read() {
        let text = "backend:native, expandable_segments:True,max_split_size_mb:128,\
                    garbage_collection_threshold:0.8,pinned_use_background_threads:True";
        let config = PytorchConfig::parse(text).unwrap();
        let expected = PytorchConfig {
            expandable_segments: true,
            max_split_bytes: 128 << 20,
            collect_above: 0.8,
            ..PytorchConfig::DEFAULT
        };
        assert_eq!(config, expected);
        assert_eq!(PytorchConfig::parse(""), Ok(PytorchConfig::DEFAULT));
        for variable in VARIABLES {
            let line = format!("{variable}='{text}'");
            assert_eq!(PytorchConfig::parse(&line), Ok(expected));
        }
        assert!(PytorchConfig::parse("OTHER=expandable_segments:True").is_err());
    }

    #[test]
    fn what_pytorch_refuses_is_refused_with_the_option_named() {
        for (text, words) in [
            ("max_split_size_mb:20", "more than 20"),
            ("max_split_size_mb:1.5", "whole MiB"),
            ("max_non_split_rounding_mb:20", "more than 20"),
            ("garbage_collection_threshold:1", "between 0 and 1"),
            ("garbage_collection_threshold:0", "between 0 and 1"),
            ("garbage_collection_threshold:NaN", "between 0 and 1"),
            ("roundup_power2_divisions:3", "powers of two"),
            ("roundup_power2_divisions:[3:4]", "powers of two"),
            ("roundup_power2_divisions:[4:4", "powers of two"),
            ("expandable_segments:true", "True or False"),
            ("backend:cudaMallocAsync", "native"),
            ("expandable_segments", "option:value"),
            ("max_splitsize_mb:128", "not an option"),
        ] {
            let error = PytorchConfig::parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
            let option = text.split(':').next().unwrap();
            assert!(error.contains(option), "{text}: {error}");
        }
    }
}
