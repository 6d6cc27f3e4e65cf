//! Files of all formats, and the traces or errors that they give: the cases of `cases.txt`.

use std::path::Path;

use serde_json::{Value, json};

use crate::rmm::HEADER;
use crate::{Event, Trace, TraceError, read};

/// Reads a text with the escapes `\n`, `\r`, `\t`, `\\` and `\xff`.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut letters = text.bytes();
    while let Some(letter) = letters.next() {
        bytes.push(match (letter, letter == b'\\') {
            (letter, false) => letter,
            _ => match letters.next().unwrap() {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let digits = [letters.next().unwrap(), letters.next().unwrap()];
                    u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => other,
            },
        });
    }
    bytes
}

pub(super) fn pickled(value: &Value) -> Vec<u8> {
    serde_pickle::to_vec(value, serde_pickle::SerOptions::new().proto_v2()).unwrap()
}

/// Returns a snapshot with one history, of entries such as `alloc 512 10`. A field that is `none`
/// is missing from the entry.
pub(super) fn history(entries: &str) -> Value {
    let entries = entries.split(", ").map(|entry| {
        let fields = ["action", "addr", "size"].into_iter().zip(entry.split(' '));
        let present = fields.filter(|(_, field)| *field != "none");
        let mut entry = json!({"stream": 0, "frames": []});
        for (name, field) in present {
            entry[name] = serde_json::from_str(field).unwrap_or_else(|_| field.into());
        }
        entry
    });
    json!({"segments": [], "device_traces": [entries.collect::<Vec<_>>()]})
}

pub(super) fn events(trace: &Trace) -> String {
    let events = trace.events().iter().map(|event| match event {
        Event::Alloc { id, bytes } => format!("a{id}:{bytes}"),
        Event::Free { id } => format!("f{id}"),
        Event::Step { number } => format!("s{number}"),
    });
    events.collect::<Vec<_>>().join(" ")
}

/// Returns whether a text contains `words`, in which `[..]` stands for anything.
fn has(text: &str, words: &str) -> bool {
    let mut rest = Some(text);
    for part in words.split("[..]") {
        rest = rest.and_then(|rest| Some(rest.split_once(part)?.1));
    }
    rest.is_some()
}

fn is_answer(read: &Result<Trace, TraceError>, expected: &str) -> bool {
    match read {
        Ok(trace) => {
            let mut parts = expected.split(" | ");
            let noted = |words: &str| trace.notes().iter().any(|note| has(note, words));
            let notes_agree =
                |words: &str| match (words.strip_prefix("no "), words.split_once(" note")) {
                    (Some(words), _) => !noted(words),
                    (_, Some((count, "" | "s"))) => trace.notes().len().to_string() == count,
                    _ => noted(words),
                };
            parts.next() == Some(&events(trace)) && parts.all(notes_agree)
        }
        Err(error) => {
            let (line, words) = expected.split_once(": ").unwrap_or(("", expected));
            let found = error
                .line()
                .map_or("refused".to_owned(), |line| line.to_string());
            let place = error
                .line()
                .map_or(String::new(), |line| format!("{line}:"));
            let message = error.to_string();
            found == line
                && message.starts_with(&format!("dir/small.trace:{place} "))
                && has(&message, words)
        }
    }
}

#[test]
fn each_file_is_read_or_refused_with_its_line_and_reason() {
    let (mut kind, mut wrong) = ("", Vec::new());
    let lines = include_str!("cases.txt")
        .lines()
        .enumerate()
        .skip_while(|(_, line)| line.starts_with("# "));
    for (number, line) in lines {
        let Some((input, expected)) = line.split_once(" => ") else {
            kind = if line.starts_with('[') { line } else { kind };
            continue;
        };
        let bytes = match kind {
            "[rmm]" => [HEADER.as_bytes(), b"\n", &unescaped(input)].concat(),
            "[snapshot]" => pickled(&serde_json::from_str(input).unwrap()),
            "[history]" => pickled(&history(input)),
            _ => unescaped(input),
        };
        let packed = zstd::encode_all(bytes.as_slice(), 3).unwrap();
        for (form, bytes) in [("plain", bytes), ("packed", packed)] {
            let read = read(Path::new("dir/small.trace"), bytes.as_slice());
            if !is_answer(&read, expected) {
                let read = read.map(|trace| (events(&trace), trace.notes().to_vec()));
                wrong.push(format!(
                    "cases.txt:{}: {line}\n  {form}: {read:?}",
                    number + 1
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
