//! The replayed allocators, PyTorch's among them, and the sentence at the end.

use super::*;

/// Two rows, a mean, and how often it is worse than pytorch-expandable.
fn lines(name: &str) -> usize {
    if name == "pytorch-expandable" { 3 } else { 4 }
}

#[test]
fn the_default_is_pytorch_beside_ours_and_ends_with_what_that_saves() {
    let output = larder(&[&carried("gpt2s_train"), &carried("resnet50_train")]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let text = stdout(&output);
    for name in NAMES {
        let cells = text.matches(&format!(" {name} ")).count();
        let shown = if SHOWN.contains(&name) {
            lines(name)
        } else {
            0
        };
        assert_eq!(cells, shown, "{name}:\n{text}");
    }
    assert!(text.contains("over 2 completed of 2 traces"), "{text}");
    let last = text.lines().last().unwrap();
    let sentence = "At the peak PyTorch holds 1.161 times what is live, Larder (larder) 1.00";
    assert!(last.starts_with(sentence), "{last}");
    for part in [
        " % less (geometric means over 2 traces). ",
        "Larder holds 0.",
        " % less than expandable segments.",
    ] {
        assert!(last.contains(part), "{last}");
    }
}

#[test]
fn all_is_every_allocator_side_by_side() {
    let output = larder(&["--all", &carried("gpt2s_train"), &carried("resnet50_train")]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for name in NAMES {
        let cells = text.matches(&format!(" {name} ")).count();
        assert_eq!(cells, lines(name), "{name}:\n{text}");
    }
    let both = larder(&["--all", "--allocator", "xla", &carried("resnet50_train")]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn pytorch_can_be_set_as_its_variable_says() {
    let trace = carried("resnet50_train");
    let rows = |settings: &str| json(&larder(&["--json", "--pytorch", settings, &trace]));
    let same = rows("PYTORCH_CUDA_ALLOC_CONF=backend:native,expandable_segments:True");
    assert_eq!(names(&same), [&SHOWN[..], &["pytorch-set"]].concat());
    let reserved = |row: &Value| row["peak_reserved_bytes"].as_u64().unwrap();
    assert_eq!(reserved(&same[4]), reserved(&same[1]));
    let rounded = rows("roundup_power2_divisions:2");
    assert!(reserved(&rounded[4]) > reserved(&rounded[0]));
    let table = larder(&["--pytorch", "max_split_size_mb:128", &trace]);
    let last = stdout(&table).lines().last().unwrap();
    assert!(
        last.starts_with("At the peak PyTorch as set holds "),
        "{last}"
    );
    let only = ["--allocator", "pytorch-set", "--json", &trace];
    let output = larder(&only);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("give --pytorch"),
        "{}",
        stderr(&output)
    );
    let output = larder(&[&["--pytorch", ""], &only[..]].concat());
    assert_eq!(names(&json(&output)), ["pytorch-set"]);
    let wrong = larder(&["--pytorch", "max_split_size_mb:20", &trace]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        stderr(&wrong).contains("more than 20"),
        "{}",
        stderr(&wrong)
    );
}

#[test]
fn families_are_replayed_beside_files_and_named_by_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let good = file(&folder, "good.trace", GOOD);
    let replayed = |families: &[&str]| {
        let arguments = ["--json", "--allocator", "xla"];
        let output = larder(&[&arguments[..], families].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        json(&output)
    };
    let beside = replayed(&[&good, "--operations", "1000", "--families", "growing-step"]);
    let names = beside.iter().map(|row| row["trace"].as_str().unwrap());
    let names: Vec<&str> = names.collect();
    assert_eq!(names[0], "good");
    assert!(names.len() > 1);
    assert!(
        names[1..]
            .iter()
            .all(|name| name.starts_with("growing-step-"))
    );
    let alone = replayed(&["--families", names[1]]);
    assert_eq!(alone[0]["trace"], beside[1]["trace"]);
    let allocations = |row: &Value| row["allocations"].as_u64().unwrap();
    assert!(allocations(&alone[0]) > 2 * allocations(&beside[1]));
    for wrong in [["--families", "nonesuch"], ["--operations", "9"]] {
        assert_eq!(larder(&wrong).status.code(), Some(2), "{wrong:?}");
    }
}
