//! The program as a user meets it: commands and their output. The sessions are the files `*.txt`.
//!
//! ```text
//! # What is promised.                                    a case, in a folder of its own with the files above the first
//! file bad.trace "a 0 4\nf 1\n"                          a file in it; `file.gzip`, `.xz` and `.zstd` pack it
//! $ larder replay --json bad.trace | trace completed     a command, and keys: each line of JSON gives their values
//! ? 2                                                    its exit code, unless that is 0
//! > a line of standard output
//! ! a line of standard error
//! ```
//!
//! `@NAME` is a carried trace and `%NAME` a recording of `cli/trace/fixtures`. `A=b` before a
//! command sets a variable, `< FILE` is its input and `> FILE` keeps its output. `ls` and `cat`
//! show what is in the folder. Among the keys, `KEY>0` says whether a varying figure is above 0;
//! equal lines in a row are printed once, with their count. `| with WORD` keeps only the lines with
//! the word. In expected output, `[..]` matches any text, and a line `...` matches any lines.
//!
//! `LARDER_REWRITE=1 cargo test -p larder-cli --test all commands::` writes the program's current
//! output into the files, except for lines that match already.

pub(crate) mod files;
mod text;

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use files::make;
use text::{agrees, keys, rewritten, words};

fn mark(letter: char, line: &str) -> String {
    format!("{letter} {line}").trim_end().to_owned()
}

/// Returns a command's output as the lines of a session.
fn printed(output: &Output, filter: &str) -> Vec<String> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let shown = match filter.strip_prefix("with ") {
        _ if filter.is_empty() => stdout.lines().map(str::to_owned).collect(),
        Some(word) => stdout
            .lines()
            .filter(|line| line.contains(word))
            .map(str::to_owned)
            .collect(),
        None => keys(&stdout, filter),
    };
    let code = match output.status.code() {
        Some(0) => None,
        Some(code) => Some(format!("? {code}")),
        None => Some(format!("? {}", output.status)),
    };
    let mut lines: Vec<String> = code.into_iter().collect();
    lines.extend(shown.iter().map(|line| mark('>', line)));
    // Sessions leave out the hint at `--help`.
    let stderr = stderr.replace("\n\nFor more information, try '--help'.", "");
    lines.extend(stderr.lines().map(|line| mark('!', line)));
    lines
}

fn run(line: &str, folder: &Path) -> Vec<String> {
    let (line, filter) = line.split_once(" | ").unwrap_or((line, ""));
    let (line, kept) = line.split_once(" > ").unwrap_or((line, ""));
    let (line, input) = line.split_once(" < ").unwrap_or((line, ""));
    let mut words = words(line).into_iter().peekable();
    let mut variables = Vec::new();
    while let Some((name, value)) = words.peek().and_then(|word| word.split_once('=')) {
        let path = std::env::var("PATH").unwrap_or_default();
        variables.push((name.to_owned(), value.replace("$PATH", &path)));
        words.next();
    }
    match words.next().as_deref() {
        Some("larder") => {}
        Some("cat") => {
            let text = fs::read_to_string(folder.join(words.next().unwrap())).unwrap();
            return text.lines().map(|line| mark('>', line)).collect();
        }
        Some("ls") => {
            let entries = fs::read_dir(folder.join(words.next().unwrap())).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            return names.iter().map(|name| mark('>', name)).collect();
        }
        other => panic!("{other:?} is no command"),
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    // Settings of the stand-in for this test run must not change the output.
    for (name, _) in std::env::vars() {
        if name.starts_with("LARDER_STAND_IN") || name == "LARDER_CUDA_DRIVER" || name == "COLUMNS"
        {
            command.env_remove(name);
        }
    }
    let mut child = command
        .args(words)
        .envs(variables)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    if !input.is_empty() {
        let sent = pipe.write_all(&fs::read(folder.join(input)).unwrap());
        // A program that refuses its arguments may end before it reads.
        sent.or_else(|error| match error.kind() {
            ErrorKind::BrokenPipe => Ok(()),
            _ => Err(error),
        })
        .unwrap();
    }
    drop(pipe);
    let mut output = child.wait_with_output().unwrap();
    if !kept.is_empty() {
        fs::write(folder.join(kept), std::mem::take(&mut output.stdout)).unwrap();
    }
    printed(&output, filter)
}

/// Plays a session. Returns it with its current output, and the differences.
fn play(session: &str, name: &str) -> (Vec<String>, Vec<String>) {
    let mut folder = TempDir::new().unwrap();
    let (mut now, mut differences, mut case) = (Vec::new(), Vec::new(), "");
    let mut everywhere: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut lines = session.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        now.push(line.to_owned());
        if let Some(promise) = line.strip_prefix("# ") {
            (case, folder) = (promise, TempDir::new().unwrap());
            for (line, body) in &everywhere {
                make(line, body, folder.path());
            }
        } else if let Some(command) = line.strip_prefix("$ ") {
            let is_output = |line: &str| line == "..." || line.starts_with(['?', '>', '!']);
            let mut expected = Vec::new();
            while let Some((_, line)) = lines.next_if(|(_, line)| is_output(line)) {
                expected.push(line);
            }
            let printed = run(command, folder.path());
            if !agrees(&expected, &printed) {
                differences.push(format!(
                    "{name}:{}: {case}\n  {line}\nexpected:\n{}\nprinted:\n{}",
                    number + 1,
                    expected.join("\n"),
                    printed.join("\n")
                ));
            }
            now.extend(rewritten(&expected, printed));
        } else if !line.is_empty() {
            let mut body = Vec::new();
            while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with("    ")) {
                now.push(line.to_owned());
                body.push(&line[4..]);
            }
            match case {
                "" => everywhere.push((line, body)),
                _ => make(line, &body, folder.path()),
            }
        }
    }
    (now, differences)
}

fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/all/commands")
        .join(name);
    let (now, differences) = play(&fs::read_to_string(&path).unwrap(), name);
    if std::env::var_os("LARDER_REWRITE").is_some() {
        fs::write(&path, now.join("\n") + "\n").unwrap();
    } else {
        let rewrite = "LARDER_REWRITE=1 cargo test -p larder-cli --test all commands::";
        assert!(
            differences.is_empty(),
            "{}\nif that is right: {rewrite}",
            differences.join("\n\n")
        );
    }
}

#[test]
fn replay() {
    check("replay.txt");
}

#[test]
fn plan() {
    check("plan.txt");
}

#[test]
fn recordings() {
    check("recordings.txt");
}

#[test]
fn reports() {
    check("reports.txt");
}

// Workers are shell scripts.
#[cfg(unix)]
#[test]
fn versus() {
    check("versus.txt");
}

#[test]
fn jobs() {
    check("jobs.txt");
}
