//! The programs: each turns an input into text, with several threads whose data cross between them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use ignore::{WalkBuilder, WalkState};
use quote::ToTokens;
use rayon::prelude::*;
use regex::Regex;
use serde_json::{Map, Value, json};

use crate::common::Random;

const THREADS: usize = 4;

/// Runs a program by name.
pub(crate) fn run(program: &str, input: &str) -> String {
    let files: Vec<&str> = input.split_terminator('\0').collect();
    let work = match program {
        "json" => json,
        "regex" => regex,
        "syn" => syn,
        "search" => return search(),
        other => panic!("no program is called {other}"),
    };
    in_turns(&files, work)
}

/// Runs `work` for every file, in threads that take them in turns, and joins the results in order.
/// The results are made by one thread and freed by another.
fn in_turns(files: &[&str], work: fn(usize, &str) -> Vec<String>) -> String {
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for first in 0..THREADS {
            let sender = sender.clone();
            scope.spawn(move || {
                for (number, file) in files.iter().enumerate().skip(first).step_by(THREADS) {
                    sender.send((number, work(number, file))).unwrap();
                }
            });
        }
        drop(sender);
        let results: BTreeMap<usize, Vec<String>> = receiver.into_iter().collect();
        let mut text = String::new();
        for (number, lines) in results {
            writeln!(text, "== {number}\n{}", lines.join("\n")).unwrap();
        }
        text
    })
}

/// A document about a file: nested, with long and short strings, numbers and empty lists.
fn document(random: &mut Random, lines: &[&str], depth: usize) -> Value {
    match random.next(if depth == 0 { 4 } else { 7 }) {
        0 => Value::Null,
        1 => json!(random.next(1 << 40) as f64 / 8.0),
        2 => json!(lines.get(random.next(lines.len() + 1))),
        3 => json!({ "line": random.next(lines.len() + 1), "text": "\u{fffd}\n\t\"" }),
        4 => (0..random.next(20))
            .map(|_| document(random, lines, depth - 1))
            .collect(),
        _ => {
            let entries = (0..random.next(20)).map(|key| {
                (
                    format!("{key}-{}", random.next(1000)),
                    document(random, lines, depth - 1),
                )
            });
            Value::Object(entries.collect::<Map<_, _>>())
        }
    }
}

fn json(number: usize, file: &str) -> Vec<String> {
    let mut random = Random::new(number as u64 + 1);
    let lines: Vec<&str> = file.lines().collect();
    let mut values: Vec<Value> = (0..4).map(|_| document(&mut random, &lines, 4)).collect();
    let mut written = Vec::new();
    for _ in 0..3 {
        let text = serde_json::to_string_pretty(&values).unwrap();
        // Read by another thread; what it makes is changed and dropped here.
        let read: Vec<Value> = thread::scope(|scope| {
            scope
                .spawn(|| serde_json::from_str(&text).unwrap())
                .join()
                .unwrap()
        });
        assert_eq!(read, values);
        values = read;
        let at = random.next(values.len());
        let moved = values[at].take();
        values.swap_remove(random.next(values.len()));
        values.push(json!({ "moved": moved, "whole": document(&mut random, &lines, 4) }));
        written.push(text);
    }
    written.push(values.iter().map(Value::to_string).collect());
    written
}

fn regex(number: usize, file: &str) -> Vec<String> {
    let mut found = Vec::new();
    // Expressions that need different engines: literals, classes of Unicode, captures, repeats.
    let fixed = [
        r"(?m)^\s*//[/!]?\s*(.{0,30})",
        r"\b\p{Lu}\w+\b",
        r"(\w+)::(\w+)(?:::(\w+))?",
        r"(?i)safety: [^.]{3,40}\.",
    ];
    let words = file.split_whitespace().skip(number).step_by(97).take(8);
    let built = words.map(|word| {
        format!(
            r"(?:{}|[[:punct:]]{{3,}})\s+(\S{{1,12}})",
            regex::escape(word)
        )
    });
    for pattern in fixed.into_iter().map(String::from).chain(built) {
        let regex = Regex::new(&pattern).unwrap();
        // One expression used by two threads: each keeps a cache of its own in it.
        let middle = file.match_indices('\n').nth(file.lines().count() / 2);
        let (upper, lower) = file.split_at(middle.map_or(0, |(at, _)| at));
        let halves = thread::scope(|scope| {
            let other = scope.spawn(|| captures(&regex, lower));
            [captures(&regex, upper), other.join().unwrap()]
        });
        found.push(halves.concat());
        found.push(regex.replace_all(upper, "<$1>").len().to_string());
    }
    found
}

fn captures(regex: &Regex, text: &str) -> String {
    let mut found = String::new();
    for capture in regex.captures_iter(text).take(400) {
        let parts: Vec<&str> = capture.iter().flatten().map(|part| part.as_str()).collect();
        writeln!(found, "{}", parts.join("|")).unwrap();
    }
    found
}

fn syn(_: usize, file: &str) -> Vec<String> {
    let tree = match syn::parse_file(file) {
        Ok(tree) => tree,
        Err(error) => return vec![error.to_string()],
    };
    let copy = tree.clone();
    let printed = tree.to_token_stream().to_string();
    drop(tree);
    // What was printed parses again, to the same.
    let again = syn::parse_file(&printed)
        .unwrap()
        .to_token_stream()
        .to_string();
    assert_eq!(copy.to_token_stream().to_string(), again);
    copy.items
        .iter()
        .map(|item| item.to_token_stream().to_string())
        .chain([printed])
        .collect()
}

/// A search as programs do it that look through sources: a walk in parallel that obeys what is to be
/// ignored, then each file searched, its words counted and its hits written as JSON, by a pool of
/// threads that steal work from each other.
fn search() -> String {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let expressions = [
        r"\bfn (\w+)",
        r"(?i)\b(memor\w*|alloc\w*)\b",
        r"\b(\w+)::(\w+)\(",
    ];
    let expressions = expressions.map(|expression| Regex::new(expression).unwrap());
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build();
    pool.unwrap().install(|| {
        let mut paths = walk(&workspace);
        paths.par_sort();
        assert!(paths.len() > 100, "sources are missing");
        let files: Vec<Value> = paths
            .par_iter()
            .map(|path| hits(path.strip_prefix(&workspace).unwrap(), path, &expressions))
            .collect();
        let count = |mut counts: BTreeMap<String, u64>, file: &Value| {
            for hit in file["hits"].as_array().into_iter().flatten() {
                let word = hit["text"].as_str().unwrap_or("").to_owned();
                *counts.entry(word).or_default() += 1;
            }
            counts
        };
        let join = |mut one: BTreeMap<String, u64>, other: BTreeMap<String, u64>| {
            for (word, times) in other {
                *one.entry(word).or_default() += times;
            }
            one
        };
        let counts = files
            .par_iter()
            .fold(BTreeMap::new, count)
            .reduce(BTreeMap::new, join);
        let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
        counts.par_sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
        let lines = files.iter().map(Value::to_string);
        let words = counts
            .iter()
            .map(|(word, times)| format!("{word}: {times}"));
        lines.chain(words).collect::<Vec<_>>().join("\n")
    })
}

/// Every Rust source below a folder, found by several threads, in any order.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let (sender, receiver) = mpsc::channel();
    let mut builder = WalkBuilder::new(folder);
    builder.threads(THREADS).require_git(false);
    builder.build_parallel().run(|| {
        let sender = sender.clone();
        Box::new(move |entry| {
            let path = entry.unwrap().into_path();
            if path.extension().is_some_and(|end| end == "rs") {
                sender.send(path).unwrap();
            }
            WalkState::Continue
        })
    });
    drop(sender);
    receiver.into_iter().collect()
}

/// What of a file matches, line by line.
fn hits(name: &Path, path: &Path, expressions: &[Regex]) -> Value {
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let hits: Vec<Value> = lines
        .par_iter()
        .enumerate()
        .flat_map_iter(|(number, line)| {
            let found = expressions.iter().flat_map(|found| found.find_iter(line));
            let found: Vec<Value> = found
                .map(|hit| json!({ "line": number + 1, "at": hit.start(), "text": hit.as_str() }))
                .collect();
            found
        })
        .collect();
    json!({ "file": name, "hits": hits })
}
