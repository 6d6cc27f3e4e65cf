//! [`StepSettings`]: the configuration of the process's steps.

#[cfg(feature = "std")]
use larder_core::prmalloc::{PlannerConfig, Window};
use larder_core::steps::StepConfig;

use super::STEP_LEAST_BYTES;
use crate::process::PROCESS;

/// Maximum work of the first layouts, and of the search for each: about 30 ms and 2 ms, inside an
/// allocation.
const PACKING_WORK: u64 = 500_000;
const SEARCH_WORK: u64 = 200_000;
/// Number of steps without gain after which steps are skipped.
const PATIENCE: u32 = 32;
/// A plan may be longer than the most that was live by this part of it. The heap without a plan
/// holds more than that, too.
const SPARE_DIVISOR: u32 = 8;

/// Settings of [`step`](crate::step)s. They are applied with [`apply`](Self::apply), before the
/// first step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepSettings {
    /// Whether steps have any effect.
    pub enabled: bool,
    /// Blocks above this size are part of a step. At least 128 KiB, which is the default: smaller
    /// blocks have size classes, which waste little.
    pub threshold_bytes: usize,
    /// Maximum number of bytes of a plan. Longer plans are not used.
    pub cap_bytes: u64,
    /// Number of the first step that has an effect, counted from 0: programs often set themselves
    /// up in their first steps.
    pub first_step: u64,
}

impl StepSettings {
    /// Returns the defaults: enabled, with a threshold of 128 KiB and without a cap.
    pub const fn new() -> Self {
        Self {
            enabled: true,
            threshold_bytes: STEP_LEAST_BYTES,
            cap_bytes: u64::MAX,
            first_step: 0,
        }
    }

    #[cfg(feature = "std")]
    /// Returns these settings with the changes that the environment requests. The variables have
    /// the names of DeepRec's PRMalloc, and are read only here. `ENABLE_MEMORY_OPTIMIZATION` (`0`,
    /// `1`, `false` or `true` in any case) sets `enabled`; `START_STATISTIC_STEP` sets
    /// `first_step`. `STABLE_STATISTIC_STEP`, `MAX_STATISTIC_STEP` and `STOP_STATISTIC_STEP` say
    /// when PRMalloc stops recording. Larder never stops, so these are checked but have no effect.
    ///
    /// Also returns each invalid value; the settings have all valid ones.
    pub fn with_env(self) -> (Self, Vec<BadSetting>) {
        let texts: Vec<(&str, String)> = NAMES
            .into_iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?.to_string_lossy().into_owned())))
            .collect();
        self.with_texts(|name| {
            let found = texts.iter().find(|(known, _)| *known == name);
            found.map(|(_, text)| text.as_str())
        })
    }

    #[cfg(feature = "std")]
    fn with_texts<'e>(
        mut self,
        lookup: impl Fn(&str) -> Option<&'e str>,
    ) -> (Self, Vec<BadSetting>) {
        let config = PlannerConfig {
            enabled: self.enabled,
            window: Window {
                start: i64::try_from(self.first_step).unwrap_or(i64::MAX),
                ..Window::DEFAULT
            },
            ..PlannerConfig::default()
        };
        let mut bad = Vec::new();
        let config = config.with_settings(lookup, |setting| {
            bad.push(BadSetting {
                name: setting.name,
                what: setting.to_string(),
            });
        });
        self.enabled = config.enabled;
        // A start before the first step is the first step.
        self.first_step = u64::try_from(config.window.start).unwrap_or(0);
        (self, bad)
    }

    /// Makes these settings those of the process.
    ///
    /// # Errors
    /// If a step has begun already.
    pub fn apply(self) -> Result<(), StepsInUse> {
        if PROCESS.step_heaps.set(self) {
            Ok(())
        } else {
            Err(StepsInUse)
        }
    }

    pub(crate) const fn config(&self) -> StepConfig {
        StepConfig {
            threshold_bytes: (self.threshold_bytes as u64).saturating_add(1),
            cap_bytes: self.cap_bytes,
            packing_work: PACKING_WORK,
            search_work: SEARCH_WORK,
            spare_divisor: SPARE_DIVISOR,
            patience: PATIENCE,
            within_plans: true,
        }
    }
}

impl Default for StepSettings {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "std")]
const NAMES: [&str; 5] = [
    "ENABLE_MEMORY_OPTIMIZATION",
    "START_STATISTIC_STEP",
    "STABLE_STATISTIC_STEP",
    "MAX_STATISTIC_STEP",
    "STOP_STATISTIC_STEP",
];

#[cfg(feature = "std")]
/// An invalid value in the environment. The setting keeps its earlier value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSetting {
    /// The variable.
    pub name: &'static str,
    what: String,
}

#[cfg(feature = "std")]
impl core::fmt::Display for BadSetting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.what)
    }
}

#[cfg(feature = "std")]
impl core::error::Error for BadSetting {}

/// The error of applying settings after the first step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepsInUse;

impl core::fmt::Display for StepsInUse {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a step has begun already: apply settings before the first one")
    }
}

impl core::error::Error for StepsInUse {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_read_by_upstreams_names() {
        let texts = |name: &str| match name {
            "ENABLE_MEMORY_OPTIMIZATION" => Some("FALSE"),
            "START_STATISTIC_STEP" => Some("12"),
            "STABLE_STATISTIC_STEP" => Some("3"),
            _ => None,
        };
        let (settings, bad) = StepSettings::new().with_texts(texts);
        assert_eq!((settings.enabled, settings.first_step), (false, 12));
        assert_eq!(bad, []);
        let (same, _) = StepSettings::new().with_texts(|_| None);
        assert_eq!(same, StepSettings::new());
    }

    #[test]
    fn a_text_that_is_not_understood_is_told_and_changes_nothing() {
        let texts = |name: &str| match name {
            "ENABLE_MEMORY_OPTIMIZATION" => Some("yes"),
            "START_STATISTIC_STEP" => Some("-5"),
            "MAX_STATISTIC_STEP" => Some("many"),
            _ => None,
        };
        let (settings, bad) = StepSettings::new().with_texts(texts);
        assert_eq!(settings, StepSettings::new());
        let names: Vec<_> = bad.iter().map(|bad| bad.name).collect();
        assert_eq!(names, ["ENABLE_MEMORY_OPTIMIZATION", "MAX_STATISTIC_STEP"]);
        assert!(bad[0].to_string().contains("0, 1, false or true"));
    }
}
