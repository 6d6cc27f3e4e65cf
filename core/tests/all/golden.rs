//! Scripts with recorded outcomes. A script is a text file of cases; each line is an operation and, after a bar, its
//! outcome.
//!
//! ```text
//! = what the case shows
//! # A comment.
//! alloc a=2 | 0; create 1x2
//! repeat 3
//! free a
//! alloc a=2 | 0
//! end
//! ```
//!
//! Each case has a new player. All rounds of a repeated part must have the same outcomes; `#n` is the number of the
//! round. A test fails and shows each line whose outcome differs from the file's. With `LARDER_REWRITE=1`, it writes
//! the actual outcomes to the file instead.

use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};

/// Carries out the operations of one case.
pub(crate) trait Player {
    fn new() -> Self;

    /// Carries out an operation with its words. Returns its outcome, which may be empty or begin with `; `.
    fn carry_out(&mut self, operation: &str, words: &[&str]) -> String;

    /// Carries out the operation of a line. Returns its outcome, which may be empty.
    fn play(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let outcome = self.carry_out(words[0], &words[1..]);
        outcome.strip_prefix("; ").unwrap_or(&outcome).into()
    }
}

/// Returns the word after `key`.
pub(crate) fn option<'w>(words: &[&'w str], key: &str) -> Option<&'w str> {
    let at = words.iter().position(|word| *word == key)?;
    Some(words[at + 1])
}

/// Reads a number, `max`, or `max-N`.
pub(crate) fn number(text: &str) -> u64 {
    match text.strip_prefix("max-") {
        Some(less) => u64::MAX - number(less),
        None if text == "max" => u64::MAX,
        None => text
            .parse()
            .unwrap_or_else(|_| panic!("{text} is no number")),
    }
}

/// The values that an outcome mentions when they change, by name. Each is 0 at first.
#[derive(Default)]
pub(crate) struct Changes(HashMap<String, String>);

impl Changes {
    /// Returns `; name value` if the value has changed.
    pub(crate) fn note(&mut self, name: &str, now: impl Display) -> String {
        let now = now.to_string();
        let before = self.0.insert(name.into(), now.clone());
        if before.as_deref().unwrap_or("0") == now {
            return String::new();
        }
        format!("; {name} {now}")
    }
}

/// Defines a test for each case of a script, named after the case.
macro_rules! cases {
    ($player:ty, $file:literal: $($case:ident),* $(,)?) => {
        $(
            #[test]
            fn $case() {
                crate::golden::run_case::<$player>($file, stringify!($case));
            }
        )*

        #[test]
        fn each_case_of_the_script_is_a_test() {
            let cases = [$(stringify!($case)),*];
            assert_eq!(crate::golden::cases_of($file), cases);
        }
    };
}

pub(crate) use cases;

/// Plays all cases of a file in `tests/all`.
pub(crate) fn run<P: Player>(file: &str) {
    play::<P>(file, |_| true);
}

/// Plays one case of a file, or all of its cases if the file is to be rewritten.
pub(crate) fn run_case<P: Player>(file: &str, case: &str) {
    play::<P>(file, |other| rewrites() || other == case);
}

pub(crate) fn cases_of(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(path(file)).unwrap();
    let cases = text.lines().filter_map(|line| line.strip_prefix("= "));
    cases.map(str::to_owned).collect()
}

fn path(file: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all");
    folder.join(file)
}

fn rewrites() -> bool {
    std::env::var_os("LARDER_REWRITE").is_some()
}

fn play<P: Player>(file: &str, plays: impl Fn(&str) -> bool) {
    let text = std::fs::read_to_string(path(file)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut script = Script {
        file,
        case: "",
        written: String::new(),
        wrong: String::new(),
    };
    let (mut player, mut is_played, mut at) = (P::new(), true, 0);
    while at < lines.len() {
        if let Some(case) = lines[at].strip_prefix("= ") {
            is_played = plays(case);
            script.case = case;
            player = P::new();
        }
        if !is_played || lines[at].is_empty() || lines[at].starts_with(['#', '=']) {
            script.written += &format!("{}\n", lines[at]);
            at += 1;
        } else if let Some(times) = lines[at].strip_prefix("repeat ") {
            let length = lines[at..].iter().position(|line| *line == "end");
            let end = at + length.expect("a repeated part has an end");
            script.written += &format!("{}\n", lines[at]);
            let times = times.parse().expect("how often a part is repeated");
            script.play_times(times, at + 1, &lines[at + 1..end], &mut player);
            script.written += "end\n";
            at = end + 1;
        } else {
            script.play_times(1, at, &lines[at..=at], &mut player);
            at += 1;
        }
    }
    script.end();
}

/// A script that is being played.
struct Script<'s> {
    file: &'s str,
    case: &'s str,
    /// The text of the file with the actual outcomes.
    written: String,
    /// The lines whose outcomes differ from the file's.
    wrong: String,
}

/// Prints the line that is being played if the player panics.
struct Place<'l>(&'l str);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the line {}", self.0);
        }
    }
}

impl Script<'_> {
    /// Plays `lines`, which begin at index `first` in the file, `times` times.
    fn play_times(&mut self, times: u32, first: usize, lines: &[&str], player: &mut impl Player) {
        for time in 1..=times {
            for (line, number) in lines.iter().zip(first + 1..) {
                let (operation, expected) = line.split_once('|').unwrap_or((line, ""));
                let operation = operation.trim();
                let numbered = operation.replace("#n", &time.to_string());
                let place = format!("{}:{number}: {numbered} ({})", self.file, self.case);
                let guard = Place(&place);
                let outcome = player.play(&numbered);
                drop(guard);
                if outcome != expected.trim() {
                    let expected = expected.trim();
                    let text = format!("{place}\n  expected: {expected}\n  happened: {outcome}");
                    writeln!(self.wrong, "{text}").unwrap();
                }
                if time == 1 {
                    self.written += operation;
                    self.written += if outcome.is_empty() { "" } else { " | " };
                    self.written += &format!("{outcome}\n");
                }
            }
        }
    }

    fn end(self) {
        let Self {
            file,
            written,
            wrong,
            ..
        } = self;
        if rewrites() && !wrong.is_empty() {
            std::fs::write(path(file), written).unwrap();
        } else if !wrong.is_empty() {
            panic!(
                "{wrong}LARDER_REWRITE=1 writes what happened into {file}: read the difference before you keep it"
            );
        }
    }
}
