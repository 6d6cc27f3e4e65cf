//! [`LoadReport`]: the table.

use std::fmt;

/// The measurements of one server.
#[derive(Debug, Default)]
pub struct ServerRun {
    /// The time of each answer, in microseconds.
    pub times: Vec<u32>,
    /// The time under load.
    pub seconds: f64,
    /// Resident bytes, read four times a second.
    pub rss_bytes: Vec<u64>,
    /// Resident bytes at the end of each idle phase.
    pub idle_rss_bytes: Vec<u64>,
    pub end_rss_bytes: u64,
    pub peak_rss_bytes: u64,
    /// Text bytes of the documents that are live at the end.
    pub end_text_bytes: u64,
}

/// All runs by server, in the order of their first runs.
#[derive(Debug, Default)]
pub struct LoadReport(Vec<(String, Vec<ServerRun>)>);

impl LoadReport {
    pub fn add(&mut self, name: &str, mut run: ServerRun) {
        run.times.sort_unstable();
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, runs)) => runs.push(run),
            None => self.0.push((name.to_owned(), vec![run])),
        }
    }
}

/// Marks, in the order of their heights.
const MARKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

impl LoadReport {
    /// Draws the first run of each server as a line of marks, all to one scale.
    fn draw(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = || {
            self.0
                .iter()
                .filter_map(|(name, runs)| Some((name, runs.first()?)))
        };
        let all = first().flat_map(|(_, run)| &run.rss_bytes);
        let most = all.copied().max().unwrap_or(0).max(1);
        let whole = mib(most);
        writeln!(
            f,
            "memory over time, a mark each quarter of a second; █ is {whole:.0} MiB"
        )?;
        for (name, run) in first() {
            let mark = |bytes: &u64| MARKS[(bytes * 7 / most) as usize];
            let marks: String = run.rss_bytes.iter().map(mark).collect();
            writeln!(f, "{name:14} {marks}")?;
        }
        Ok(())
    }
}

impl ServerRun {
    fn requests_a_second(&self) -> f64 {
        self.times.len() as f64 / self.seconds
    }

    /// Returns a percentile of the sorted times, in milliseconds.
    fn quantile(&self, hundredths: usize) -> f64 {
        let at = (self.times.len() * hundredths / 100).min(self.times.len().saturating_sub(1));
        self.times
            .get(at)
            .map_or(f64::NAN, |time| f64::from(*time) / 1000.0)
    }

    fn between(&self) -> f64 {
        median(self.idle_rss_bytes.iter().map(|bytes| mib(*bytes)))
    }
}

/// Prints medians over the rounds.
impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:14} {:>9} {:>7} {:>7} {:>9} {:>12} {:>8} {:>9} {:>10}",
            "allocator",
            "answers/s",
            "p50 ms",
            "p99 ms",
            "peak MiB",
            "between MiB",
            "end MiB",
            "text MiB",
            "answers"
        )?;
        for (name, runs) in &self.0 {
            let of = |value: fn(&ServerRun) -> f64| median(runs.iter().map(value));
            writeln!(
                f,
                "{name:14} {:9.0} {:7.2} {:7.2} {:9.1} {:12.1} {:8.1} {:9.1} {:10}",
                of(ServerRun::requests_a_second),
                of(|run| run.quantile(50)),
                of(|run| run.quantile(99)),
                of(|run| mib(run.peak_rss_bytes)),
                of(ServerRun::between),
                of(|run| mib(run.end_rss_bytes)),
                of(|run| mib(run.end_text_bytes)),
                runs.iter().map(|run| run.times.len()).sum::<usize>(),
            )?;
        }
        writeln!(f, "every answer was checked and right")?;
        self.draw(f)
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quantiles() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        let mut report = LoadReport::default();
        let run = ServerRun {
            rss_bytes: vec![0, 1, 4 << 20, 8 << 20],
            times: (0..1000).rev().map(|time| time * 1000).collect(),
            seconds: 2.0,
            ..ServerRun::default()
        };
        report.add("a", run);
        let run = &report.0[0].1[0];
        assert_eq!((run.quantile(50), run.quantile(99)), (500.0, 990.0));
        let text = report.to_string();
        assert!(text.contains("      500  500.00  990.00"), "{text}");
        assert!(
            text.ends_with("█ is 8 MiB\na              ▁▁▄█\n"),
            "{text}"
        );
    }
}
