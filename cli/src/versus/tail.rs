//! The slowest calls of an allocator on each workload: percentiles, the longest calls, and their causes.
//!
//! The workers are built with a feature that times every call of the process. A slow call is slow in every run, while
//! interruptions by the machine vary. So the longest calls are those of the round in which the longest call is
//! shortest, and the other longest times are the minimum over the rounds. Percentiles are medians over the rounds.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::process::RunFault;
use super::rounds::Runs;
use super::workloads::Workload;
use crate::numbers::{in_order, median};
use crate::report::{Left, Right, Table, none};

/// Scale of the work when each call is timed. It is small because the readings take up to a hundred times as long as a
/// call.
pub(super) const SHARE_OF_TAIL: f64 = 0.2;

/// The processor time of a call is exact within about this time.
const EXACT_NANOS: u64 = 1_000;

/// The kinds of calls, in the order in which a worker prints them.
const KINDS: [&str; 3] = ["malloc", "realloc", "free"];

/// The calls of one kind in one run, as a worker prints them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct CallTail {
    /// Number of calls.
    count: u64,
    p999_ns: u64,
    p9999_ns: u64,
    /// Maximum processor time of a call.
    processor_ns: u64,
    /// Maximum time of a call without a page fault, in which the thread kept its processor unless it slept.
    clean_ns: u64,
    /// The longest calls, longest first.
    longest: Vec<LongCall>,
}

/// One of the longest calls, with the readings of its thread in the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct LongCall {
    wall_ns: u64,
    processor_ns: u64,
    minor_faults: u64,
    major_faults: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
}

/// The cause of a long call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cause {
    /// The call touched memory that was not resident.
    PageFaults,
    /// Another thread or another machine had the processor.
    SwitchedOut,
    /// The call waited for a lock, its own or the system's, or in a system call.
    Slept,
    /// None of the others: the call had so much to do.
    Work,
}

impl fmt::Display for Cause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::PageFaults => "page faults",
            Self::SwitchedOut => "switched out",
            Self::Slept => "slept",
            Self::Work => "work",
        })
    }
}

impl LongCall {
    /// Names the cause. If the thread was without a processor for more than half of the call, the cause is the reason
    /// for that; a hypervisor takes the processor without a switch. Otherwise it is page faults if there were any.
    fn cause(&self) -> Cause {
        let lost = self.wall_ns.saturating_sub(self.processor_ns);
        if self.major_faults > 0 {
            return Cause::PageFaults;
        }
        if lost > (self.wall_ns / 2).max(EXACT_NANOS) {
            return match self {
                Self {
                    involuntary_switches: 0,
                    voluntary_switches: 1..,
                    ..
                } => Cause::Slept,
                _ => Cause::SwitchedOut,
            };
        }
        match self.minor_faults {
            0 => Cause::Work,
            _ => Cause::PageFaults,
        }
    }
}

/// The calls of one kind over all rounds. A percentile is `None` if there were too few calls for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct KindTail {
    call: &'static str,
    /// Number of calls in the round with the fewest.
    count: u64,
    p99_9_us: Option<f64>,
    p99_99_us: Option<f64>,
    longest_us: f64,
    processor_us: f64,
    clean_us: f64,
    /// The causes of the longest calls, longest first.
    causes: Vec<Cause>,
}

/// The result of one allocator on one workload: one line of JSON, and one line of the table for each kind of call. It
/// has no figures if the allocator failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TailRow {
    /// Distinguishes the row from other lines.
    pub(crate) measure: &'static str,
    pub(crate) workload: &'static str,
    pub(crate) allocator: &'static str,
    /// The kinds of calls that the workload makes.
    pub(crate) calls: Vec<KindTail>,
    pub(crate) failed: Option<String>,
}

/// Returns the rows of a workload's runs, for each allocator that the system allowed to run the workload.
pub(crate) fn tails(workload: &Workload, all: &[Runs]) -> Vec<TailRow> {
    let row = |runs: &Runs| TailRow {
        measure: "tail",
        workload: workload.name,
        allocator: runs.allocator,
        calls: match runs.fault {
            None => (0..KINDS.len())
                .filter_map(|kind| over_rounds(kind, runs))
                .collect(),
            Some(_) => Vec::new(),
        },
        failed: runs.fault.as_ref().map(ToString::to_string),
    };
    let ran = |runs: &&Runs| !matches!(runs.fault, Some(RunFault::Skipped(_)));
    all.iter().filter(ran).map(row).collect()
}

/// Combines the calls of one kind of all rounds; `None` if there are no such calls.
fn over_rounds(kind: usize, runs: &Runs) -> Option<KindTail> {
    let rounds = runs.samples.iter();
    let rounds: Vec<&CallTail> = rounds
        .filter_map(|sample| Some(&sample.tail.as_ref()?[kind]))
        .collect();
    let count = rounds.iter().map(|round| round.count).min()?;
    let least = |figure: fn(&CallTail) -> u64| rounds.iter().map(|round| figure(round)).min();
    let longest = |round: &CallTail| round.longest.first().map_or(0, |call| call.wall_ns);
    let shortest = rounds.iter().min_by_key(|round| longest(round))?;
    let percentile = |figure: fn(&CallTail) -> u64, calls: u64| {
        let figures = rounds.iter().map(|round| micros(figure(round)));
        median(figures.collect()).filter(|_| count >= calls)
    };
    (count > 0).then_some(KindTail {
        call: KINDS[kind],
        count,
        p99_9_us: percentile(|round| round.p999_ns, 1_000),
        p99_99_us: percentile(|round| round.p9999_ns, 10_000),
        longest_us: micros(longest(shortest)),
        processor_us: micros(least(|round| round.processor_ns)?),
        clean_us: micros(least(|round| round.clean_ns)?),
        causes: shortest.longest.iter().map(LongCall::cause).collect(),
    })
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

/// Formats all rows. Each kind of call of a workload has one line for each allocator.
pub(crate) fn tail_table(all: &[TailRow], width: usize) -> String {
    let mut table = Table::words(["call", "allocator"]);
    for heading in ["p99.9", "p99.99", "longest", "processor", "clean"] {
        table.column(heading, Right);
    }
    table.column("causes of the longest", Left);
    for workload in in_order(all.iter().map(|row| row.workload)) {
        for kind in KINDS {
            for row in all.iter().filter(|row| row.workload == workload) {
                for tail in row.calls.iter().filter(|tail| tail.call == kind) {
                    let percentile = |figure: Option<f64>| figure.map_or_else(none, short);
                    table.row([
                        format!("{workload}, {kind}"),
                        row.allocator.to_owned(),
                        percentile(tail.p99_9_us),
                        percentile(tail.p99_99_us),
                        short(tail.longest_us),
                        short(tail.processor_us),
                        short(tail.clean_us),
                        counted(&tail.causes),
                    ]);
                }
            }
        }
    }
    let mut text = String::new();
    if all.iter().any(|row| !row.calls.is_empty()) {
        text = format!("{TITLE}\n{}\n", table.grouped(width));
    }
    for row in all {
        if let Some(why) = &row.failed {
            let (workload, allocator) = (row.workload, row.allocator);
            text.push_str(&format!(
                "failed: calls of {workload} on {allocator}: {why}\n"
            ));
        }
    }
    text
}

const TITLE: &str = "single calls in microseconds, plain build; processor: most processor time; clean: longest without page faults that kept its processor or slept";

/// Formats microseconds, with fewer decimals if they are many.
fn short(micros: f64) -> String {
    let decimals = if micros < 100.0 { 2 } else { 0 };
    format!("{micros:.decimals$}")
}

/// Counts the causes. The cause of the longest call comes first.
fn counted(causes: &[Cause]) -> String {
    let counts = in_order(causes.iter().copied()).into_iter().map(|cause| {
        let count = causes.iter().filter(|other| **other == cause).count();
        format!("{cause} {count}")
    });
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ANY_WIDTH;
    use crate::versus::process::parse;
    use crate::versus::{Profile, workloads};

    /// Returns a run whose `malloc` has these figures, and which makes no other calls.
    fn run(allocator: &str, malloc: &str) -> crate::versus::process::Sample {
        let none =
            r#"{"count":0,"p999_ns":0,"p9999_ns":0,"processor_ns":0,"clean_ns":0,"longest":[]}"#;
        let line = format!(
            r#"{{"workload":"boxes","allocator":"{allocator}","seconds":1.0,"operations":1,"answer":7,"tail":[{malloc},{none},{none}]}}"#
        );
        parse(&line, allocator, "boxes").unwrap()
    }

    fn malloc(count: u64, figures: [u64; 4], longest: &[[u64; 6]]) -> String {
        let [p999, p9999, processor, clean] = figures;
        let call = |[wall, processor, minor, major, voluntary, involuntary]: &[u64; 6]| {
            format!(
                r#"{{"wall_ns":{wall},"processor_ns":{processor},"minor_faults":{minor},"major_faults":{major},"voluntary_switches":{voluntary},"involuntary_switches":{involuntary}}}"#
            )
        };
        let longest: Vec<String> = longest.iter().map(call).collect();
        let longest = longest.join(",");
        format!(
            r#"{{"count":{count},"p999_ns":{p999},"p9999_ns":{p9999},"processor_ns":{processor},"clean_ns":{clean},"longest":[{longest}]}}"#
        )
    }

    fn runs(allocator: &'static str, mallocs: &[String]) -> Runs {
        Runs {
            allocator,
            profile: Profile::Tail,
            samples: mallocs
                .iter()
                .map(|malloc| run(allocator, malloc))
                .collect(),
            fault: None,
        }
    }

    #[test]
    fn a_cause_is_what_took_the_processor_or_else_page_faults() {
        let cause = |[
            wall_ns,
            processor_ns,
            minor_faults,
            major_faults,
            voluntary_switches,
            involuntary_switches,
        ]: [u64; 6]| {
            LongCall {
                wall_ns,
                processor_ns,
                minor_faults,
                major_faults,
                voluntary_switches,
                involuntary_switches,
            }
            .cause()
        };
        for (call, expected) in [
            ([9_000, 9_000, 0, 0, 0, 0], Cause::Work),
            ([9_000, 9_000, 3, 0, 0, 0], Cause::PageFaults),
            ([9_000, 1_000, 3, 0, 0, 1], Cause::SwitchedOut),
            ([9_000, 1_000, 3, 0, 1, 0], Cause::Slept),
            ([9_000, 1_000, 3, 0, 1, 1], Cause::SwitchedOut),
            ([9_000, 1_000, 0, 1, 1, 0], Cause::PageFaults),
            // The switch took the smaller part.
            ([9_000, 4_500, 0, 0, 0, 1], Cause::Work),
            ([9_000, 4_500, 1, 0, 1, 0], Cause::PageFaults),
            // A hypervisor takes the processor without a switch.
            ([9_000, 1_000, 0, 0, 0, 0], Cause::SwitchedOut),
            // The processor time of a short call is not exact.
            ([900, 0, 0, 0, 0, 0], Cause::Work),
        ] {
            assert_eq!(cause(call), expected, "{call:?}");
        }
    }

    #[test]
    fn percentiles_are_medians_and_longest_calls_those_of_the_best_round() {
        let larder = runs(
            "larder",
            &[
                malloc(
                    9_999,
                    [300, 9_000, 7_000, 5_000],
                    &[[9_000, 9_000, 0, 0, 0, 0]],
                ),
                malloc(
                    12_000,
                    [100, 4_000, 9_000, 1_000],
                    &[[4_000, 10, 0, 0, 0, 1], [3_000, 3_000, 0, 0, 0, 0]],
                ),
                malloc(
                    12_000,
                    [200, 5_000, 8_000, 9_000],
                    &[[900_000, 10, 0, 0, 0, 1]],
                ),
            ],
        );
        let mut talc = runs("talc", &[]);
        talc.fault = Some(RunFault::TimedOut { seconds: 9 });
        let all = tails(workloads::find("boxes").unwrap(), &[larder, talc]);
        let expected = KindTail {
            call: "malloc",
            count: 9_999,
            p99_9_us: Some(0.2),
            p99_99_us: None,
            longest_us: 4.0,
            processor_us: 7.0,
            clean_us: 1.0,
            causes: vec![Cause::SwitchedOut, Cause::Work],
        };
        assert_eq!(all[0].calls, [expected]);
        assert_eq!(all[1].calls, []);
        let text = tail_table(&all, ANY_WIDTH);
        let mut lines = text
            .lines()
            .skip_while(|line| !line.starts_with("boxes, malloc"));
        assert!(lines.next().is_some(), "{text}");
        let words: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
        let expected = "larder 0.20 - 4.00 7.00 1.00 switched out 1, work 1";
        assert_eq!(words.join(" "), expected, "{text}");
        assert!(
            text.contains("failed: calls of boxes on talc: did not end within 9 s"),
            "{text}"
        );
        assert!(!text.contains("realloc"), "{text}");
    }

    #[test]
    fn causes_are_counted_and_the_longest_calls_is_first() {
        let causes = [Cause::Slept, Cause::Work, Cause::Slept, Cause::PageFaults];
        assert_eq!(counted(&causes), "slept 2, work 1, page faults 1");
        assert_eq!(counted(&[]), "");
    }

    #[test]
    fn a_worker_that_times_no_calls_has_no_figures() {
        let line = r#"{"workload":"boxes","allocator":"larder","seconds":1.0,"operations":1,"answer":7,"tail":null}"#;
        let mut none = runs("larder", &[]);
        none.samples = vec![parse(line, "larder", "boxes").unwrap()];
        let all = tails(workloads::find("boxes").unwrap(), &[none]);
        assert_eq!((all[0].calls.as_slice(), &all[0].failed), (&[][..], &None));
        assert_eq!(tail_table(&all, ANY_WIDTH), "");
        assert_eq!(tail_table(&[], ANY_WIDTH), "");
    }
}
