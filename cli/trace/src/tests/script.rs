//! The script that records PyTorch models, if PyTorch is installed.

use std::path::Path;
use std::process::Command;

use crate::{Trace, read};

/// Returns the version of PyTorch that a trace was recorded with.
fn version(trace: &Trace) -> &str {
    let mut header = trace.header().iter();
    let (_, recorded) = header.find(|(key, _)| key == "recorded").unwrap();
    recorded.split(['+', ',']).next().unwrap()
}

#[test]
fn the_script_records_again_what_the_trace_of_its_model_has() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Ok(output) = Command::new(root.join("scripts/record.py"))
        .arg("gpt2s_train")
        .output()
    else {
        println!("skipped: there is no python3");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("No module named 'torch'") {
        println!("skipped: there is no PyTorch");
        return;
    }
    assert!(output.status.success(), "{said}");
    let again = read(Path::new("again.trace"), output.stdout.as_slice()).unwrap();
    let carried = Trace::load(&root.join("benches/traces/gpt2s_train.trace.zst")).unwrap();
    // Other versions allocate differently.
    if version(&again) == version(&carried) {
        assert!(again.events() == carried.events(), "another trace");
    }
}
