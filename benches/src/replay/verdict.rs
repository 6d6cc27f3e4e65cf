//! The sentence at the end of a report: what Larder holds beside PyTorch.

use larder_core::ByteCount;

use super::report::{ReplayRow, Report};
use crate::numbers::geometric_mean;

/// Ours in the sentence.
const OURS: &str = "larder-billed";

/// PyTorch's in the sentence, first that as somebody set it, and their names there.
const THEIRS: [(&str, &str); 2] = [("pytorch-set", "PyTorch as set"), ("pytorch", "PyTorch")];

/// PyTorch's other mode, named beside its default.
const EXPANDABLE: &str = "pytorch-expandable";

/// One trace through both.
struct Both<'r> {
    theirs: &'r ReplayRow,
    ours: &'r ReplayRow,
}

impl Report {
    /// The sentence; `None` unless both were replayed.
    pub(super) fn verdict(&self) -> Option<String> {
        let (allocator, name) = THEIRS
            .into_iter()
            .find(|(allocator, _)| self.rows.iter().any(|row| row.allocator == *allocator))?;
        let text = match self.both(allocator).as_slice() {
            [] => return None,
            [one] if one.completed() => held(one, name),
            [one] => refused(one, name),
            several => over_all(several, name),
        };
        Some(text + &self.beside_expandable())
    }

    /// Ours and one of theirs on each trace.
    fn both(&self, theirs: &str) -> Vec<Both<'_>> {
        // Each trace has one row of each.
        let of = |allocator: &str| {
            let allocator = allocator.to_owned();
            let rows = self.rows.iter();
            rows.filter(move |row| row.allocator == allocator)
        };
        let both = of(theirs).zip(of(OURS));
        both.map(|(theirs, ours)| Both { theirs, ours }).collect()
    }

    /// What ours holds beside PyTorch with expandable segments: many have them on. Empty if not both complete a trace.
    fn beside_expandable(&self) -> String {
        let both = self.both(EXPANDABLE);
        let completed: Vec<&Both<'_>> = both.iter().filter(|both| both.completed()).collect();
        let Some((theirs, ours)) = mean_ratios(&completed) else {
            return String::new();
        };
        format!(" Beside expandable segments it is {}.", less(theirs, ours))
    }
}

impl Both<'_> {
    const fn completed(&self) -> bool {
        self.theirs.outcome.completed && self.ours.outcome.completed
    }
}

/// What both hold on one trace.
fn held(both: &Both<'_>, name: &str) -> String {
    let theirs = both.theirs.outcome.peak_reserved_bytes;
    let ours = both.ours.outcome.peak_reserved_bytes;
    format!(
        "At the peak {name} holds {}, Larder {}: {}.",
        ByteCount(theirs),
        ByteCount(ours),
        less(theirs as f64, ours as f64)
    )
}

/// Who completes a trace that at least one does not.
fn refused(both: &Both<'_>, name: &str) -> String {
    let (theirs, ours) = (&both.theirs.outcome, &both.ours.outcome);
    match (theirs.completed, ours.completed) {
        (false, true) => format!("{name} runs out of memory, Larder does not."),
        (true, false) => format!("Larder runs out of memory, {name} does not."),
        _ => format!("Both {name} and Larder run out of memory."),
    }
}

/// How many traces each completes, unless it is all, and what both hold over those that both complete, by
/// geometric means.
fn over_all(both: &[Both<'_>], name: &str) -> String {
    let all = both.len();
    let theirs = both.iter().filter(|both| both.theirs.outcome.completed);
    let ours = both.iter().filter(|both| both.ours.outcome.completed);
    let (theirs, ours) = (theirs.count(), ours.count());
    let mut text = String::new();
    if theirs.min(ours) < all {
        text = format!("{name} completes {theirs} of {all} traces, Larder {ours}. ");
    }
    if let Some(means) = means(both, name) {
        text.push_str(&means);
    }
    text.trim_end().to_owned()
}

/// What both hold over the traces that both complete, by geometric means; `None` if there is none.
fn means(both: &[Both<'_>], name: &str) -> Option<String> {
    let completed: Vec<&Both<'_>> = both.iter().filter(|both| both.completed()).collect();
    let (theirs, ours) = mean_ratios(&completed)?;
    let less = less(theirs, ours);
    let traces = match completed.len() {
        1 => "1 trace".to_owned(),
        count => format!("{count} traces"),
    };
    Some(format!(
        "At the peak {name} holds {theirs:.3} times what is live, Larder {ours:.3}: {less} (geometric means over {traces})."
    ))
}

/// What theirs and ours hold over what is live, by geometric means; `None` without a trace.
fn mean_ratios(both: &[&Both<'_>]) -> Option<(f64, f64)> {
    let ratios = |row: fn(&Both<'_>) -> Option<f64>| {
        geometric_mean(both.iter().filter_map(|both| row(both)))
    };
    let theirs = ratios(|both| both.theirs.reserved_over_live)?;
    let ours = ratios(|both| both.ours.reserved_over_live)?;
    Some((theirs, ours))
}

/// By how much ours is less than theirs, or more.
fn less(theirs: f64, ours: f64) -> String {
    let percent = (1.0 - ours / theirs) * 100.0;
    let word = if percent < 0.0 { "more" } else { "less" };
    match percent.abs() {
        percent if percent < 0.05 => "as much".to_owned(),
        percent if percent < 9.95 => format!("{percent:.1} % {word}"),
        percent => format!("{percent:.0} % {word}"),
    }
}
