//! The words of a command, the keys of its output, and the comparison with the expected output.

use serde_json::Value;

/// Splits a line into words. Single quotes keep blanks inside a word.
pub(super) fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for (place, part) in line.split('\'').enumerate() {
        match place % 2 {
            0 => words.extend(part.split(' ').filter(|word| !word.is_empty()).map(path_of)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Replaces the short name of a carried trace or a recording with its path.
fn path_of(word: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    match word.split_at_checked(1) {
        Some(("@", name)) => format!("{root}../benches/traces/{name}.trace.zst"),
        Some(("%", name)) => format!("{root}trace/fixtures/{name}"),
        _ => word.to_owned(),
    }
}

/// Returns the values of some keys in each line of JSON.
pub(super) fn keys(stdout: &str, keys: &str) -> Vec<String> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for line in stdout.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        let values = keys.split(' ').map(|key| value(&object, key));
        let line = values.collect::<Vec<_>>().join(" ");
        match lines.last_mut() {
            Some((count, last)) if *last == line => *count += 1,
            _ => lines.push((1, line)),
        }
    }
    let counted = lines.into_iter().map(|(count, line)| match count {
        1 => line,
        _ => format!("{count} x {line}"),
    });
    counted.collect()
}

fn value(object: &Value, key: &str) -> String {
    let (path, above) = match key.strip_suffix(">0") {
        Some(path) => (path, true),
        None => (key, false),
    };
    let step = |value: &'_ Value, key: &str| match key.parse::<usize>() {
        Ok(index) => value[index].clone(),
        Err(_) => value[key].clone(),
    };
    let found = path
        .split('.')
        .fold(object.clone(), |value, key| step(&value, key));
    match found {
        Value::Number(number) if above => format!("{}", number.as_f64() > Some(0.0)),
        Value::String(text) => text,
        other => other.to_string(),
    }
}

fn is_like(expected: &str, line: &str) -> bool {
    let mut parts = expected.split("[..]");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut last = "";
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        (rest, last) = (&rest[at + part.len()..], part);
    }
    rest.is_empty()
        || expected.ends_with("[..]")
        || (expected.contains("[..]") && line.ends_with(last))
}

/// Returns whether all lines match the expected lines.
pub(super) fn agrees(expected: &[&str], lines: &[String]) -> bool {
    match expected {
        [] => lines.is_empty(),
        ["...", rest @ ..] => (0..=lines.len()).any(|skipped| agrees(rest, &lines[skipped..])),
        [first, rest @ ..] => {
            let agree =
                |(line, lines): (&String, &[String])| is_like(first, line) && agrees(rest, lines);
            lines.split_first().is_some_and(agree)
        }
    }
}

/// Returns the lines for a session: those that match an expected line keep the text of that line.
pub(super) fn rewritten(expected: &[&str], lines: Vec<String>) -> Vec<String> {
    if agrees(expected, &lines) {
        return expected.iter().map(|&line| line.to_owned()).collect();
    }
    let kept = |line: &str| {
        expected
            .iter()
            .find(|expected| is_like(expected, line))
            .copied()
    };
    lines
        .into_iter()
        .map(|line| kept(&line).map_or(line.clone(), str::to_owned))
        .collect()
}

#[test]
fn lines_are_compared_with_what_is_expected() {
    for (expected, line, agrees) in [
        ("a b", "a b", true),
        ("a b", "a bc", false),
        ("a [..]", "a bc", true),
        ("[..]b[..]d", "abcd", true),
        ("[..]b", "abab", true),
        ("a[..]c", "ab", false),
        ("a[..]b", "abc", false),
    ] {
        assert_eq!(is_like(expected, line), agrees, "{expected}: {line}");
    }
    let lines = ["a", "b", "c"].map(str::to_owned);
    assert!(agrees(&["a", "...", "c"], &lines) && agrees(&["...", "b", "c", "..."], &lines));
    assert!(!agrees(&["a", "b"], &lines) && !agrees(&["...", "b"], &lines));
}
