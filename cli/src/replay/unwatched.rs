//! Replays for tests: without limits or progress, unless asked for.

use std::num::NonZeroU32;

use larder_trace::Trace;

use super::{
    ContenderSpec, Options, Outcome, Repeat, ReplayError, ReplayScript, Violation, replay_watched,
};

impl Options {
    /// Returns the options for one pass on a device of `device_bytes`, or without a limit.
    pub(crate) const fn new(device_bytes: Option<u64>) -> Self {
        Self {
            device_bytes,
            passes: NonZeroU32::MIN,
            repeat: Repeat::LastStep,
            smallest_device: false,
            plans: None,
            history: false,
        }
    }
}

/// Replays `trace` without reporting progress.
pub(crate) fn replay(
    spec: &ContenderSpec,
    trace: &Trace,
    options: &Options,
) -> Result<Outcome, Violation> {
    let mut script = ReplayScript::of(trace, options.passes, options.repeat);
    replay_watched(spec, &mut script, options, &|_| {}).map_err(|error| match error {
        ReplayError::Violation(violation) => violation,
        other => panic!("{other}"),
    })
}
