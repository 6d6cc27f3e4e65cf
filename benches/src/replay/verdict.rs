//! The sentence at the end of a report: what Larder holds beside PyTorch.

use super::report::{ReplayRow, Report};
use crate::numbers::{geometric_mean, mebibytes};

/// Ours in the sentence.
const OURS: &str = "larder-billed";

/// PyTorch's in the sentence, first that as somebody set it, and their names there.
const THEIRS: [(&str, &str); 2] = [("pytorch-set", "PyTorch as set"), ("pytorch", "PyTorch")];

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
        let theirs = self.rows.iter().filter(|row| row.allocator == allocator);
        let both = theirs.filter_map(|theirs| {
            let is_ours = |row: &&ReplayRow| row.trace == theirs.trace && row.allocator == OURS;
            let ours = self.rows.iter().find(is_ours)?;
            Some(Both { theirs, ours })
        });
        let all: Vec<Both<'_>> = both.collect();
        let completed =
            |both: &&Both<'_>| both.theirs.outcome.completed && both.ours.outcome.completed;
        let completed: Vec<&Both<'_>> = all.iter().filter(completed).collect();
        match (all.as_slice(), completed.as_slice()) {
            ([], _) => None,
            ([one], []) => Some(refused(one, name)),
            ([_], [one]) => Some(held(one, name)),
            (all, []) => Some(format!(
                "None of {} traces completed with {name} and with Larder.",
                all.len()
            )),
            (all, completed) => means(completed, all.len(), name),
        }
    }
}

/// What both hold on one trace.
fn held(both: &Both<'_>, name: &str) -> String {
    let theirs = both.theirs.outcome.peak_reserved_bytes;
    let ours = both.ours.outcome.peak_reserved_bytes;
    format!(
        "At the peak {name} holds {}, Larder {}: {}.",
        size(theirs),
        size(ours),
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

/// What both hold over the traces that both complete, by geometric means.
fn means(completed: &[&Both<'_>], all: usize, name: &str) -> Option<String> {
    let theirs = completed
        .iter()
        .filter_map(|both| both.theirs.reserved_over_live);
    let ours = completed
        .iter()
        .filter_map(|both| both.ours.reserved_over_live);
    let (theirs, ours) = (geometric_mean(theirs)?, geometric_mean(ours)?);
    let count = completed.len();
    let traces = if count == all {
        format!("{all} traces")
    } else {
        format!("the {count} of {all} traces that both complete")
    };
    Some(format!(
        "At the peak {name} holds {theirs:.3} times what is live, Larder {ours:.3}: {} (geometric means over {traces}).",
        less(theirs, ours)
    ))
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

fn size(bytes: u64) -> String {
    let mebibytes = mebibytes(bytes);
    if mebibytes < 1024.0 {
        format!("{mebibytes:.1} MiB")
    } else {
        format!("{:.2} GiB", mebibytes / 1024.0)
    }
}
