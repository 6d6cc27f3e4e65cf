//! The figures of heaps on traces: lines of JSON, and a table with a sentence.

use serde::Serialize;

use super::{HeapFault, HeapRun, HeapRuns, HeapSpec, SYSTEM};
use crate::numbers::mebibytes;
use crate::report::{Left, Right, Shown, Table, decimals};

/// One heap on one trace: a line of JSON and a row of the table. The figures are medians.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct HeapRow {
    pub(crate) trace: String,
    pub(crate) heap: &'static str,
    pub(crate) operations: Option<u64>,
    pub(crate) ns_per_operation: Option<f64>,
    pub(crate) peak_live_bytes: u64,
    pub(crate) peak_resident_bytes: Option<u64>,
    /// Mean over the events, and the value after the last one.
    pub(crate) mean_resident_bytes: Option<u64>,
    pub(crate) last_resident_bytes: Option<u64>,
    /// Resident bytes over the events of one run.
    pub(crate) resident_by_event: Vec<(u64, u64)>,
    /// Why there are no figures.
    pub(crate) failed: Option<String>,
}

/// The rows of all traces.
#[derive(Debug, Default)]
pub(crate) struct HeapReport {
    pub(crate) rows: Vec<HeapRow>,
    /// The last heap that failed, and how.
    pub(crate) failed: Option<String>,
}

impl HeapReport {
    /// Adds the runs of one heap. Returns its row.
    pub(crate) fn add(
        &mut self,
        trace: &str,
        peak_live_bytes: u64,
        spec: &HeapSpec,
        runs: HeapRuns,
    ) -> &HeapRow {
        if let Err(fault @ HeapFault::Failed(_)) = &runs {
            self.failed = Some(format!("{trace}, {}: {fault}", spec.name));
        }
        let failed = runs.as_ref().err().map(ToString::to_string);
        let runs = runs.unwrap_or_default();
        let all = |figure: &dyn Fn(&HeapRun) -> Option<u64>| median(runs.iter().filter_map(figure));
        let operations = runs.first().map(|run| run.operations);
        let nanoseconds = all(&|run| Some(run.nanoseconds));
        self.rows.push(HeapRow {
            trace: trace.to_owned(),
            heap: spec.name,
            operations,
            ns_per_operation: nanoseconds
                .zip(operations.filter(|operations| *operations > 0))
                .map(|(time, operations)| time as f64 / operations as f64),
            peak_live_bytes,
            peak_resident_bytes: all(&|run| run.peak_resident_bytes),
            mean_resident_bytes: all(&mean_resident),
            last_resident_bytes: all(&|run| Some(run.resident.last()?.1)),
            resident_by_event: runs
                .into_iter()
                .next_back()
                .map_or(Vec::new(), |run| run.resident),
            failed,
        });
        &self.rows[self.rows.len() - 1]
    }

    /// Returns the table, what failed, and a sentence for each trace. An error names an unknown
    /// column.
    pub(crate) fn text(&self, shown: &Shown) -> Result<String, String> {
        let mut table = Table::default();
        table.column("trace", Left);
        table.column("heap", Left);
        for heading in USUAL {
            table.column(heading, Right);
        }
        for row in self.rows.iter().filter(|row| row.failed.is_none()) {
            let mib = |bytes: Option<u64>| decimals(bytes.map(mebibytes), 1);
            let live = row.peak_live_bytes.max(1) as f64;
            table.row([
                row.trace.clone(),
                row.heap.to_owned(),
                decimals(row.ns_per_operation, 1),
                mib(Some(row.peak_live_bytes)),
                mib(row.peak_resident_bytes),
                decimals(row.peak_resident_bytes.map(|peak| peak as f64 / live), 3),
                mib(row.mean_resident_bytes),
                mib(row.last_resident_bytes),
            ]);
        }
        shown.choose(&mut table, 2, &USUAL)?;
        let mut text = table.grouped(shown.width());
        for row in &self.rows {
            if let Some(why) = &row.failed {
                text.push_str(&format!("\n{}, {}: {why}\n", row.trace, row.heap));
            }
        }
        let traces = self.rows.chunk_by(|row, next| row.trace == next.trace);
        for sentence in traces.filter_map(verdict) {
            text.push_str(&format!("\n{sentence}\n"));
        }
        Ok(text)
    }
}

/// The columns of figures.
const USUAL: [&str; 6] = [
    "ns/op",
    "live MiB",
    "peak MiB",
    "peak/live",
    "mean MiB",
    "last MiB",
];

/// Compares Larder with the heaps of others on one trace, which one thread plays.
fn verdict(rows: &[HeapRow]) -> Option<String> {
    let ours = rows.iter().find(|row| row.heap == "larder")?;
    let (time, peak) = (ours.ns_per_operation?, ours.peak_resident_bytes? as f64);
    let others = rows.iter().filter(|row| !row.heap.starts_with("larder"));
    let others = others.filter_map(|row| {
        let (their_time, their_peak) = (row.ns_per_operation?, row.peak_resident_bytes?);
        let name = if row.heap == SYSTEM {
            "the C library"
        } else {
            row.heap
        };
        Some(format!(
            "{:.2} of {name}'s time and {:.2} of its peak",
            time / their_time,
            peak / their_peak.max(1) as f64
        ))
    });
    let others: Vec<String> = others.collect();
    (!others.is_empty()).then(|| {
        format!(
            "{}: on one thread, Larder takes {}; sharing between threads is not measured.",
            ours.trace,
            others.join(", ")
        )
    })
}

fn median(figures: impl Iterator<Item = u64>) -> Option<u64> {
    let mut figures: Vec<u64> = figures.collect();
    figures.sort_unstable();
    figures.get(figures.len() / 2).copied()
}

/// Returns the mean of the resident bytes, each sample weighted by the events since the one before.
fn mean_resident(run: &HeapRun) -> Option<u64> {
    let mut before = 0;
    let mut sum = 0_u128;
    for (events, bytes) in &run.resident {
        sum += u128::from(events - before) * u128::from(*bytes);
        before = *events;
    }
    u64::try_from(sum.checked_div(u128::from(before))?).ok()
}

#[cfg(test)]
mod tests {
    use super::super::HEAPS;
    use super::*;

    fn run(nanoseconds: u64, peak: u64, resident: &[(u64, u64)]) -> HeapRun {
        HeapRun {
            operations: 100,
            nanoseconds,
            peak_resident_bytes: Some(peak << 20),
            resident: resident.to_vec(),
        }
    }

    #[test]
    fn figures_are_medians_and_a_sentence_compares_with_the_heaps_that_ran() {
        let mut report = HeapReport::default();
        let mut add = |name: &str, runs| {
            let spec = HEAPS.iter().find(|spec| spec.name == name).unwrap();
            report.add("run", 8 << 20, spec, runs).clone()
        };
        let resident = [(10, 1 << 20), (100, 2 << 20)];
        let ours = [500, 100, 300].map(|time| run(time, 9, &resident)).to_vec();
        let row = add("larder", Ok(ours));
        assert_eq!(row.ns_per_operation, Some(3.0));
        assert_eq!(row.last_resident_bytes, Some(2 << 20));
        // A tenth of the events at 1 MiB, and the rest at 2.
        assert_eq!(row.mean_resident_bytes, Some(19 * (1 << 20) / 10));
        add("larder-memory", Ok(vec![run(50, 3, &[])]));
        add("system", Ok(vec![run(400, 6, &[])]));
        add("jemalloc", Err(HeapFault::NotInstalled { library: "libj" }));
        add("mimalloc", Ok(vec![run(200, 18, &[])]));
        let text = report.text(&Shown::all()).unwrap();
        let sentence = "run: on one thread, Larder takes 0.75 of the C library's time and 1.50 of its peak, 1.50 of mimalloc's time and 0.50 of its peak; sharing between threads is not measured.\n";
        assert!(text.ends_with(sentence), "{text}");
        assert!(
            text.contains("run, jemalloc: libj is not installed\n"),
            "{text}"
        );
        assert_eq!(report.failed, None);
    }

    #[test]
    fn a_heap_that_fails_has_no_figures_and_is_named() {
        let mut report = HeapReport::default();
        let failed = Err(HeapFault::Failed("no".to_owned()));
        let row = report.add("run", 8, &HEAPS[0], failed);
        assert_eq!((row.operations, row.mean_resident_bytes), (None, None));
        assert!(report.failed.as_ref().unwrap().starts_with("run, larder: "));
    }
}
