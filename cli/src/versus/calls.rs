//! The longest single call of an allocator on each workload: the longest time for which a program has to wait.
//!
//! The workers are built with a feature that times every call of the process. A slow call is slow in every run, while
//! interruptions by the machine vary. So the figure is the minimum over the rounds of each round's longest call.

use serde::Serialize;

use super::process::RunFault;
use super::rounds::Runs;
use super::workloads::Workload;
use crate::numbers::in_order;
use crate::report::{Table, none};

/// The longest call of one kind in microseconds: in wall time, and in CPU time of its thread.
pub(crate) type Micros = [f64; 2];

/// Scale of the work when each call is timed. It is small because reading the clocks takes up to a hundred times as
/// long as a call.
pub(super) const SHARE_OF_CALLS: f64 = 0.2;

/// The kinds of calls, in the order in which a worker prints them.
const KINDS: [&str; 3] = ["malloc", "realloc", "free"];
const CLOCKS: [&str; 2] = ["wall", "processor"];

/// The result of one allocator on one workload: one line of JSON and cells of the table. It has no figures if the
/// allocator failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct LongestCalls {
    /// Distinguishes the row from other lines.
    pub(crate) measure: &'static str,
    pub(crate) workload: &'static str,
    pub(crate) allocator: &'static str,
    pub(crate) longest_us: Option<[Micros; 3]>,
    pub(crate) failed: Option<String>,
}

/// Returns the longest calls in a workload's runs, for each allocator that the system allowed to run the workload.
pub(crate) fn longest(workload: &Workload, all: &[Runs]) -> Vec<LongestCalls> {
    let of = |runs: &Runs| LongestCalls {
        measure: "calls",
        workload: workload.name,
        allocator: runs.allocator,
        longest_us: runs
            .samples
            .iter()
            .filter_map(|sample| sample.calls)
            .reduce(shorter)
            .filter(|_| runs.fault.is_none()),
        failed: runs.fault.as_ref().map(ToString::to_string),
    };
    let ran = |runs: &&Runs| !matches!(runs.fault, Some(RunFault::Skipped(_)));
    all.iter().filter(ran).map(of).collect()
}

fn shorter(one: [Micros; 3], other: [Micros; 3]) -> [Micros; 3] {
    let least = |kind: usize, clock: usize| one[kind][clock].min(other[kind][clock]);
    [0, 1, 2].map(|kind| [0, 1].map(|clock| least(kind, clock)))
}

/// Formats all longest calls. A workload has one line for each kind of call and each clock.
pub(crate) fn calls_table(all: &[LongestCalls], width: usize) -> String {
    if all.is_empty() {
        return String::new();
    }
    let allocators = in_order(all.iter().map(|calls| calls.allocator));
    let mut table = Table::new([&["workload", "call"], &allocators[..]].concat());
    for workload in in_order(all.iter().map(|calls| calls.workload)) {
        for (kind, name) in KINDS.iter().enumerate() {
            for (clock, clock_name) in CLOCKS.iter().enumerate() {
                let cell = |allocator: &&str| {
                    let mut same = all.iter().filter(|calls| calls.workload == workload);
                    let calls = same.find(|calls| calls.allocator == *allocator);
                    calls.map_or_else(none, |calls| match calls.longest_us {
                        Some(longest) => format!("{:.1}", longest[kind][clock]),
                        None => "failed".to_owned(),
                    })
                };
                let mut cells = vec![workload.to_owned(), format!("{name}, {clock_name}")];
                cells.extend(allocators.iter().map(cell));
                table.row(cells);
            }
        }
    }
    let title = "longest single call in microseconds, the shortest of the rounds; plain build";
    let mut text = table.titled(title, width);
    for calls in all {
        if let Some(why) = &calls.failed {
            let (workload, allocator) = (calls.workload, calls.allocator);
            text.push_str(&format!(
                "failed: calls of {workload} on {allocator}: {why}\n"
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ANY_WIDTH;
    use crate::versus::process::parse;
    use crate::versus::{Profile, workloads};

    fn runs(allocator: &'static str, calls: &[&str]) -> Runs {
        let sample = |calls: &&str| {
            let line = format!(
                r#"{{"workload":"boxes","allocator":"{allocator}","seconds":1.0,"operations":1,"answer":7,"calls":{calls}}}"#
            );
            parse(&line, allocator, "boxes").unwrap()
        };
        Runs {
            allocator,
            profile: Profile::Calls,
            samples: calls.iter().map(sample).collect(),
            fault: None,
        }
    }

    #[test]
    fn of_the_longest_calls_of_the_rounds_the_shortest_counts_by_each_clock() {
        let larder = runs("larder", &["[[9,3],[0,0],[5,5]]", "[[4,4],[0,0],[6,2]]"]);
        let mut talc = runs("talc", &["[[1,1],[1,1],[1,1]]"]);
        talc.fault = Some(RunFault::TimedOut { seconds: 9 });
        let all = longest(workloads::find("boxes").unwrap(), &[larder, talc]);
        assert_eq!(
            all[0].longest_us,
            Some([[4.0, 3.0], [0.0, 0.0], [5.0, 2.0]])
        );
        assert_eq!(all[1].longest_us, None);
        let text = calls_table(&all, ANY_WIDTH);
        let line = text.lines().find(|line| line.contains("malloc, wall"));
        assert!(
            line.is_some_and(|line| line.contains("4.0") && line.contains("failed")),
            "{text}"
        );
        assert!(
            text.contains("failed: calls of boxes on talc: did not end within 9 s"),
            "{text}"
        );
    }

    #[test]
    fn a_worker_that_times_no_calls_has_no_longest_one() {
        let none = runs("larder", &["null"]);
        let all = longest(workloads::find("boxes").unwrap(), &[none]);
        assert_eq!((all[0].longest_us, &all[0].failed), (None, &None));
        assert_eq!(calls_table(&[], ANY_WIDTH), "");
    }
}
