//! [`StepSettings`]: how the steps of the process are planned.

use larder_core::lifetime::StepConfig;

use crate::process::STEP_LEAST_BYTES;
use crate::threads::PROCESS;

/// How [`step`](crate::step)s are served. Set before the first one, by
/// [`apply`](Self::apply).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepSettings {
    /// Whether steps have any effect.
    pub enabled: bool,
    /// Only larger blocks are part of a step; 32 KiB, and never less.
    pub threshold_bytes: usize,
    /// Plans that need more are not used, and what does not fit comes from elsewhere.
    pub cap_bytes: u64,
    /// Addresses reserved for the steps of one thread, 64 GiB on 64-bit systems. They cost nothing
    /// until they are used; where the system refuses, fewer are taken.
    pub range_bytes: usize,
}

impl StepSettings {
    /// Enabled, from 32 KiB on, without a cap.
    pub const fn new() -> Self {
        Self {
            enabled: true,
            threshold_bytes: STEP_LEAST_BYTES,
            cap_bytes: u64::MAX,
            range_bytes: if usize::BITS >= 64 {
                64 << 30
            } else {
                256 << 20
            },
        }
    }

    /// Makes them those of the process.
    ///
    /// # Errors
    /// If a step has begun already.
    pub fn apply(self) -> Result<(), StepsInUse> {
        if PROCESS.set_steps(self) {
            Ok(())
        } else {
            Err(StepsInUse)
        }
    }

    pub(crate) const fn config(&self) -> StepConfig {
        StepConfig {
            threshold_bytes: self.threshold_bytes as u64 + 1,
            cap_bytes: self.cap_bytes,
            keep_out_outliving: true,
            ..StepConfig::new()
        }
    }
}

impl Default for StepSettings {
    fn default() -> Self {
        Self::new()
    }
}

/// Settings came too late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepsInUse;

impl std::fmt::Display for StepsInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a step has begun already: apply settings before the first one")
    }
}

impl std::error::Error for StepsInUse {}
