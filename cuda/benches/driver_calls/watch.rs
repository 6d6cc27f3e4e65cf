//! Takes times and prints them.

use std::time::{Duration, Instant};

/// What is measured or tried.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// The time of each call.
    Times,
    /// Memory at two addresses.
    Alias,
    /// What a capture allows.
    Captures,
    /// Memory that goes while a kernel uses it, each case in a child.
    Unmap,
    /// One such case, in this process.
    UnmapCase(String),
}

/// What the command line says.
#[derive(Clone)]
pub(crate) struct Settings {
    json: bool,
    pub(crate) part: Part,
    pub(crate) rounds: usize,
    /// Largest amount of memory that is tried.
    pub(crate) max_bytes: u64,
}

impl Settings {
    pub(crate) fn from_args(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut settings = Self {
            json: false,
            part: Part::Times,
            rounds: 9,
            max_bytes: 1 << 30,
        };
        let mut args = args;
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => settings.json = true,
                "--alias" => settings.part = Part::Alias,
                "--captures" => settings.part = Part::Captures,
                "--unmap" => settings.part = Part::Unmap,
                "--unmap-case" => {
                    settings.part =
                        Part::UnmapCase(args.next().ok_or("--unmap-case wants a name")?);
                }
                "--rounds" => settings.rounds = number(args.next(), "--rounds")?,
                "--max-bytes" => settings.max_bytes = number(args.next(), "--max-bytes")?,
                // What `cargo bench` says to every program.
                "--bench" => {}
                other => {
                    return Err(format!(
                        "unknown argument {other:?}: --alias, --captures, --unmap, --json, --rounds N and \
                         --max-bytes N are known"
                    ));
                }
            }
        }
        settings.rounds = settings.rounds.max(1);
        Ok(settings)
    }
}

fn number<T: std::str::FromStr>(text: Option<String>, name: &str) -> Result<T, String> {
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("{name} wants a number"))
}

/// The times of one call.
#[derive(Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    /// Times one call.
    pub(crate) fn time<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let answer = call();
        self.0.push(start.elapsed());
        answer
    }

    /// Times `count` calls together, as the mean of one.
    pub(crate) fn time_each<R>(&mut self, count: usize, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let answer = call();
        let each = start.elapsed() / u32::try_from(count).unwrap_or(u32::MAX).max(1);
        self.0.push(each);
        answer
    }
}

/// Prints one line a call, in the order of measuring.
pub(crate) struct Report {
    pub(crate) settings: Settings,
    what: String,
    lines: usize,
}

impl Report {
    pub(crate) fn new(settings: Settings, what: &str) -> Self {
        if !settings.json {
            println!("{what}");
            if settings.part == Part::Times {
                println!(
                    "microseconds a call: median (min to max) of {} rounds\n",
                    settings.rounds
                );
            }
        }
        Self {
            settings,
            what: what.to_owned(),
            lines: 0,
        }
    }

    /// One call's line. `case` says with what it was called.
    pub(crate) fn line(&mut self, call: &str, case: &str, times: Times) {
        let mut all: Vec<f64> = times
            .0
            .iter()
            .map(|time| time.as_secs_f64() * 1e6)
            .collect();
        all.sort_by(f64::total_cmp);
        let (Some(least), Some(median), Some(max)) =
            (all.first(), all.get(all.len() / 2), all.last())
        else {
            return;
        };
        self.lines += 1;
        if self.settings.json {
            let what = self.what.replace('"', "'");
            println!(
                "{{\"driver\":\"{what}\",\"call\":\"{call}\",\"case\":\"{case}\",\"median_us\":{median:.3},\
                 \"min_us\":{least:.3},\"max_us\":{max:.3},\"rounds\":{}}}",
                all.len()
            );
        } else {
            println!("{call:<33} {case:<42} {median:>12.2}  ({least:.2} to {max:.2})");
        }
    }

    /// Something that was found out and is no time.
    pub(crate) fn note(&mut self, call: &str, case: &str, found: &str) {
        self.lines += 1;
        if self.settings.json {
            let what = self.what.replace('"', "'");
            println!(
                "{{\"driver\":\"{what}\",\"call\":\"{call}\",\"case\":\"{case}\",\"found\":\"{found}\"}}"
            );
        } else {
            println!("{call:<33} {case:<42} {found}");
        }
    }

    pub(crate) fn end(&self) {
        if !self.settings.json {
            println!("\n{} lines", self.lines);
        }
    }
}

/// A size in words.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
