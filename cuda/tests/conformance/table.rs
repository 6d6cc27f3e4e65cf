//! The README's table names every test, and says truly which of them a real driver runs.

use std::{collections::BTreeMap, fs, path::Path};

/// `module::test` and whether a real driver runs it, of each test in the sources.
fn tests_of(folder: &Path, prefix: &str, found: &mut BTreeMap<String, bool>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let stem = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            tests_of(&path, &format!("{prefix}{stem}::"), found);
        } else if path.extension().is_some_and(|end| end == "rs") && stem != "table" {
            let text = fs::read_to_string(&path).expect("a source");
            for part in text.split("\n#[test]\nfn ").skip(1) {
                let (name, body) = part.split_once('(').expect("a function");
                let (body, _) = body.split_once("\n}\n").expect("its end");
                let everywhere = body.contains("portable(") || body.contains("bare(");
                let here_only = body.contains("stand_in_only(");
                assert!(everywhere != here_only, "{name} says where it runs");
                found.insert(format!("{prefix}{stem}::{name}"), everywhere);
            }
        }
    }
}

#[test]
fn the_table_lists_every_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    if !folder.exists() {
        println!("skipped: this program runs without its sources");
        return;
    }
    let mut found = BTreeMap::new();
    tests_of(&folder, "", &mut found);
    let text = fs::read_to_string(folder.join("README.md")).expect("the table");
    let mut listed = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = line
            .split(" | ")
            .map(|cell| cell.trim_matches(['|', ' ']))
            .collect();
        if let [_, name, real] = cells[..]
            && let Some(name) = name
                .strip_prefix('`')
                .and_then(|name| name.strip_suffix('`'))
        {
            listed.insert(name.to_owned(), real == "yes");
        }
    }
    assert_eq!(listed, found);
}
