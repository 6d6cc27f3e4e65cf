//! What the environment says, read once when the driver is first used.

use std::env;

/// Settings at the start; the control interface changes them later.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// `LARDER_STAND_IN_DEVICES`.
    pub(crate) devices: usize,
    /// `LARDER_STAND_IN_BYTES`, of each device.
    pub(crate) bytes: u64,
    /// `LARDER_STAND_IN_SEED`: the deferred schedule with this seed.
    pub(crate) seed: Option<u64>,
    /// `LARDER_STAND_IN_SHARED`: the file that counts memory for several processes.
    pub(crate) shared: Option<String>,
    /// `LARDER_STAND_IN_VERSION`, what `cuDriverGetVersion` answers.
    pub(crate) version: u32,
    /// `LARDER_STAND_IN_MAPPING_WAITS`: not 0 if unmapping and setting access wait for queued work.
    pub(crate) mapping_waits: bool,
}

impl Config {
    /// A value that is no number is said so on standard error, and the default taken.
    pub(crate) fn from_env() -> Self {
        Self {
            devices: number("LARDER_STAND_IN_DEVICES").unwrap_or(2) as usize,
            bytes: number("LARDER_STAND_IN_BYTES").unwrap_or(16 << 30),
            seed: number("LARDER_STAND_IN_SEED"),
            shared: env::var("LARDER_STAND_IN_SHARED")
                .ok()
                .filter(|path| !path.is_empty()),
            version: number("LARDER_STAND_IN_VERSION").unwrap_or(12_080) as u32,
            mapping_waits: number("LARDER_STAND_IN_MAPPING_WAITS").is_some_and(|on| on != 0),
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.trim().parse();
    if number.is_err() {
        eprintln!("stand-in driver: {name} is {text:?}, which is no number: ignored");
    }
    number.ok()
}
