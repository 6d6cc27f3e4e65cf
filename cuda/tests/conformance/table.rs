//! The README's table names every test, and states correctly which of them a real driver runs.

use std::{collections::BTreeMap, fs, path::Path};

/// The values of the table's third column.
const EVERYWHERE: &str = "yes";
const THERE_ONLY: &str = "only there";
const HERE_ONLY: &str = "no";

/// Finds `module::test`, and where it runs, for each test in the sources.
fn tests_of(folder: &Path, prefix: &str, found: &mut BTreeMap<String, &'static str>) {
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
            for table in text.split("\nrefusals! {\n").skip(1) {
                let (rows, _) = table.split_once("\n}\n").expect("its end");
                for row in rows.lines().filter_map(|line| line.strip_prefix("    fn ")) {
                    let (name, _) = row.split_once('(').expect("a rule");
                    found.insert(format!("{prefix}{stem}::{name}"), EVERYWHERE);
                }
            }
            for part in text.split("\n#[test]\nfn ").skip(1) {
                let (name, body) = part.split_once('(').expect("a function");
                let (body, _) = body.split_once("\n}\n").expect("its end");
                let places = [
                    (
                        EVERYWHERE,
                        body.contains("portable(") || body.contains("bare("),
                    ),
                    (HERE_ONLY, body.contains("stand_in_only(")),
                    (THERE_ONLY, body.contains("real_only(")),
                ];
                let said: Vec<_> = places.iter().filter(|(_, said)| *said).collect();
                let [(place, _)] = said[..] else {
                    panic!("{name} says where it runs, once");
                };
                found.insert(format!("{prefix}{stem}::{name}"), *place);
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
            let known = [EVERYWHERE, THERE_ONLY, HERE_ONLY];
            let place = known.into_iter().find(|known| real.starts_with(known));
            listed.insert(name.to_owned(), place.expect("where it runs"));
        }
    }
    assert_eq!(listed, found);
}
