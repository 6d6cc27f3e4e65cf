//! [`Words`]: one act of a program, as words. The language is described at the head of [`programs`](super).

use std::error::Error;
use std::fmt;

/// The result of an act. The error, of any type, says what was wrong.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The error for a thing that does not exist or cannot be used now. A drawn program skips the act.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) &'static str);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "missing: {}", self.0)
    }
}

impl Error for Missing {}

/// The rest of an act.
#[derive(Clone)]
pub(crate) struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    pub(crate) fn new(line: &'a str) -> Self {
        Self(line.split_whitespace())
    }

    pub(crate) fn next(&mut self) -> Outcome<&'a str> {
        self.0.next().ok_or_else(|| "a word is missing".into())
    }

    pub(crate) fn maybe(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    /// Takes a stream: `a`, `b`, `c` or `d`.
    pub(crate) fn stream(&mut self) -> Outcome<usize> {
        stream(self.next()?)
    }

    /// Takes a number, with `K`, `M` or `G` for powers of 1024; `all` is the largest.
    pub(crate) fn number(&mut self) -> Outcome<u64> {
        number(self.next()?)
    }

    pub(crate) fn number_or(&mut self, otherwise: u64) -> Outcome<u64> {
        self.maybe().map_or(Ok(otherwise), number)
    }

    pub(crate) fn part(&mut self) -> Outcome<Part> {
        match self.maybe() {
            None | Some("head") => Ok(Part::Head),
            Some("middle") => Ok(Part::Middle),
            Some("tail") => Ok(Part::Tail),
            Some(other) => Err(format!("no part of a block: {other}").into()),
        }
    }

    /// Takes an option, `key=value` or `key`.
    pub(crate) fn option(&mut self) -> Option<(&'a str, &'a str)> {
        self.maybe()
            .map(|word| word.split_once('=').unwrap_or((word, "")))
    }
}

pub(crate) fn stream(word: &str) -> Outcome<usize> {
    let place = "abcd".find(word).filter(|_| word.len() == 1);
    place.ok_or_else(|| format!("no stream: {word}").into())
}

pub(crate) fn number(word: &str) -> Outcome<u64> {
    if word == "all" {
        return Ok(u64::MAX);
    }
    let digits = word.trim_end_matches(['K', 'M', 'G']);
    let unit = match &word[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return Err(format!("no unit: {word}").into()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("not a number: {word}"))?;
    Ok(number * unit)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Head,
    Middle,
    Tail,
}

impl Part {
    /// Returns the part's start in a block of `bytes`, and its length, which is at most `max`.
    pub(crate) fn of(self, bytes: u64, max: u64) -> (u64, u64) {
        let length = bytes.min(max);
        let from = match self {
            Self::Head => 0,
            // Block sizes are multiples of 256.
            Self::Middle => (bytes - length) / 2 / 256 * 256,
            Self::Tail => bytes - length,
        };
        (from, length)
    }
}
