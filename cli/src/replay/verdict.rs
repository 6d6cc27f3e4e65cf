//! The sentence at the end of a report: the memory that Larder holds, compared with PyTorch.

use larder_core::ByteCount;

use super::report::{ReplayReport, ReplayRow};
use crate::numbers::{AS_MUCH, geometric_mean, less};

/// Candidates for Larder's contender in the sentence, which is the first of these that was replayed.
const OURS: [&str; 5] = [
    "larder",
    "larder-planned",
    "larder-budget",
    "larder-no-moves",
    "larder-planned-no-moves",
];

/// Candidates for PyTorch's contender in the sentence, and their names there. The one with the user's settings comes
/// first.
const THEIRS: [(&str, &str); 3] = [
    ("pytorch-set", "PyTorch as set"),
    ("pytorch", "PyTorch"),
    (EXPANDABLE, "PyTorch with expandable segments"),
];

/// PyTorch's other mode, which the sentence also mentions if it compares the default.
const EXPANDABLE: &str = "pytorch-expandable";

/// The rows of one trace, which both contenders replayed.
struct Both<'r> {
    theirs: &'r ReplayRow,
    ours: &'r ReplayRow,
}

impl ReplayReport {
    /// Returns the sentence; `None` unless both contenders were replayed.
    pub(super) fn verdict(&self) -> Option<String> {
        let ran = |name: &str| self.rows.iter().any(|row| row.allocator == name);
        let (allocator, name) = THEIRS.into_iter().find(|(allocator, _)| ran(allocator))?;
        let ours = OURS.into_iter().find(|ours| ran(ours))?;
        let compared = self.both(allocator, ours);
        let text = match compared.as_slice() {
            [] => return None,
            [one] if one.completed() => held(one, name),
            [one] => refused(one, name),
            several => over_all(several, name),
        };
        let recorded = match compared.as_slice() {
            [one] if one.completed() => recorded(one),
            _ => String::new(),
        };
        Some(text + &self.beside_expandable(&compared, ours) + &recorded)
    }

    /// Pairs the rows of `theirs` and `ours` for each trace.
    fn both(&self, theirs: &str, ours: &str) -> Vec<Both<'_>> {
        let both = self.pairs(theirs, ours).into_iter();
        both.map(|(theirs, ours)| Both { theirs, ours }).collect()
    }

    /// Compares ours with PyTorch with expandable segments, which many programs use. Returns an empty text if no trace
    /// is completed by both, or if the contender already compared holds as much.
    fn beside_expandable(&self, compared: &[Both<'_>], ours: &str) -> String {
        let both = self.both(EXPANDABLE, ours);
        let held = |both: &[Both<'_>]| -> Vec<(bool, u64)> {
            let outcomes = both.iter().map(|both| &both.theirs.outcome);
            let held = outcomes.map(|outcome| (outcome.completed, outcome.peak_reserved_bytes));
            held.collect()
        };
        if held(&both) == held(compared) {
            return String::new();
        }
        let completed: Vec<&Both<'_>> = both.iter().filter(|both| both.completed()).collect();
        let Some((theirs, ours)) = mean_ratios(&completed) else {
            return String::new();
        };
        let less = less(theirs, ours);
        let than = if less == AS_MUCH { "as" } else { "than" };
        format!(" Larder holds {less} {than} expandable segments.")
    }
}

impl Both<'_> {
    const fn completed(&self) -> bool {
        self.theirs.outcome.completed && self.ours.outcome.completed
    }

    /// Returns the words for a device without a limit, if it has none. There the contenders keep memory that they would
    /// release on a full device.
    const fn without_limit(&self) -> &'static str {
        match self.ours.device_bytes {
            Some(_) => "",
            None => ", on a device without a limit,",
        }
    }

    /// Returns the program's maximum live bytes and the bytes of the device, if the device has fewer.
    fn too_small(&self) -> Option<(u64, u64)> {
        let device = self.ours.device_bytes?;
        let live = self.ours.outcome.trace_live_bytes;
        (live > device).then_some((live, device))
    }
}

/// Returns a sentence on the memory that both hold on one trace.
fn held(both: &Both<'_>, name: &str) -> String {
    let theirs = both.theirs.outcome.peak_reserved_bytes;
    let ours = both.ours.outcome.peak_reserved_bytes;
    format!(
        "At the peak{} {name} holds {}, Larder ({}) {}: {}.",
        both.without_limit(),
        ByteCount(theirs),
        both.ours.allocator,
        ByteCount(ours),
        less(theirs as f64, ours as f64)
    )
}

/// Returns a sentence on what PyTorch held when the trace was recorded. Returns an empty text if that is unknown, or if the
/// replay's device has a limit, which was chosen for the comparison.
fn recorded(both: &Both<'_>) -> String {
    let outcome = &both.ours.outcome;
    let held = outcome.recorded_held_bytes.map(ByteCount);
    let (Some(held), None) = (held, both.ours.device_bytes) else {
        return String::new();
    };
    let requests = outcome.refused_requests;
    match requests.and_then(|requests| requests.recorded_device_bytes) {
        Some(device) => format!(
            " The snapshot records that PyTorch held {held} at most of the {} that it could use; give --device-bytes to compare on a device of that size.",
            ByteCount(device)
        ),
        None => format!(
            " The snapshot records that PyTorch held {held} at most; give --device-bytes to compare on a device with a limit."
        ),
    }
}

/// Returns a sentence on a trace that at least one of the two does not complete.
fn refused(both: &Both<'_>, name: &str) -> String {
    let larder = format!("Larder ({})", both.ours.allocator);
    let (theirs, ours) = (&both.theirs.outcome, &both.ours.outcome);
    match (theirs.completed, ours.completed) {
        (false, true) => format!("{name} runs out of memory, {larder} does not."),
        (true, false) => format!("{larder} runs out of memory, {name} does not."),
        _ => match both.too_small() {
            Some((live, device)) => format!(
                "The program needs {} live: no allocator fits {}.",
                ByteCount(live),
                ByteCount(device)
            ),
            None => format!("Both {name} and {larder} run out of memory."),
        },
    }
}

/// Returns a sentence on the number of traces that each completes, unless both complete all of them, and on the memory
/// that they hold over the traces that both complete, as geometric means.
fn over_all(both: &[Both<'_>], name: &str) -> String {
    let all = both.len();
    let theirs = both.iter().filter(|both| both.theirs.outcome.completed);
    let ours = both.iter().filter(|both| both.ours.outcome.completed);
    let (theirs, ours) = (theirs.count(), ours.count());
    let mut text = String::new();
    if theirs.min(ours) < all {
        let larder = both[0].ours.allocator;
        text = format!("{name} completes {theirs} of {all} traces, Larder ({larder}) {ours}. ");
    }
    if let Some(means) = means(both, name) {
        text.push_str(&means);
    }
    text.trim_end().to_owned()
}

/// Returns the sentence on the memory that both hold over the traces that both complete, as geometric means; `None` if
/// there is no such trace.
fn means(both: &[Both<'_>], name: &str) -> Option<String> {
    let completed: Vec<&Both<'_>> = both.iter().filter(|both| both.completed()).collect();
    let (theirs, ours) = mean_ratios(&completed)?;
    let less = less(theirs, ours);
    let larder = completed[0].ours.allocator;
    let traces = match completed.len() {
        1 => "1 trace".to_owned(),
        count => format!("{count} traces"),
    };
    Some(format!(
        "At the peak{} {name} holds {theirs:.3} times what is live, Larder ({larder}) {ours:.3}: {less} (geometric means over {traces}).",
        completed[0].without_limit()
    ))
}

/// Returns the geometric means of the memory held over the live bytes, for theirs and for ours; `None` without a trace.
fn mean_ratios(both: &[&Both<'_>]) -> Option<(f64, f64)> {
    let ratios = |row: fn(&Both<'_>) -> Option<f64>| {
        geometric_mean(both.iter().filter_map(|both| row(both)))
    };
    let theirs = ratios(|both| both.theirs.reserved_over_live)?;
    let ours = ratios(|both| both.ours.reserved_over_live)?;
    Some((theirs, ours))
}
