//! What whoever starts the program says about its heap, in variables of the environment. Read once, before
//! anything is allocated, so nothing here allocates.

use larder_core::ByteCount;

use super::{Config, HugePages, OnMisuse};
use crate::os::environment::{entries, variable};
use crate::os::say;

/// A value that a variable may have, and what it does.
type Choose = fn(&mut Config, &[u8]) -> Option<()>;

/// The variables, what each does, and what it may say.
const VARIABLES: [(&str, Choose, &str); 10] = [
    (
        "LARDER_MODE",
        mode,
        "balanced, speed, memory, hardened or checking",
    ),
    ("LARDER_PURGE_AFTER", purge_after, "milliseconds, or never"),
    ("LARDER_BACKGROUND_PURGE", background, "yes or no"),
    (
        "LARDER_HUGE_PAGES",
        huge_pages,
        "a size such as 64MiB, or never",
    ),
    ("LARDER_ON_MISUSE", on_misuse, "abort or report"),
    ("LARDER_LEAKS", leaks, "yes or no"),
    ("LARDER_STATS", stats, "yes or no"),
    ("LARDER_STACK_FRAMES", stack_frames, "a number up to 32"),
    ("LARDER_GUARD", guard, "of how many blocks one, or never"),
    ("LARDER_GUARD_FAULTS", guard_faults, "yes or no"),
];

/// What the variables of Larder's other parts begin with.
const OTHERS: [&str; 3] = ["LARDER_CUDA_", "LARDER_RECORD", "LARDER_STAND_IN_"];

/// The configuration as the environment changes it. `None` if the process cannot read its environment yet.
pub(super) fn read(mut config: Config) -> Option<Config> {
    // The mode comes first: it is what the others change.
    for (name, choose, values) in VARIABLES {
        let Some(value) = variable(name)? else {
            continue;
        };
        if choose(&mut config, value).is_none() {
            for part in ["larder: ", name, " is ignored: it may say ", values, "\n"] {
                say(part.as_bytes());
            }
        }
    }
    for name in entries()?.filter_map(unknown) {
        for part in ["larder: ", name, " is ignored: there is no such variable\n"] {
            say(part.as_bytes());
        }
    }
    Some(config)
}

/// The name of a variable that nobody of Larder's reads, though it begins like theirs: misspelt, perhaps.
fn unknown(entry: &'static [u8]) -> Option<&'static str> {
    let end = entry.iter().position(|&byte| byte == b'=')?;
    let name = str::from_utf8(&entry[..end]).ok()?;
    let is_known = VARIABLES.iter().any(|(known, ..)| *known == name)
        || OTHERS.iter().any(|other| name.starts_with(other));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (name.starts_with("LARDER_") && !is_known && name.bytes().all(is_name)).then_some(name)
}

fn mode(config: &mut Config, value: &[u8]) -> Option<()> {
    let mode = match value {
        b"balanced" => Config::BALANCED,
        b"speed" => Config::SPEED,
        b"memory" => Config::MEMORY,
        b"hardened" => Config::HARDENED,
        b"checking" => Config::CHECKING,
        _ => return None,
    };
    *config = Config {
        background: config.background,
        on_misuse: config.on_misuse,
        leaks: config.leaks,
        stats: config.stats,
        stack_frames: config.stack_frames,
        guard_one_in: config.guard_one_in,
        explains_faults: config.explains_faults,
        ..mode
    };
    Some(())
}

fn purge_after(config: &mut Config, value: &[u8]) -> Option<()> {
    config.purge_ms = match value {
        b"never" => u64::MAX,
        _ => number(value)?,
    };
    Some(())
}

fn background(config: &mut Config, value: &[u8]) -> Option<()> {
    config.background = yes_or_no(value)?;
    Some(())
}

fn huge_pages(config: &mut Config, value: &[u8]) -> Option<()> {
    config.huge_pages = match value {
        b"never" => HugePages::Never,
        _ if value.last()?.is_ascii_digit() => {
            HugePages::Above(number(value)?.checked_mul(1 << 20)?)
        }
        _ => HugePages::Above(ByteCount::parse(str::from_utf8(value).ok()?)?.0),
    };
    Some(())
}

fn on_misuse(config: &mut Config, value: &[u8]) -> Option<()> {
    config.on_misuse = match value {
        b"abort" => OnMisuse::Abort,
        b"report" => OnMisuse::Report,
        _ => return None,
    };
    Some(())
}

fn leaks(config: &mut Config, value: &[u8]) -> Option<()> {
    config.leaks = yes_or_no(value)?;
    Some(())
}

fn stats(config: &mut Config, value: &[u8]) -> Option<()> {
    config.stats = yes_or_no(value)?;
    Some(())
}

fn stack_frames(config: &mut Config, value: &[u8]) -> Option<()> {
    let frames = u32::try_from(number(value)?).ok()?;
    config.stack_frames = Some(frames).filter(|&frames| frames <= Config::MAX_STACK_FRAMES)?;
    Some(())
}

fn guard(config: &mut Config, value: &[u8]) -> Option<()> {
    config.guard_one_in = match value {
        b"never" => 0,
        _ => u32::try_from(number(value)?)
            .ok()
            .filter(|&one_in| one_in > 0)?,
    };
    Some(())
}

fn guard_faults(config: &mut Config, value: &[u8]) -> Option<()> {
    config.explains_faults = yes_or_no(value)?;
    Some(())
}

fn yes_or_no(value: &[u8]) -> Option<bool> {
    match value {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}

/// A number in decimal digits.
fn number(value: &[u8]) -> Option<u64> {
    str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variable_changes_its_part_and_a_bad_value_nothing() {
        let mut config = Config::BALANCED;
        config.background = false;
        assert_eq!(mode(&mut config, b"memory"), Some(()));
        assert!(!config.background, "the mode says nothing of threads");
        assert_eq!(
            (config.purge_ms, config.bin_bytes),
            (Config::MEMORY.purge_ms, Config::MEMORY.bin_bytes)
        );
        assert_eq!(purge_after(&mut config, b"250"), Some(()));
        assert_eq!(background(&mut config, b"yes"), Some(()));
        assert_eq!(huge_pages(&mut config, b"1.5GiB"), Some(()));
        assert_eq!(config.huge_pages, HugePages::Above(3 << 29));
        assert_eq!(huge_pages(&mut config, b"3"), Some(()));
        assert_eq!(on_misuse(&mut config, b"report"), Some(()));
        assert_eq!(leaks(&mut config, b"yes"), Some(()));
        assert_eq!(stats(&mut config, b"yes"), Some(()));
        let mut other = config;
        assert_eq!(mode(&mut other, b"checking"), Some(()));
        assert_eq!((other.on_misuse, other.leaks), (OnMisuse::Report, true));
        assert!(other.stats, "the mode says nothing of the end");
        assert_eq!(stack_frames(&mut config, b"32"), Some(()));
        assert_eq!(stack_frames(&mut config, b"33"), None);
        assert_eq!(config.stack_frames, 32);
        assert_eq!(guard(&mut config, b"0"), None);
        assert_eq!(guard(&mut config, b"500"), Some(()));
        assert_eq!(guard_faults(&mut config, b"yes"), Some(()));
        let changed = config;
        assert_eq!((config.guard_one_in, config.explains_faults), (500, true));
        assert_eq!((config.purge_ms, config.background), (250, true));
        assert_eq!(config.huge_pages, HugePages::Above(3 << 20));
        for bad in [
            &b""[..],
            b"-1",
            b"1s",
            b"Memory",
            b"99999999999999999999",
            b"\xff",
        ] {
            for (name, choose, _) in VARIABLES {
                assert_eq!(choose(&mut config, bad), None, "{name} {bad:?}");
            }
        }
        assert_eq!(
            huge_pages(&mut config, b"18446744073709551615"),
            None,
            "too many MiB"
        );
        assert_eq!(config, changed);
        assert_eq!(purge_after(&mut config, b"never"), Some(()));
        assert_eq!(huge_pages(&mut config, b"never"), Some(()));
        assert_eq!(
            (config.purge_ms, config.huge_pages),
            (u64::MAX, HugePages::Never)
        );
    }
}
