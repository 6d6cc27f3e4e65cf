//! The allocations of well-known crates for Markdown, TOML and regular expressions.

use std::fmt::Write;

use pulldown_cmark::{Options, Parser, html};
use regex::Regex;
use toml_edit::{DocumentMut, value};

use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::digest;

const GUIDE: &str = include_str!("../../corpus/guide.md.txt");

/// Number of repetitions in a full run.
const PAGES: u32 = 700;
const DOCUMENTS: u32 = 100;
const COMPILATIONS: u32 = 400;

/// Number of packages in the document of `toml`.
const PACKAGES: usize = 300;

const PATTERNS: [&str; 8] = [
    r"\b[A-Za-z_][A-Za-z0-9_]*\b",
    r"(?i)chunk(s|ed)?\s+(is|are|of)",
    r"(\d{1,3}(,\d{3})*|\d+)(\.\d+)?",
    r"`[^`\n]{1,40}`",
    r"\p{Lu}\p{Ll}+(\s\p{Lu}\p{Ll}+)*",
    r"(alloc|free|grow|release|split|join|reserve|commit|refill|flush)(s|ed|ing)?",
    r"^\s*[*|-]\s+(?P<item>[^|\n]+)",
    r"(?s)```.{0,200}?```",
];

pub fn markdown(scale: Scale) -> Outcome {
    let pages = scale.of(PAGES);
    let mut bytes = 0;
    let mut page = String::new();
    let clock = Clock::start();
    for _ in 0..pages {
        page = String::new();
        html::push_html(&mut page, Parser::new_ext(GUIDE, Options::all()));
        bytes += page.len() as u64;
    }
    let outcome = clock.stop(pages as u64, bytes);
    Outcome {
        answer: bytes ^ digest(&page),
        ..outcome
    }
}

pub fn toml(scale: Scale) -> Outcome {
    let documents = scale.of(DOCUMENTS);
    let text = packages();
    let mut bytes = 0;
    let mut printed = String::new();
    let clock = Clock::start();
    for number in 0..documents {
        let mut document: DocumentMut = match text.parse() {
            Ok(document) => document,
            Err(error) => panic!("the document is not TOML: {error}"),
        };
        document["version"] = value(number as i64);
        printed = document.to_string();
        bytes += printed.len() as u64;
    }
    let outcome = clock.stop(documents as u64, bytes);
    Outcome {
        answer: bytes ^ digest(&printed),
        ..outcome
    }
}

/// Returns a document like a lock file.
fn packages() -> String {
    let mut random = Random::new(300);
    let mut text = String::from("# Written by a program.\nversion = 0\n");
    for number in 0..PACKAGES {
        let _ = write!(
            text,
            "\n[[package]]\nname = \"package-{number}\"\nversion = \"{}.{}.{}\"\nchecksum = \"{:016x}{:016x}\"\ndependencies = [\n",
            random.below(4),
            random.below(30),
            random.below(10),
            random.next(),
            random.next(),
        );
        for _ in 0..random.below(6) {
            let _ = writeln!(text, " \"package-{}\",", random.below(PACKAGES));
        }
        text.push_str("]\n");
    }
    text
}

pub fn regex(scale: Scale) -> Outcome {
    let compilations = scale.of(COMPILATIONS);
    // A page is enough for the engines to allocate their working memory.
    let page = GUIDE.get(..2000).unwrap_or(GUIDE);
    let mut found = 0;
    let clock = Clock::start();
    for number in 0..compilations {
        let pattern = PATTERNS[number % PATTERNS.len()];
        let regex = match Regex::new(pattern) {
            Ok(regex) => regex,
            Err(error) => panic!("`{pattern}` is no pattern: {error}"),
        };
        let hits = regex.find_iter(page);
        found += hits.map(|hit| hit.len() as u64).sum::<u64>();
    }
    clock.stop(compilations as u64, found)
}
