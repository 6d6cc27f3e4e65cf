//! The commands of the README and of the guide: each has options that exist, and values that they take.

use std::fs;
use std::path::Path;

use clap::Parser;

use super::{Cli, Command, replay};

/// Returns the arguments of a line that runs the program `larder`.
fn arguments(line: &str) -> Option<Vec<&str>> {
    let line = line.trim_start_matches("$ ").split(" #").next()?;
    let rest = line
        .strip_prefix("larder ")
        .filter(|rest| !rest.starts_with('=')) // a line of Cargo.toml
        .or_else(|| line.split_once("-p larder-cli -- ").map(|(_, rest)| rest))?;
    // A name that the reader chooses.
    let word = |word| if word == "NAME" { "larder" } else { word };
    Some(
        ["larder"]
            .into_iter()
            .chain(rest.split_whitespace().map(word))
            .collect(),
    )
}

fn check(arguments: &[&str]) -> Result<(), String> {
    match Cli::try_parse_from(arguments) {
        Ok(Cli {
            command: Command::Replay(args),
        }) => replay::wanted_families(&args)
            .map(drop)
            .map_err(|error| error.to_string()),
        Err(error) if error.use_stderr() => Err(error.to_string()),
        _ => Ok(()),
    }
}

#[test]
fn every_command_of_the_guide_is_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guide = fs::read_dir(root.join("docs/guide/src")).unwrap();
    let guide = guide.map(|entry| entry.unwrap().path());
    let pages = guide.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let (mut seen, mut wrong) = (0, String::new());
    for page in pages.chain([root.join("README.md")]) {
        let text = fs::read_to_string(&page).unwrap();
        let mut in_block = false;
        for line in text.lines() {
            in_block ^= line.starts_with("```");
            if let Some(arguments) = arguments(line).filter(|_| in_block) {
                seen += 1;
                if let Err(error) = check(&arguments) {
                    wrong += &format!("{}: {line}\n{error}\n", page.display());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(seen > 25, "only {seen} commands");
}
