//! Environment variables with which a user sets options of the program's heap. They are read
//! once, before anything is allocated, so nothing here allocates.

use larder_core::ByteCount;

use super::{Config, HugePages, OnMisuse, VARIABLES};
use crate::os::environment::{entries, variable};
use crate::os::say;

/// An environment variable.
pub(super) struct Variable {
    pub(super) name: &'static str,
    /// Description of the allowed values.
    pub(super) values: &'static str,
    /// Sets the option of the variable. Returns `None` if the value is not allowed.
    pub(super) set: fn(&mut Config, &[u8]) -> Option<()>,
}

/// The variable that is read first, because the others change the configuration that it chooses.
const CONFIGURATION: Variable = Variable {
    name: "LARDER_MODE",
    values: "balanced, speed, memory, hardened or checking",
    set: |config, value| {
        *config = config.tuned_as(configuration(value)?);
        Some(())
    },
};

/// Whether a configuration makes nothing of a variable that is set.
type HasNoEffect = fn(&Config) -> bool;

/// The variables that need another one, and which.
const WITHOUT_EFFECT: [(&str, HasNoEffect, &str); 3] = [
    (
        "LARDER_ON_MISUSE",
        |config| {
            !config.hardened && config.guard_one_in == 0 && config.on_misuse != OnMisuse::Abort
        },
        "LARDER_MODE=hardened or checking, or LARDER_GUARD",
    ),
    (
        "LARDER_LEAKS",
        |config| !config.checking && config.leaks,
        "LARDER_MODE=checking",
    ),
    (
        "LARDER_GUARD_FAULTS",
        |config| config.guard_one_in == 0 && config.explains_faults,
        "LARDER_GUARD",
    ),
];

fn variables() -> impl Iterator<Item = &'static Variable> {
    [&CONFIGURATION].into_iter().chain(VARIABLES)
}

/// The prefixes of the variables of Larder's other parts.
const OTHERS: [&str; 3] = ["LARDER_CUDA_", "LARDER_RECORD", "LARDER_STAND_IN_"];

/// Changes a configuration as the environment requests. Returns `None` if the process cannot read
/// its environment yet.
pub(super) fn read(mut config: Config) -> Option<Config> {
    for Variable { name, values, set } in variables() {
        let Some(value) = variable(name)? else {
            continue;
        };
        if set(&mut config, value).is_none() {
            for part in ["larder: ", name, " is ignored: it must be ", values, "\n"] {
                say(part.as_bytes());
            }
        }
    }
    for (name, has_no_effect, needed) in WITHOUT_EFFECT {
        if has_no_effect(&config) && variable(name)?.is_some() {
            for part in ["larder: ", name, " has no effect without ", needed, "\n"] {
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

/// Returns the name of a variable that has Larder's prefix but that no part of Larder reads; it
/// may be misspelt.
fn unknown(entry: &'static [u8]) -> Option<&'static str> {
    let end = entry.iter().position(|&byte| byte == b'=')?;
    let name = str::from_utf8(&entry[..end]).ok()?;
    let is_known = variables().any(|known| known.name == name)
        || OTHERS.iter().any(|other| name.starts_with(other));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (name.starts_with("LARDER_") && !is_known && name.bytes().all(is_name)).then_some(name)
}

fn configuration(value: &[u8]) -> Option<Config> {
    match value {
        b"balanced" => Some(Config::BALANCED),
        b"speed" => Some(Config::SPEED),
        b"memory" => Some(Config::MEMORY),
        b"hardened" => Some(Config::HARDENED),
        b"checking" => Some(Config::CHECKING),
        _ => None,
    }
}

pub(super) fn millis(value: &[u8]) -> Option<u64> {
    match value {
        b"never" => Some(u64::MAX),
        _ => number(value),
    }
}

pub(super) fn huge_pages(value: &[u8]) -> Option<HugePages> {
    let bytes = match value {
        b"never" => return Some(HugePages::Never),
        [.., b'0'..=b'9'] => number(value)?.checked_mul(1 << 20)?,
        _ => ByteCount::parse(str::from_utf8(value).ok()?)?.0,
    };
    Some(HugePages::Above(bytes))
}

pub(super) fn on_misuse(value: &[u8]) -> Option<OnMisuse> {
    match value {
        b"abort" => Some(OnMisuse::Abort),
        b"report" => Some(OnMisuse::Report),
        _ => None,
    }
}

pub(super) fn stack_frames(value: &[u8]) -> Option<u32> {
    let frames = u32::try_from(number(value)?).ok();
    frames.filter(|&frames| frames <= Config::MAX_STACK_FRAMES)
}

pub(super) fn one_in(value: &[u8]) -> Option<u32> {
    match value {
        b"never" => Some(0),
        _ => u32::try_from(number(value)?)
            .ok()
            .filter(|&one_in| one_in > 0),
    }
}

pub(super) fn yes_or_no(value: &[u8]) -> Option<bool> {
    match value {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}

/// Parses a number in decimal digits.
fn number(value: &[u8]) -> Option<u64> {
    str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, config: &mut Config, value: &[u8]) -> Option<()> {
        let mut all = variables();
        let variable = all.find(|variable| variable.name.strip_prefix("LARDER_") == Some(name));
        (variable?.set)(config, value)
    }

    #[test]
    fn each_variable_changes_its_part_and_a_bad_value_nothing() {
        let mut config = Config::BALANCED;
        config.background = false;
        assert_eq!(set("MODE", &mut config, b"memory"), Some(()));
        assert!(
            !config.background,
            "the configuration says nothing of threads"
        );
        assert_eq!(
            (config.purge_ms, config.bin_bytes),
            (Config::MEMORY.purge_ms, Config::MEMORY.bin_bytes)
        );
        assert_eq!(set("PURGE_AFTER", &mut config, b"250"), Some(()));
        assert_eq!(set("BACKGROUND_PURGE", &mut config, b"yes"), Some(()));
        assert_eq!(set("HUGE_PAGES", &mut config, b"1.5GiB"), Some(()));
        assert_eq!(config.huge_pages, HugePages::Above(3 << 29));
        assert_eq!(set("HUGE_PAGES", &mut config, b"3"), Some(()));
        assert_eq!(set("ON_MISUSE", &mut config, b"report"), Some(()));
        assert_eq!(set("LEAKS", &mut config, b"yes"), Some(()));
        assert_eq!(set("STATS", &mut config, b"yes"), Some(()));
        let mut other = config;
        assert_eq!(set("MODE", &mut other, b"checking"), Some(()));
        assert_eq!((other.on_misuse, other.leaks), (OnMisuse::Report, true));
        assert!(other.stats, "the configuration says nothing of the end");
        assert_eq!(set("STACK_FRAMES", &mut config, b"32"), Some(()));
        assert_eq!(set("STACK_FRAMES", &mut config, b"33"), None);
        assert_eq!(config.stack_frames, 32);
        assert_eq!(set("GUARD", &mut config, b"0"), None);
        assert_eq!(set("GUARD", &mut config, b"500"), Some(()));
        assert_eq!(set("GUARD_FAULTS", &mut config, b"yes"), Some(()));
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
            for Variable { name, set, .. } in variables() {
                assert_eq!(set(&mut config, bad), None, "{name} {bad:?}");
            }
        }
        assert_eq!(
            set("HUGE_PAGES", &mut config, b"18446744073709551615"),
            None,
            "too many MiB"
        );
        assert_eq!(config, changed);
        assert_eq!(set("PURGE_AFTER", &mut config, b"never"), Some(()));
        assert_eq!(set("HUGE_PAGES", &mut config, b"never"), Some(()));
        assert_eq!(
            (config.purge_ms, config.huge_pages),
            (u64::MAX, HugePages::Never)
        );
    }
}
