//! Tables and help in narrow terminals.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::replay_command::{carried, stderr, stdout};

/// Returns the program's output in a terminal of this width, or without a terminal.
fn printed(width: Option<usize>, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.args(arguments).env_remove("COLUMNS");
    if let Some(width) = width {
        command.env("COLUMNS", width.to_string());
    }
    let output = command.output().unwrap();
    // A device that is too small is not a failure here.
    assert!(
        matches!(output.status.code(), Some(0 | 3)),
        "{}",
        stderr(&output)
    );
    stdout(&output).to_owned()
}

fn widest(text: &str) -> usize {
    let widths = text.lines().map(|line| line.chars().count());
    widths.max().unwrap_or(0)
}

/// Returns words and numbers, without the lines under headings.
fn words(text: &str) -> BTreeSet<String> {
    let words = text.split_whitespace().map(str::to_owned);
    words.filter(|word| !word.starts_with('─')).collect()
}

#[test]
fn tables_fit_80_columns_and_break_nothing_at_40() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.csv");
    fs::write(&rows, "id,lower,upper,size\n0,0,4,10000000000\n1,2,6,50\n").unwrap();
    let traces = [carried("resnet50_train"), carried("gpt2s_train")];
    let columns = "live MiB,reserved MiB,reserved/live,calls,driver allocs";
    // No columns with times, which differ between runs.
    let replay = [
        "replay",
        "--allocator=pytorch",
        "--allocator=larder",
        "--columns",
        columns,
        &traces[0],
        &traces[1],
    ];
    let small = [
        "replay",
        "--columns",
        "completed",
        "--device-bytes",
        "1GiB",
        &traces[0],
    ];
    let driver = [
        "replay",
        "--driver",
        "stand-in",
        "--columns",
        "calls",
        &traces[0],
    ];
    let plan = [
        "plan",
        "--columns",
        "buffers,max live,height",
        rows.to_str().unwrap(),
    ];
    for command in [&replay[..], &small, &driver, &plan, &["versus", "--list"]] {
        let whole = printed(None, command);
        for width in [80, 40] {
            let text = printed(Some(width), command);
            assert!(widest(&text) <= width, "{text}");
            assert_eq!(words(&text), words(&whole), "{text}");
        }
    }
}

#[test]
fn the_usual_columns_fit_80_and_wide_has_all_of_them() {
    let trace = carried("llama7b_decode_cat");
    let arguments = [
        "replay",
        "--allocator",
        "pytorch-expandable",
        "--allocator",
        "larder",
        &trace,
    ];
    let usual = printed(Some(80), &arguments);
    assert!(widest(&usual) <= 80, "{usual}");
    let headings = usual.lines().filter(|line| line.contains('─'));
    assert_eq!(headings.count(), 1, "one block:\n{usual}");
    let wide = printed(Some(80), &[&arguments[..], &["--wide"]].concat());
    assert!(
        wide.contains("driver frees") && !usual.contains("driver frees"),
        "{wide}"
    );
    assert!(widest(&wide) > 80, "{wide}");
}

#[test]
fn help_is_wrapped_at_words() {
    for (command, width) in [
        ("", 60),
        ("replay", 40),
        ("plan", 60),
        ("versus", 60),
        ("coordinate", 40),
    ] {
        for help in ["-h", "--help"] {
            let arguments = [command, help];
            let arguments = &arguments[usize::from(command.is_empty())..];
            let whole = printed(Some(80), arguments);
            assert!(widest(&whole) <= 80, "{whole}");
            let narrow = printed(Some(width), arguments);
            assert!(widest(&narrow) <= width, "{narrow}");
            assert_eq!(words(&narrow), words(&whole));
        }
    }
}

#[test]
fn short_help_fits_a_terminal() {
    let short = printed(Some(80), &["replay", "-h"]);
    assert!(short.lines().count() <= 40, "{short}");
    let whole = printed(Some(80), &["replay", "--help"]);
    for word in ["_dump_snapshot", "memory_viz", "yardstick:"] {
        assert!(whole.contains(word), "{whole}");
    }
}
