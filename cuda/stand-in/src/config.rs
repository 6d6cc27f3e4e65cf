//! Settings from the environment, read once when the driver is first used.

use std::env;

use crate::byte_count::ByteCount;
use crate::capture::CaptureRules;

/// Initial settings, which the control interface can change later.
#[derive(Clone, Debug)]
pub(crate) struct StandInConfig {
    /// `LARDER_STAND_IN_DEVICES`: the number of devices.
    pub(crate) devices: usize,
    /// `LARDER_STAND_IN_BYTES`: bytes of memory of each device.
    pub(crate) bytes: u64,
    /// `LARDER_STAND_IN_SEED`: the seed of the deferred schedule; without it, the schedule is
    /// eager.
    pub(crate) seed: Option<u64>,
    /// `LARDER_STAND_IN_SHARED`: the file that counts memory for several processes.
    pub(crate) shared: Option<String>,
    /// `LARDER_STAND_IN_VERSION`: the version that `cuDriverGetVersion` reports.
    pub(crate) version: u32,
    /// `LARDER_STAND_IN_PINNED_BYTES`: maximum bytes of pinned host memory; by default all of the
    /// host's memory.
    pub(crate) pinned_bytes: u64,
    /// `LARDER_STAND_IN_MAPPING_WAITS`: not 0 if unmapping and setting access wait for queued work.
    pub(crate) mapping_waits: bool,
    /// `LARDER_STAND_IN_CAPTURES`: which calls are unsafe in captures.
    pub(crate) capture_rules: CaptureRules,
    /// `LARDER_STAND_IN_VIRTUAL_MEMORY`: 0 if the devices have no virtual memory.
    pub(crate) virtual_memory: bool,
    /// `LARDER_STAND_IN_STALE_ALIASES`: not 0 if a further mapping of a handle shows separate
    /// memory, like a cache that is indexed by virtual address.
    pub(crate) stale_aliases: bool,
    /// `LARDER_STAND_IN_LATE_MEMORY`: not 0 if freed memory becomes available only at the next
    /// request.
    pub(crate) late_memory: bool,
    /// `LARDER_STAND_IN_ADDRESS_BYTES`: maximum bytes of addresses reserved at a time; no limit by
    /// default.
    pub(crate) address_bytes: u64,
}

impl StandInConfig {
    /// Reads the environment. A value that does not parse is reported on standard error, and the
    /// default is used.
    pub(crate) fn from_env() -> Self {
        Self {
            devices: number("LARDER_STAND_IN_DEVICES").unwrap_or(2) as usize,
            bytes: size("LARDER_STAND_IN_BYTES").unwrap_or(16 << 30),
            seed: number("LARDER_STAND_IN_SEED"),
            shared: env::var("LARDER_STAND_IN_SHARED")
                .ok()
                .filter(|path| !path.is_empty()),
            version: number("LARDER_STAND_IN_VERSION").unwrap_or(12_080) as u32,
            pinned_bytes: size("LARDER_STAND_IN_PINNED_BYTES").unwrap_or_else(host_bytes),
            mapping_waits: number("LARDER_STAND_IN_MAPPING_WAITS").is_some_and(|on| on != 0),
            capture_rules: rules("LARDER_STAND_IN_CAPTURES").unwrap_or_default(),
            virtual_memory: number("LARDER_STAND_IN_VIRTUAL_MEMORY").is_none_or(|on| on != 0),
            stale_aliases: number("LARDER_STAND_IN_STALE_ALIASES").is_some_and(|on| on != 0),
            late_memory: number("LARDER_STAND_IN_LATE_MEMORY").is_some_and(|on| on != 0),
            address_bytes: size("LARDER_STAND_IN_ADDRESS_BYTES").unwrap_or(u64::MAX),
        }
    }
}

/// Returns the memory of this machine, or `u64::MAX` where the system does not report it.
fn host_bytes() -> u64 {
    // SAFETY: `sysconf` takes any number and only returns a value.
    let of = |name| u64::try_from(unsafe { libc::sysconf(name) });
    match (of(libc::_SC_PHYS_PAGES), of(libc::_SC_PAGESIZE)) {
        (Ok(pages), Ok(page)) => pages.saturating_mul(page),
        _ => u64::MAX,
    }
}

fn number(name: &str) -> Option<u64> {
    variable(name, "number", |text| text.trim().parse().ok())
}

fn size(name: &str) -> Option<u64> {
    variable(name, "size", |text| Some(ByteCount::parse(text)?.0))
}

fn rules(name: &str) -> Option<CaptureRules> {
    let what = "rule: documented, mapping-spoils, strict, merciless or lenient";
    variable(name, what, |text| match text {
        "documented" => Some(CaptureRules::Documented),
        "mapping-spoils" => Some(CaptureRules::MappingSpoils),
        "strict" => Some(CaptureRules::Strict),
        "merciless" => Some(CaptureRules::Merciless),
        "lenient" => Some(CaptureRules::Lenient),
        _ => None,
    })
}

fn variable<T>(name: &str, what: &str, parse: fn(&str) -> Option<T>) -> Option<T> {
    let text = env::var(name).ok()?;
    let value = parse(&text);
    if value.is_none() {
        eprintln!("stand-in driver: {name} is {text:?}, not a {what}: ignored");
    }
    value
}
