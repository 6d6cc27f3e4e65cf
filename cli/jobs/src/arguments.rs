//! Parses and formats numbers on the command line.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use larder_control::PerfControl;
use larder_core::ByteCount;
use larder_cuda::driver::Choice;

pub(crate) use crate::units::parse_bytes;

/// Parses the bytes that a job may hold: a byte count, or 0.
pub(crate) fn parse_limit(text: &str) -> Result<u64, String> {
    match text.trim() {
        "0" => Ok(0),
        text => parse_bytes(text),
    }
}

/// Parses seconds, at least a hundredth.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let interval = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if interval < Duration::from_millis(10) {
        return Err("give at least 0.01 seconds".to_owned());
    }
    Ok(interval)
}

/// Parses a share of the time, in percent.
pub(crate) fn parse_perf(text: &str) -> Result<PerfControl, String> {
    let percent: u64 = text
        .parse()
        .map_err(|_| format!("`{text}` is not a whole number from 0 to 100"))?;
    PerfControl::new(percent).map_err(|error| error.to_string())
}

/// Parses the name of a driver.
pub(crate) fn driver() -> impl TypedValueParser<Value = Choice> {
    let names = PossibleValuesParser::new(["stand-in", "real", "auto"]);
    names.map(|name| match name.as_str() {
        "stand-in" => Choice::StandIn,
        "real" => Choice::Real,
        _ => Choice::Auto,
    })
}

/// Formats bytes; a limit out of reach is `none`.
pub(crate) fn show_bytes(bytes: u64) -> String {
    if bytes >= u64::MAX / 2 {
        return "none".to_owned();
    }
    ByteCount(bytes).to_string()
}

/// Formats a time, in a suitable unit.
pub(crate) fn show_micros(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        1_000_000..600_000_000 => format!("{:.1} s", micros as f64 / 1e6),
        _ => format!("{} min", micros / 60_000_000),
    }
}
