//! The planner's settings, under the names of upstream's environment variables.
//!
//! This module does not read the environment: the caller looks the names up.

use core::fmt;

use super::config::PlannerConfig;

/// Switches the planner on or off.
pub const ENABLE_MEMORY_OPTIMIZATION: &str = "ENABLE_MEMORY_OPTIMIZATION";
/// The step at which recording begins.
pub const START_STATISTIC_STEP: &str = "START_STATISTIC_STEP";
/// Planning ends after more than this number of stable rounds in a row.
pub const STABLE_STATISTIC_STEP: &str = "STABLE_STATISTIC_STEP";
/// Planning ends after more than this number of rounds.
pub const MAX_STATISTIC_STEP: &str = "MAX_STATISTIC_STEP";
/// The step at which upstream's other forms end recording. Here the value is checked and not used.
pub const STOP_STATISTIC_STEP: &str = "STOP_STATISTIC_STEP";

/// A text that its setting does not accept. The setting keeps its previous value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BadSetting<'e> {
    /// The setting's name.
    pub name: &'static str,
    /// The text that was not accepted.
    pub text: &'e str,
    /// The expected form.
    pub wanted: &'static str,
}

impl fmt::Display for BadSetting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, text, wanted } = self;
        write!(
            f,
            "{name} is {text:?}: expected {wanted}, the default stays"
        )
    }
}

impl PlannerConfig {
    /// Returns this configuration with the values that `lookup` returns for the five names: `enabled`, and the
    /// numbers of its window. Calls `bad` with each text that its setting does not accept.
    ///
    /// Truth values are `0`, `false`, `1` and `true`, in upper or lower case. Numbers are decimal, may have a sign, and
    /// have 64 bits.
    ///
    /// ```
    /// use larder_core::prmalloc::{PlannerConfig, Window};
    /// let lookup = |name: &str| match name {
    ///     "START_STATISTIC_STEP" => Some("3"),
    ///     "ENABLE_MEMORY_OPTIMIZATION" => Some("yes"),
    ///     _ => None,
    /// };
    /// let mut bad = Vec::new();
    /// let config = PlannerConfig::default().with_settings(lookup, |setting| bad.push(setting));
    /// assert_eq!(config.window, Window { start: 3, ..Window::DEFAULT });
    /// assert!(config.enabled);
    /// assert_eq!(bad[0].name, "ENABLE_MEMORY_OPTIMIZATION");
    /// ```
    pub fn with_settings<'e>(
        self,
        lookup: impl Fn(&str) -> Option<&'e str>,
        mut bad: impl FnMut(BadSetting<'e>),
    ) -> Self {
        let mut config = self;
        if let Some(text) = lookup(ENABLE_MEMORY_OPTIMIZATION) {
            match parse_bool(text) {
                Some(enabled) => config.enabled = enabled,
                None => bad(BadSetting {
                    name: ENABLE_MEMORY_OPTIMIZATION,
                    text,
                    wanted: "0, 1, false or true",
                }),
            }
        }
        let window = &mut config.window;
        let numbers = [
            (START_STATISTIC_STEP, &mut window.start),
            (STABLE_STATISTIC_STEP, &mut window.stable),
            (MAX_STATISTIC_STEP, &mut window.max),
            (STOP_STATISTIC_STEP, &mut 0),
        ];
        for (name, place) in numbers {
            let Some(text) = lookup(name) else { continue };
            match text.parse() {
                Ok(number) => *place = number,
                Err(_) => bad(BadSetting {
                    name,
                    text,
                    wanted: "a number",
                }),
            }
        }
        config
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    if text == "1" || text.eq_ignore_ascii_case("true") {
        return Some(true);
    }
    (text == "0" || text.eq_ignore_ascii_case("false")).then_some(false)
}
