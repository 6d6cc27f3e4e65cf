//! The script that records PyTorch models, if PyTorch is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{Trace, read};

/// The versions of PyTorch that allocate as the version did with which the traces were recorded.
const ALIKE: [&str; 2] = ["torch 2.11.0", "torch 2.15.0"];

/// Returns the version of PyTorch that a trace was recorded with.
fn version(trace: &Trace) -> &str {
    let mut header = trace.header().iter();
    let (_, recorded) = header.find(|(key, _)| key == "recorded").unwrap();
    recorded.split(['+', ',']).next().unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Records a function, which is in a module of the folder or of the script. Returns `None`, and prints why, without
/// Python or PyTorch.
fn recorded(folder: &Path, function: &str) -> Option<(Output, String)> {
    let mut script = Command::new(fs::canonicalize(root().join("scripts/record.py")).unwrap());
    script.env("PYTHONDONTWRITEBYTECODE", "1");
    let Ok(output) = script.arg(function).current_dir(folder).output() else {
        println!("skipped: there is no python3");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("No module named 'torch'") {
        println!("skipped: there is no PyTorch");
        return None;
    }
    Some((output, said))
}

#[track_caller]
fn trace(output: &Output, said: &str) -> Trace {
    assert!(output.status.success(), "{said}");
    read(Path::new("again.trace"), output.stdout.as_slice()).unwrap()
}

#[test]
fn the_script_records_again_what_the_trace_of_its_model_has() {
    let Some((output, said)) = recorded(&root(), "gpt2s_train") else {
        return;
    };
    let again = trace(&output, &said);
    let carried = Trace::load(&root().join("benches/traces/gpt2s_train.trace.zst")).unwrap();
    assert!(ALIKE.contains(&version(&carried)));
    // Other versions allocate differently.
    if ALIKE.contains(&version(&again)) {
        assert!(again.events() == carried.events(), "another trace");
    }
}

/// Returns the folder of `functions.py`.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests")
}

#[test]
fn optimizers_read_their_step_counters() {
    for function in ["adam", "adamw_foreach", "radam"] {
        let Some((output, said)) = recorded(&folder(), &format!("functions:{function}")) else {
            return;
        };
        let trace = trace(&output, &said);
        let (_, counts) = (trace.header().iter())
            .find(|(key, _)| key == "allocs")
            .unwrap();
        // The input, and a parameter, its gradient and two moments: 10,100 numbers each. No counters.
        let live = 4 * (8 * 100 + 4 * 10_100);
        assert!(
            counts.ends_with(&format!("live_at_end: {live}")),
            "{function}: {counts}"
        );
    }
}

#[test]
fn a_function_that_is_no_generator_function_is_refused_without_a_call() {
    let Some((output, said)) = recorded(&folder(), "functions:plain") else {
        return;
    };
    assert!(!output.status.success() && output.stdout.is_empty());
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("functions:plain is not a generator function: let it yield"),
        "{said}"
    );
}
