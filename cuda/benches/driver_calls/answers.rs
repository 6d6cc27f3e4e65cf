//! The lines that a probe prints, one for each question: `answer: question | answer | number | assumption`.

use std::fmt::Display;
use std::time::Duration;

/// An assumption of Larder, and whether an answer confirms it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Assumption {
    words: &'static str,
    holds: bool,
}

impl Assumption {
    pub(crate) const fn new(words: &'static str, holds: bool) -> Self {
        Self { words, holds }
    }
}

/// Prints an answer that tests no assumption.
pub(crate) fn say(question: &str, answer: impl Display, number: impl Display) {
    println!("answer: {question} | {answer} | {number} | -");
}

/// Prints an answer that tests an assumption.
pub(crate) fn decide(
    question: &str,
    answer: impl Display,
    number: impl Display,
    assumption: Assumption,
) {
    let Assumption { words, holds } = assumption;
    let verdict = if holds { "holds" } else { "FALLS" };
    println!("answer: {question} | {answer} | {number} | {verdict}: {words}");
}

/// Formats a time in microseconds, with two decimals.
pub(crate) fn micros(time: Duration) -> String {
    format!("{:.2} us", time.as_secs_f64() * 1e6)
}

/// Returns the median, or zero for an empty list.
pub(crate) fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
