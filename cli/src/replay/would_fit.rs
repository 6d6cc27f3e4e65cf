//! The sentences at the start of a report on a program that ran out of memory: whether the requests
//! that it was refused fit with each allocator.

use larder_core::ByteCount;

use super::RefusedRequests;
use super::report::{ReplayReport, ReplayRow};

/// The allocators that the sentences give another name.
const NAMES: [(&str, &str); 4] = [
    ("pytorch-set", "PyTorch as set"),
    ("pytorch", "PyTorch"),
    (EXPANDABLE, "PyTorch with expandable segments"),
    ("larder", "Larder"),
];

const EXPANDABLE: &str = "pytorch-expandable";
const SET_EXPANDABLE: &str = "expandable_segments:True";

impl ReplayReport {
    /// Returns the sentences, a line for each trace with refused requests.
    pub(super) fn would_fit(&self) -> Vec<String> {
        let traces = self.rows.chunk_by(|row, next| row.trace == next.trace);
        traces.filter_map(of_one_trace).collect()
    }
}

fn of_one_trace(rows: &[ReplayRow]) -> Option<String> {
    let tried: Vec<(&ReplayRow, RefusedRequests)> = rows
        .iter()
        .filter_map(|row| Some((row, row.outcome.refused_requests?)))
        .collect();
    let (row, first) = tried.first()?;
    let tried_on = ByteCount(first.tried_on_bytes);
    // The program could use another device than the one named, if that was recorded.
    let other = first.recorded_device_bytes;
    let other = other.filter(|bytes| *bytes != first.tried_on_bytes);
    let device = other.map_or(tried_on, ByteCount);
    let mut it = match other {
        Some(_) => format!("On a device of {tried_on} it"),
        None => "It".to_owned(),
    };
    let mut text = format!(
        "{}: the program was refused {} after event {}, with {} live of the {device} that it could use.",
        row.trace,
        ByteCount(first.bytes),
        first.after_event,
        ByteCount(first.live_bytes),
    );
    let wanted_bytes = first.live_bytes.saturating_add(first.bytes);
    if let Some(missing_bytes @ 1..) = wanted_bytes.checked_sub(first.tried_on_bytes) {
        let missing = ByteCount(missing_bytes);
        text.push_str(&format!(
            " {it} fits with no allocator: {missing} are missing."
        ));
        return Some(text);
    }
    let those = |fit: bool, how: fn(&RefusedRequests) -> String| {
        let those = tried.iter().filter(move |(_, tried)| tried.fits == fit);
        let those = those.map(move |(row, tried)| format!("{} ({})", name(row), how(tried)));
        those.collect::<Vec<_>>().join(", ")
    };
    let fit = those(true, |tried| {
        format!("up to {}", ByteCount(tried.largest_bytes))
    });
    let unfit = those(false, |tried| match tried.largest_bytes {
        0 => "which does not serve the blocks before it".to_owned(),
        largest_bytes => format!("{} too large", ByteCount(tried.bytes - largest_bytes)),
    });
    if !fit.is_empty() {
        text.push_str(&format!(" {it} fits with {fit}."));
        it = "It".to_owned();
    }
    if !unfit.is_empty() {
        text.push_str(&format!(" {it} does not fit with {unfit}."));
    }
    if first.requests > 1 {
        let each = tried
            .iter()
            .map(|(row, tried)| format!("{} {}", name(row), tried.served));
        let each = each.collect::<Vec<_>>().join(", ");
        let requests = first.requests;
        text.push_str(&format!(
            " It is the largest of {requests} refused requests; fit: {each}."
        ));
    }
    if first.blocks_after == 0 {
        text.push_str(" What the program would have asked for next is not recorded.");
    }
    text.push_str(advice(&tried));
    Some(text)
}

/// Returns the name of an allocator.
fn name(row: &ReplayRow) -> &'static str {
    let known = NAMES.into_iter().find(|(name, _)| *name == row.allocator);
    known.map_or(row.allocator, |(_, name)| name)
}

/// Returns what the reader can do, or what the trace does not show.
fn advice(tried: &[(&ReplayRow, RefusedRequests)]) -> &'static str {
    let all_fit = |name: &str| {
        let of = tried.iter().find(|(row, _)| row.allocator == name);
        of.is_some_and(|(_, tried)| tried.served == tried.requests)
    };
    let ran_expandable = tried.iter().any(|(row, _)| {
        let settings = row.outcome.pytorch_settings.as_deref();
        settings.is_some_and(|settings| settings.contains(SET_EXPANDABLE))
    });
    let as_it_ran = if ran_expandable {
        EXPANDABLE
    } else {
        "pytorch"
    };
    // A larger device than the program's explains that its own allocator serves the request.
    let is_larger = tried.iter().any(|(_, tried)| {
        let recorded = tried.recorded_device_bytes;
        recorded.is_some_and(|bytes| tried.tried_on_bytes > bytes)
    });
    if all_fit(as_it_ran) {
        if is_larger {
            return "";
        }
        " The program's own allocator serves it here as well: what filled the device is not in the trace, such as other processes, captured graphs, the order of streams, or a memory fraction."
    } else if !ran_expandable && all_fit(EXPANDABLE) {
        " Expandable segments are enough: set PYTORCH_ALLOC_CONF=expandable_segments:True."
    } else {
        ""
    }
}
