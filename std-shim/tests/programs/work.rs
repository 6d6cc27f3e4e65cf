//! The programs. Each turns an input into text, in several threads that exchange data.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use quote::ToTokens;
use rayon::prelude::*;
use serde_json::{Map, Value, json};

use crate::common::Random;

const THREADS: usize = 4;

pub(crate) fn run(program: &str, input: &str) -> String {
    let files: Vec<&str> = input.split_terminator('\0').collect();
    let work = match program {
        "json" => json,
        "syn" => syn,
        "search" => return search(),
        other => panic!("no program is called {other}"),
    };
    in_turns(&files, work)
}

/// Runs `work` on every file, in threads that take files in turn, and joins the results in order.
/// One thread allocates a result and another frees it.
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

/// Returns a random document: nested, with long and short strings, numbers and empty lists.
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
        // Another thread reads the text; its values are changed and dropped here.
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

fn syn(_: usize, file: &str) -> Vec<String> {
    let tree = match syn::parse_file(file) {
        Ok(tree) => tree,
        Err(error) => return vec![error.to_string()],
    };
    let copy = tree.clone();
    let printed = tree.to_token_stream().to_string();
    drop(tree);
    // The printed text parses again, to the same tree.
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

/// The search patterns.
const BEGINNINGS: [&str; 3] = ["fn ", "alloc", "::"];

/// Searches sources as search tools do: walks folders, searches each file line by line, counts the
/// words and writes the hits as JSON, all in a work-stealing pool of threads.
fn search() -> String {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build();
    pool.unwrap().install(|| {
        let folders = ["core/src", "core/tests", "cuda/src", "cuda/tests"];
        let mut paths: Vec<PathBuf> = folders
            .par_iter()
            .flat_map(|folder| walk(&workspace.join(folder)))
            .collect();
        paths.par_sort();
        assert!(paths.len() > 100, "sources are missing");
        let files: Vec<Value> = paths
            .par_iter()
            .map(|path| hits(path.strip_prefix(&workspace).unwrap(), path))
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

/// Returns every Rust source below a folder, in any order.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries
        .into_par_iter()
        .flat_map(|path| match path.is_dir() {
            true => walk(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

fn hits(name: &Path, path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let hits: Vec<Value> = lines
        .par_iter()
        .enumerate()
        .flat_map_iter(|(number, line)| {
            let found = BEGINNINGS
                .iter()
                .flat_map(|found| line.match_indices(found));
            let found: Vec<Value> = found
                .map(|(at, _)| {
                    let word = line[at..].split(['(', ' ', ',']).next();
                    json!({ "line": number + 1, "at": at, "text": word })
                })
                .collect();
            found
        })
        .collect();
    json!({ "file": name, "hits": hits })
}
