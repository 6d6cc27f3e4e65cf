//! Counts calls, and refuses those that a test wants to fail.

use std::collections::BTreeMap;

use larder_cuda_abi::{Code, functions};

/// A rule for refusing calls.
#[derive(Clone, Debug)]
struct RefusalRule {
    /// Name of the function, or `None` for any function.
    name: Option<String>,
    /// Number of calls that are made before the first refusal.
    skip: u64,
    /// Number of calls that are refused after those.
    times: u64,
    code: Code,
}

/// Counts of calls, and the rules for refusing them.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    counts: BTreeMap<&'static str, u64>,
    rules: Vec<RefusalRule>,
}

impl Calls {
    /// Counts a call of `name`. Returns an error if a rule refuses the call.
    pub(crate) fn note(&mut self, name: &'static str) -> Result<(), Code> {
        *self.counts.entry(name).or_default() += 1;
        let mut refused = None;
        for rule in &mut self.rules {
            if rule.name.as_deref().is_some_and(|wanted| wanted != name) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.times > 0 {
                rule.times -= 1;
                refused = refused.or(Some(rule.code));
            }
        }
        self.rules.retain(|rule| rule.times > 0);
        refused.map_or(Ok(()), Err)
    }

    pub(crate) fn fail(
        &mut self,
        name: Option<String>,
        skip: u64,
        times: u64,
        code: Code,
    ) -> Result<(), Code> {
        let is_name = |name: &str| functions::ALL.iter().any(|(known, _)| *known == name);
        let known = name.as_deref().is_none_or(is_name);
        if !known || code.name().is_none() {
            return Err(Code::INVALID_VALUE);
        }
        self.rules.push(RefusalRule {
            name,
            skip,
            times,
            code,
        });
        Ok(())
    }

    pub(crate) fn clear_rules(&mut self) {
        self.rules.clear();
    }

    pub(crate) fn clear_counts(&mut self) {
        self.counts.clear();
    }

    pub(crate) fn count(&self, name: Option<&str>) -> u64 {
        match name {
            Some(name) => self.counts.get(name).copied().unwrap_or(0),
            None => self.counts.values().sum(),
        }
    }

    pub(crate) fn text(&self) -> String {
        self.counts
            .iter()
            .map(|(name, count)| format!("{name} {count}\n"))
            .collect()
    }
}
